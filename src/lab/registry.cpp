#include "lab/cases/cases.h"

namespace fathom::lab {

const std::vector<OpCases>& all_ops() {
  static const std::vector<OpCases> ops = {
      sparse_attention_cases(),
  };
  return ops;
}

}  // namespace fathom::lab
