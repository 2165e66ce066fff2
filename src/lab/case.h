// A lab case: the arguments of one operation as named buffers, and the variants that can be run on them.
//
// The generators of src/lab/cases/ make cases; the checker runs a variant on a copy of the buffers, on the CPU or the
// GPU, and compares with the reference; the timer runs it on many copies. Neither knows the operation.
#pragma once

#include <algorithm>
#include <any>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/buffer.h"
#include "lab/random.h"
#include "ops/op.h"

namespace fathom::lab {

/// Where each buffer of a case lies, in the order of Case::buffers.
using Addresses = std::vector<std::byte*>;

/// A buffer of a case as the generator sees it.
template <typename T>
struct Slot {
  int index = -1;       // -1: absent
  std::span<T> values;  // the content to fill (inputs)

  /// The same buffer in one copy of the case; null when absent.
  T* at(const Addresses& addresses) const {
    return index < 0 ? nullptr : reinterpret_cast<T*>(addresses[static_cast<size_t>(index)]);
  }
};

enum class Unit { fp32, bf16, fp8 };  // which arithmetic rate bounds the op
std::string_view unit_name(Unit unit);

/// The least work the op can do: every input read once, every output written once, and the arithmetic.
struct Cost {
  double bytes = 0;
  double flops = 0;
  Unit unit = Unit::bf16;
};

/// A variant bound to a case.
struct Implementation {
  std::string name;
  ops::Backend backend;
  std::function<bool(const Addresses&, const ops::DeviceInfo&)> can_run;
  std::function<size_t(const Addresses&, const ops::DeviceInfo&)> workspace;
  std::function<void(const Addresses&, const ops::Launch&)> run;
  /// Runs token `t` alone, in place; absent where the bits of a token may depend on how many tokens run together.
  std::function<void(const Addresses&, int64_t t, const ops::Launch&)> run_token;
};

/// The right answer of one output in double precision, computed without any variant.
struct Truth {
  int buffer;
  double limit;  // largest allowed ||got - truth|| / ||truth||
  std::function<std::vector<double>(const Addresses& inputs)> values;
};

class Case {
 public:
  std::string op;
  std::string shape;  // "T=4 H=64 window 128 extra 512", for reports
  Cost cost;
  std::vector<Buffer> buffers;
  std::vector<Implementation> implementations;
  std::vector<Truth> truths;
  int64_t tokens = 0;  // how many run_token() accepts
  /// Makes the arguments from addresses: a std::function<Args(const Addresses&)>, for variants that no registry names.
  std::any arguments;
  /// Properties that no element-wise tolerance can state. Gets the addresses of the variant's and of the reference's
  /// results on the host; returns what is wrong, or nothing.
  std::vector<std::function<std::string(const Addresses& got, const Addresses& want)>> properties;
  /// Independence of tokens that share a batch: `change` alters the inputs of all tokens but the first in a copy of the
  /// case, `kept` says what changed in the results of the first, or nothing. Absent where it cannot be stated.
  std::function<void(Case&)> change_neighbours;
  std::function<std::string(const Addresses& before, const Addresses& after)> first_token_kept;

  template <typename T>
  Slot<T> in(std::string name, int64_t count) {
    return add<T>(std::move(name), Role::in, count, Tolerance::exact(), 1);
  }
  template <typename T>
  Slot<T> out(std::string name, int64_t count, Tolerance tolerance, int64_t row = 1) {
    return add<T>(std::move(name), Role::out, count, tolerance, row);
  }
  template <typename T>
  Slot<T> inout(std::string name, int64_t count, Tolerance tolerance, int64_t row = 1) {
    return add<T>(std::move(name), Role::inout, count, tolerance, row);
  }
  /// Places the buffer at an address that is a multiple of `bytes` and of nothing larger.
  template <typename T>
  void align(const Slot<T>& slot, int64_t bytes) {
    buffers[static_cast<size_t>(slot.index)].align = bytes;
  }

  /// Binds every variant of an op; `build` makes its arguments from the addresses of the buffers. With `token`, which
  /// narrows arguments to one of `tokens` tokens, the check demands that every token alone gives the bits it gives in
  /// the batch.
  template <typename Args>
  void bind(ops::Variants<Args> variants, std::function<Args(const Addresses&)> build,
            std::function<Args(Args, int64_t t)> token = nullptr, int64_t token_count = 0) {
    tokens = token_count;
    arguments = build;
    for (const auto& v : variants) {
      Implementation one{std::string(v.name), v.backend, {}, {}, {}, {}};
      one.can_run = [build, &v](const Addresses& a, const ops::DeviceInfo& d) { return v.can_run(build(a), d); };
      one.workspace = [build, &v](const Addresses& a, const ops::DeviceInfo& d) -> size_t {
        return v.workspace ? v.workspace(build(a), d) : 0;
      };
      one.run = [build, &v](const Addresses& a, const ops::Launch& launch) { v.run(build(a), launch); };
      if (token)
        one.run_token = [build, token, &v](const Addresses& a, int64_t t, const ops::Launch& launch) {
          v.run(token(build(a), t), launch);
        };
      implementations.push_back(std::move(one));
    }
  }

  /// Variants that `differs` names take few tokens through other kernels than many, or divide their work by the batch:
  /// a token alone has other last bits.
  template <typename Differs>
  requires std::is_invocable_v<Differs, const Implementation&>
  void batch_moves_bits(const Differs& differs) {
    for (Implementation& v : implementations)
      if (differs(v)) v.run_token = nullptr;
  }
  void batch_moves_bits(std::string_view variant) {
    batch_moves_bits([variant](const Implementation& v) { return v.name == variant; });
  }

  /// The variant of that name; null when there is none.
  const Implementation* find(std::string_view name) const;
  /// The case's own buffers as addresses, for questions about static shapes and for truths. Not to be written.
  Addresses host_addresses() const;

 private:
  template <typename T>
  Slot<T> add(std::string name, Role role, int64_t count, Tolerance tolerance, int64_t row) {
    Buffer b{std::move(name), role, dtype_of<T>(), tolerance, std::max<int64_t>(1, row), 256, {}};
    b.bytes.resize(static_cast<size_t>(count) * sizeof(T));
    if (role == Role::out) poison(b.type, b.bytes);
    buffers.push_back(std::move(b));
    auto& bytes = buffers.back().bytes;
    return {static_cast<int>(buffers.size()) - 1, {reinterpret_cast<T*>(bytes.data()), static_cast<size_t>(count)}};
  }
};

/// The generators of one operation.
struct OpCases {
  std::string_view op;
  std::string_view what;  // one line for the list
  struct VariantName {
    std::string_view name;
    ops::Backend backend;
  };
  std::vector<VariantName> (*variants)();
  /// A small ragged case with fresh values and edge shapes.
  Case (*random)(uint64_t seed);
  /// Names of the shapes that are timed, the most important first.
  std::vector<std::string_view> shapes;
  /// A case of that shape at the sizes of the real model, for `batch` tokens (requests, where the op has requests).
  Case (*timed)(std::string_view shape, int64_t batch, uint64_t seed);
};

template <typename Args>
std::vector<OpCases::VariantName> names_of(ops::Variants<Args> variants) {
  std::vector<OpCases::VariantName> names;
  for (const auto& v : variants) names.push_back({v.name, v.backend});
  return names;
}

/// Every operation that the lab knows, in the order of a decode step.
const std::vector<OpCases>& all_ops();
/// Throws Error naming the known ones when there is no such op.
const OpCases& find_op(std::string_view name);

}  // namespace fathom::lab
