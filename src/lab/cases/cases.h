// The generators, one file for each folder of src/ops/.
#pragma once

#include "lab/case.h"

namespace fathom::lab {

OpCases sparse_attention_cases();

}  // namespace fathom::lab
