// Kernel names for people.
//
// Names run to thousands of characters, most of them template arguments that are the same in every row of a report.
// What tells a kernel apart stays: the functor inside a generic wrapper (elementwise_kernel, cutlass::Kernel2), the
// arguments in which kernels of one name differ.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom::trace {

/// Demangled, without return type, parameter list and "(anonymous namespace)::", safe for a terminal. The empty name
/// shows as "(empty name)".
std::string display_name(std::string_view name);
/// The same without template arguments: "deep_ep::internode_ll::combine".
std::string short_name(std::string_view name);
/// What sentences call a kernel: the short name; of a wrapper with what it wraps ("at::native::elementwise_kernel
/// [direct_copy_kernel_cuda]"), of a Tensile kernel with problem type and tile alone.
std::string brief_name(std::string_view name);

/// The names as they fit `width` columns, different where the names are: whole; or brief with the template arguments
/// in which names of one short name differ, as many as fit; or cut in the middle. Names that still read the same get
/// " (2)", " (3)".
std::vector<std::string> distinct_names(const std::vector<std::string>& names, size_t width);

}  // namespace fathom::trace
