#include "lab/case.h"

#include "base/error.h"
#include "lab/cases/cases.h"

namespace fathom::lab {

std::string_view unit_name(Unit unit) {
  switch (unit) {
    case Unit::fp32:
      return "fp32";
    case Unit::bf16:
      return "bf16";
    case Unit::fp8:
      return "fp8";
  }
  return "?";
}

const Implementation* Case::find(std::string_view name) const {
  for (const auto& i : implementations)
    if (i.name == name) return &i;
  return nullptr;
}

Addresses Case::host_addresses() const {
  Addresses addresses;
  for (const Buffer& b : buffers) addresses.push_back(const_cast<std::byte*>(b.bytes.data()));
  return addresses;
}

const OpCases& find_op(std::string_view name) {
  std::string known;
  for (const OpCases& op : all_ops()) {
    if (op.op == name) return op;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", op.op);
  }
  fail("there is no operation {}; known: {}", printable(name), known);
}

}  // namespace fathom::lab
