// The demo's weights: a model whose every byte, at every version, is known to everybody.
//
// Version 0 is the base: a safetensors file's own bytes, or a pattern where only a size was given.
// A training step to version v adds mix(v, i) to the i-th 64-bit word of a shard, in place of the
// mix of the version before. All words change in every step, two versions differ in every word, and
// a rollout can compute what it must have received without asking anyone: verify() reads the base
// again (from the disk, or makes it), adds the mix and compares, block by block. So one wrong,
// torn, old or swapped byte shows, and verification needs no second copy of the weights.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flow/result.h"
#include "prod/safetensors.h"

namespace weightlane::prod {

// One shard of the demo's model: which tensors, and where their base comes from.
struct DemoShard {
  std::vector<SafetensorsEntry> tensors;  // offsets within the shard
  uint64_t bytes = 0;
  uint64_t pattern = 0;  // the seed of the base where there is no file
  std::string file;      // empty: pattern
  uint64_t file_at = 0;  // of the shard's first byte
};

// Bytes of memory a shard needs: a few more than its tensors, so that whole words can be worked on.
constexpr uint64_t demo_memory_bytes(uint64_t shard_bytes) { return (shard_bytes + 7) / 8 * 8; }

// Cuts a model into shards of consecutive whole tensors, about equal in bytes. Errors: more shards
// than tensors, an unsound file.
Result<std::vector<DemoShard>> demo_shards_of_file(const std::string& path, uint32_t shards);
// A transformer of about this size, in BF16; small tensors among the large ones.
Result<std::vector<DemoShard>> demo_shards_of_size(uint64_t bytes, uint32_t shards);

// All of these work on demo_memory_bytes() bytes, 8-byte aligned.
Result<Done> demo_load(const DemoShard& shard, std::span<uint8_t> memory);  // version 0
void demo_train(std::span<uint8_t> memory, uint64_t from_version, uint64_t to_version);

struct DemoVerdict {
  uint64_t hash = 0;           // XXH3 of the shard's bytes as they are
  uint64_t expected_hash = 0;  // of the bytes as they must be
  uint64_t wrong_bytes = 0;
  uint64_t first_wrong = 0;  // offset in the shard
};
Result<DemoVerdict> demo_verify(const DemoShard& shard, std::span<const uint8_t> memory,
                                uint64_t version);

}  // namespace weightlane::prod
