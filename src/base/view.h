// View<T, Rank>: a typed window on memory that somebody else owns. The arguments of every op are structs of these.
//
// Sizes and strides count elements. The last dimension is contiguous (its stride is 1 by contract), so only the outer
// strides are stored. A view never owns, allocates or checks in release builds; it works in CUDA code too.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/small_floats.h"

namespace fathom {

template <typename T, int Rank>
struct View {
  T* data = nullptr;
  int64_t size[Rank] = {};
  int64_t stride[Rank] = {};

  View() = default;

  /// A dense row-major view: View<float, 2>(p, rows, columns).
  template <typename... Sizes>
  requires(sizeof...(Sizes) == Rank) FATHOM_HOST_DEVICE View(T* p, Sizes... sizes)
      : data(p), size{static_cast<int64_t>(sizes)...} {
    int64_t step = 1;
    for (int i = Rank - 1; i >= 0; --i) {
      stride[i] = step;
      step *= size[i];
    }
  }

  /// View<T> converts to View<const T>.
  template <typename U>
  requires(std::is_same_v<const U, T> && !std::is_const_v<U>) FATHOM_HOST_DEVICE View(const View<U, Rank>& other)
      : data(other.data) {
    for (int i = 0; i < Rank; ++i) size[i] = other.size[i], stride[i] = other.stride[i];
  }

  FATHOM_HOST_DEVICE bool empty() const { return data == nullptr || count() == 0; }

  FATHOM_HOST_DEVICE int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < Rank; ++i) n *= size[i];
    return n;
  }

  template <typename... Index>
  requires(sizeof...(Index) == Rank) FATHOM_HOST_DEVICE T& operator()(Index... index) const {
    const int64_t at[Rank] = {static_cast<int64_t>(index)...};
    int64_t offset = 0;
    for (int i = 0; i < Rank; ++i) offset += at[i] * stride[i];
    return data[offset];
  }

  /// Row i of the first dimension.
  FATHOM_HOST_DEVICE auto operator[](int64_t i) const {
    if constexpr (Rank == 1) {
      return data[i];
    } else {
      View<T, Rank - 1> row;
      row.data = data + i * stride[0];
      for (int k = 1; k < Rank; ++k) row.size[k - 1] = size[k], row.stride[k - 1] = stride[k];
      return row;
    }
  }

  /// Rows [begin, begin + n) of the first dimension.
  FATHOM_HOST_DEVICE View rows(int64_t begin, int64_t n) const {
    View part = *this;
    part.data = data + begin * stride[0];
    part.size[0] = n;
    return part;
  }
};

template <typename T, typename... Sizes>
View(T*, Sizes...) -> View<T, sizeof...(Sizes)>;

}  // namespace fathom
