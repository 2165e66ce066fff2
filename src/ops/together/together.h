// Small operations that need nothing of one another, in one launch on a GPU. Each does what it does alone, by the same
// code, bit for bit.
//
// attention_inputs   query, window_write and, in layers with an indexer, index_query
// compress_both      compress of KV rows and of index rows, ratio 4
#pragma once

#include <string_view>

#include "ops/compress/compress.h"
#include "ops/index_select/index_select.h"
#include "ops/query/query.h"
#include "ops/window_write/window_write.h"

namespace fathom::ops {

struct AttentionInputsArgs {
  QueryArgs query;
  WindowWriteArgs window;  // of the tokens of `query`
  IndexQueryArgs index;    // of the same tokens; q.data == null: none
};

struct CompressBothArgs {
  CompressArgs main, index;  // of the same segments and entries
};

/// CUDA alone: elsewhere there is nothing to be saved.
Variants<AttentionInputsArgs> attention_inputs_variants();
Variants<CompressBothArgs> compress_both_variants();

}  // namespace fathom::ops
