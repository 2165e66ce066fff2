// The table of operations that the model runs on: one variant of each op, chosen once for a backend.
//
// Model code calls through this table and never asks which backend it is on.
#pragma once

#include <string_view>

#include "ops/choose/choose.h"
#include "ops/compress/compress.h"
#include "ops/draft/draft.h"
#include "ops/embed/embed.h"
#include "ops/experts/experts.h"
#include "ops/head/head.h"
#include "ops/index_select/index_select.h"
#include "ops/linear/linear.h"
#include "ops/output_project/output_project.h"
#include "ops/quantize/quantize.h"
#include "ops/query/query.h"
#include "ops/residual_mix/residual_mix.h"
#include "ops/route/route.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/together/together.h"
#include "ops/window_write/window_write.h"

namespace fathom::ops {

struct OpTable {
  const Variant<EmbedArgs>* embed = nullptr;
  const Variant<ResidualMixArgs>* residual_mix = nullptr;
  const Variant<LinearFp8Args>* linear_fp8 = nullptr;
  const Variant<LinearBf16Args>* linear_bf16 = nullptr;
  const Variant<LinearF32Args>* linear_f32 = nullptr;
  const Variant<QuantizeArgs>* quantize = nullptr;
  const Variant<QueryArgs>* query = nullptr;
  const Variant<WindowWriteArgs>* window_write = nullptr;
  const Variant<CompressArgs>* compress = nullptr;
  const Variant<IndexQueryArgs>* index_query = nullptr;
  const Variant<IndexSelectArgs>* index_select = nullptr;
  const Variant<SparseAttentionArgs>* sparse_attention = nullptr;
  const Variant<OutputProjectArgs>* output_project = nullptr;
  const Variant<RouteArgs>* route = nullptr;
  const Variant<ExpertsArgs>* experts = nullptr;
  const Variant<HeadArgs>* head = nullptr;
  const Variant<ChooseArgs>* choose = nullptr;
  const Variant<StreamMeanArgs>* stream_mean = nullptr;
  const Variant<StreamJoinArgs>* stream_join = nullptr;
  const Variant<MarkovArgs>* markov = nullptr;
  // Several of the above in one launch; null where they run alone.
  const Variant<AttentionInputsArgs>* attention_inputs = nullptr;
  const Variant<CompressBothArgs>* compress_both = nullptr;
  const Variant<InputProductsArgs>* input_products = nullptr;
  const Variant<QueryProductsArgs>* query_products = nullptr;
  const Variant<OutputProductsArgs>* output_products = nullptr;

  bool operator==(const OpTable&) const = default;
};

/// The variants called `name` ("ref" or "cpu"). Throws std::invalid_argument naming the op that has none.
OpTable op_table(std::string_view name);

/// The same for a device: "ref" and "cpu" on the host, "cuda" on a GPU: of each op the variant for the newest
/// architecture that the device has. With `fast`, attention, experts, linear_fp8, input_products and output_products
/// may be those whose last bits depend on the batch. Throws Error when the name does not go with the device.
OpTable op_table(std::string_view name, const DeviceInfo& device, bool fast = false);

}  // namespace fathom::ops
