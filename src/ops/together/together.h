// Small operations that need nothing of one another, in one launch on a GPU. Each but output_products does what it does
// alone, by the same code, bit for bit.
//
// attention_inputs   query, window_write and, in layers with an indexer, index_query
// compress_both      compress of KV rows and of index rows, ratio 4
// input_products     all products with the input of an attention half: linear_fp8, linear_f32, linear_bf16
// query_products     linear_fp8 of the queries, and the compressions of the layer, which take less time
// output_products    output_project and the linear_fp8 behind it (the bits are others)
#pragma once

#include <string_view>

#include "ops/compress/compress.h"
#include "ops/index_select/index_select.h"
#include "ops/linear/linear.h"
#include "ops/output_project/output_project.h"
#include "ops/query/query.h"
#include "ops/residual_mix/half_end.h"
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

struct InputProductsArgs {
  LinearFp8Args latents;
  LinearF32Args compressor;  // of the same tokens
  LinearBf16Args weights;    // of the same tokens; w.data == null: none
};

struct QueryProductsArgs {
  LinearFp8Args queries;
  CompressArgs main, index;  // of the same segments and entries; index.k.data == null: none
};

struct OutputProductsArgs {
  OutputProjectArgs heads;  // z_codes and z_scale are not written
  Fp8Weight wo_b;
  View<bf16, 2> y;  // out [T, rows of wo_b]
  HalfEnd end;      // the half that y ends
};

/// CUDA alone: elsewhere there is nothing to be saved.
Variants<AttentionInputsArgs> attention_inputs_variants();
Variants<CompressBothArgs> compress_both_variants();
/// For few tokens where all blocks have a place at once. "sm90" has the bits of the variants of that name (linear_fp8
/// etc.), "sm90_fast" others for the latents.
Variants<InputProductsArgs> input_products_variants();
Variants<QueryProductsArgs> query_products_variants();
/// "sm90_fast", up to 4 tokens. Its workspace must be zeroed once and then belong to this op and one stream.
Variants<OutputProductsArgs> output_products_variants();

}  // namespace fathom::ops
