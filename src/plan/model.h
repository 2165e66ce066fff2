// What a model costs, computed from the list of its tensors: bytes by how they are read in a decode step, parameters
// and operations. Built-in models need no checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/config.h"
#include "formats/inventory.h"

namespace fathom::plan {

/// Bytes of the weights, by how a step reads them and how tensor parallelism divides them (spec 2.10).
struct WeightBytes {
  double lookup = 0;  // embedding rows and hash tables: a step reads single rows
  double split = 0;   // read whole in every step, divided over the devices: wq_b, wo_a, wo_b, indexer products, head
  double replicated = 0;  // read whole in every step by every device: the other products, norms, mixing, shared expert
  double routed = 0;      // all routed experts
  double per_expert = 0;  // one routed expert of one layer

  double fixed() const { return split + replicated; }
  double total() const { return lookup + split + replicated + routed; }
};

/// The draft module. Its experts are drawn by 5 tokens a request, as the backbone's by one.
struct DraftBytes {
  int stages = 0, block = 0;  // tokens proposed a step
  double once = 0;            // read once a draft: products, norms; the backbone's head
  double each = 0;            // read for each proposed token: the second Markov matrix
  double per_expert = 0;      // one routed expert of one stage
  double resident = 0;        // all of its tensors
};

struct Model {
  std::string name;
  ModelConfig config;
  WeightBytes weights;
  DraftBytes draft;
  double parameters = 0;                                  // of the backbone
  double active_parameters = 0;                           // a token meets, without the embedding table
  int window_layers = 0, csa_layers = 0, hca_layers = 0;  // compress ratio 0, 4, 128

  int layers() const { return config.num_layers; }
};

/// A built-in name (with "-k160" a variant of v4-flash-0731 pruned to 160 experts), or a checkpoint folder, or a
/// config.json file. `experts` > 0 replaces the number of routed experts. Throws Error.
Model find_model(const std::string& name_or_path, int experts = 0);

/// The costs of a model of this config and layout.
Model model_of(std::string name, const ModelConfig& config, const CheckpointLayout& layout);

/// Bytes of one decode token's reads of the cache at `context` tokens, all layers. `index_row`: 132 (FP8) or 68 (FP4)
/// bytes of an index key. Spec 7.1.
double cache_read_bytes(const Model& m, double context, double index_row);
/// Bytes that one more token of context adds to the cache of a sequence. Spec 3.4.
double cache_bytes_per_token(const Model& m, double index_row);
/// Bytes of a sequence of any length: window rings and compressor states. Spec 3.1.
double cache_bytes_fixed(const Model& m);

/// Operations (a multiplication and an addition are two) of one token at `context` tokens. Spec 7.1.
struct TokenOperations {
  double products = 0, attention = 0, index = 0;
  double total() const { return products + attention + index; }
};
TokenOperations operations(const Model& m, double context);

}  // namespace fathom::plan
