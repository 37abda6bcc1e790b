// How `pull` learns what to receive: `publish` serves every shard's safetensors header as a small
// model of its own, beside the weights.
//
// Weights of model M, shard 2, version 7 come with model "M#layout/2", version 7: one replica of
// one shard, one tensor "header" of U8, whose length is the header's. A reader finds that length in
// the server's list, so nothing has to be known or padded in advance, and the header crosses like
// any other weights, sealed and from peers. It is published before the weights and outlives them,
// so whoever sees a version can get its layout. '#' is not allowed in names that people give.
//
// Weights that an application publishes through the library come without such a model; `pull --like
// FILE` takes the layout from a file instead.
#pragma once

#include <cstdint>
#include <string>

#include "net/ids.h"

namespace weightlane::prod {

inline std::string layout_model(const std::string& model, ShardIndex shard) {
  return model + "#layout/" + std::to_string(shard.value);
}
inline bool is_layout_model(const std::string& model) {
  return model.find('#') != std::string::npos;
}

}  // namespace weightlane::prod
