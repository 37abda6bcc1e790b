// The demo's weights: base, training step and verification; see the header.
#include "prod/demo_weights.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace weightlane::prod {
namespace {

constexpr uint64_t kIndexFactor = 0x9e3779b97f4a7c15;
constexpr uint64_t kVersionFactor = 0xd1342543de82ef95;
constexpr size_t kBlockWords = 64 * 1024;  // verified at once: 512 KiB

// Two versions differ in every word: x ^ (x >> 29) is one to one, and so is its argument in
// `version`.
uint64_t mix(uint64_t version, uint64_t index) {
  if (version == 0) return 0;
  const uint64_t x = index * kIndexFactor + version * kVersionFactor;
  return x ^ (x >> 29);
}

uint64_t pattern_word(uint64_t seed, uint64_t index) {
  const uint64_t x = (index + 1) * kVersionFactor + seed * kIndexFactor;
  return x ^ (x >> 31);
}

// Memory as the words it consists of; compilers know memcpy of 8 bytes as a load.
uint64_t load(const uint8_t* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, 8);
  return word;
}
void store(uint8_t* into, uint64_t word) { std::memcpy(into, &word, 8); }

// Adds the mix of `version` to words [first, ...) that are at version 0.
void add_mix(std::span<uint8_t> words, uint64_t first, uint64_t version) {
  for (size_t i = 0; i < words.size() / 8; ++i) {
    uint8_t* word = words.data() + i * 8;
    store(word, load(word) + mix(version, first + i));
  }
}

// Reads a shard's base in order.
class Base {
 public:
  explicit Base(const DemoShard& shard) : shard_(shard) {}
  Base(const Base&) = delete;
  Base& operator=(const Base&) = delete;
  ~Base() {
    if (file_ >= 0) ::close(file_);
  }

  // Words [first, ...) of the base; beyond the shard's end they are 0.
  Result<Done> read(uint64_t first, std::span<uint8_t> into) {
    if (shard_.file.empty()) {
      for (size_t i = 0; i < into.size() / 8; ++i)
        store(into.data() + i * 8, pattern_word(shard_.pattern, first + i));
      return Done{};
    }
    if (file_ < 0) file_ = ::open(shard_.file.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0)
      return Error{ErrorCode::kInvalidArgument, shard_.file + ": " + std::strerror(errno)};
    const uint64_t at = first * 8;
    size_t wanted = static_cast<size_t>(std::min<uint64_t>(into.size(), shard_.bytes - at));
    std::memset(into.data() + wanted, 0, into.size() - wanted);
    for (size_t done = 0; done < wanted;) {
      const ssize_t got = ::pread(file_, into.data() + done, wanted - done,
                                  static_cast<off_t>(shard_.file_at + at + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        return Error{ErrorCode::kCorrupt, shard_.file + ": the file changed while it was read"};
      done += static_cast<size_t>(got);
    }
    return Done{};
  }

 private:
  const DemoShard& shard_;
  int file_ = -1;
};

struct HashDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using Hash = std::unique_ptr<XXH3_state_t, HashDeleter>;
Hash new_hash() {
  Hash hash(XXH3_createState());
  WL_ASSERT(hash != nullptr);
  XXH3_64bits_reset(hash.get());
  return hash;
}

// Consecutive groups of tensors, cut where the bytes so far pass the next share.
Result<std::vector<DemoShard>> cut(const SafetensorsLayout& layout, uint32_t shards,
                                   const std::string& what) {
  if (shards == 0 || layout.tensors.size() < shards) {
    return Error{ErrorCode::kInvalidArgument, what + " has " +
                                                  std::to_string(layout.tensors.size()) +
                                                  " tensors; --shards can be 1 to that"};
  }
  std::vector<DemoShard> out(shards);
  uint32_t current = 0;
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const size_t left = layout.tensors.size() - i;
    const bool share_full = layout.tensors[i].begin >= layout.data_bytes / shards * (current + 1);
    const bool others_need_rest = left == shards - current - 1;
    if (!out[current].tensors.empty() && current + 1 < shards && (share_full || others_need_rest))
      ++current;
    DemoShard& shard = out[current];
    if (shard.tensors.empty()) shard.file_at = layout.tensors[i].begin;
    SafetensorsEntry entry = layout.tensors[i];
    entry.begin -= shard.file_at;
    entry.end -= shard.file_at;
    shard.bytes = entry.end;
    shard.tensors.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

Result<std::vector<DemoShard>> demo_shards_of_file(const std::string& path, uint32_t shards) {
  Result<SafetensorsLayout> layout = read_safetensors_layout(path);
  if (!layout) return layout.error();
  Result<std::vector<DemoShard>> out = cut(*layout, shards, path);
  if (!out) return out;
  Result<uint64_t> data_at = safetensors_data_offset(path, *layout);
  if (!data_at) return data_at.error();
  for (DemoShard& shard : *out) {
    shard.file = path;
    shard.file_at += *data_at;
  }
  return out;
}

Result<std::vector<DemoShard>> demo_shards_of_size(uint64_t bytes, uint32_t shards) {
  constexpr uint64_t kBytesMin = 1 << 20;
  constexpr uint64_t kElement = 2;  // BF16
  if (bytes < kBytesMin) return Error{ErrorCode::kInvalidArgument, "--size is at least 1MiB"};
  // As many layers as there are shards, or more; a layer's four matrices share what the norms
  // leave.
  const uint64_t layers = std::max<uint64_t>(shards, std::clamp<uint64_t>(bytes >> 25, 4, 64));
  const uint64_t norm = 1024;  // elements
  SafetensorsLayout layout;
  const auto add = [&](std::string name, uint64_t elements) {
    SafetensorsEntry entry{std::move(name),
                           "BF16",
                           {elements},
                           layout.data_bytes,
                           layout.data_bytes + elements * kElement};
    layout.data_bytes = entry.end;
    layout.tensors.push_back(std::move(entry));
  };
  const uint64_t layer_bytes = bytes / layers / kElement * kElement;
  const uint64_t small = std::min<uint64_t>(norm, layer_bytes / kElement / 16);
  const uint64_t large = layer_bytes / kElement - small;
  for (uint64_t i = 0; i < layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    add(layer + "norm", small);
    add(layer + "attention", large / 3);
    add(layer + "mlp", i + 1 < layers ? large - large / 3 : (bytes - layout.data_bytes) / kElement);
  }
  Result<std::vector<DemoShard>> out = cut(layout, shards, "the model");
  if (!out) return out;
  for (uint32_t i = 0; i < shards; ++i) {
    (*out)[i].pattern = i + 1;
    (*out)[i].file_at = 0;
  }
  return out;
}

Result<Done> demo_load(const DemoShard& shard, std::span<uint8_t> memory) {
  WL_ASSERT_OP(memory.size(), ==, demo_memory_bytes(shard.bytes));
  return Base(shard).read(0, memory);
}

void demo_train(std::span<uint8_t> memory, uint64_t from_version, uint64_t to_version) {
  for (size_t i = 0; i < memory.size() / 8; ++i) {
    uint8_t* word = memory.data() + i * 8;
    store(word, load(word) - mix(from_version, i) + mix(to_version, i));
  }
}

Result<DemoVerdict> demo_verify(const DemoShard& shard, std::span<const uint8_t> memory,
                                uint64_t version) {
  WL_ASSERT_OP(memory.size(), ==, demo_memory_bytes(shard.bytes));
  const Hash hash = new_hash();
  const Hash expected_hash = new_hash();
  std::vector<uint8_t> expected(kBlockWords * 8);
  DemoVerdict verdict;
  Base base(shard);
  for (uint64_t at = 0; at < shard.bytes; at += expected.size()) {
    const std::span<uint8_t> block(expected.data(), static_cast<size_t>(std::min<uint64_t>(
                                                        expected.size(), memory.size() - at)));
    Result<Done> read = base.read(at / 8, block);
    if (!read) return read.error();
    add_mix(block, at / 8, version);
    const auto length = static_cast<size_t>(std::min<uint64_t>(block.size(), shard.bytes - at));
    XXH3_64bits_update(hash.get(), memory.data() + at, length);
    XXH3_64bits_update(expected_hash.get(), block.data(), length);
    if (std::memcmp(block.data(), memory.data() + at, length) == 0) continue;
    for (size_t i = 0; i < length; ++i) {
      if (block[i] == memory[at + i]) continue;
      if (verdict.wrong_bytes++ == 0) verdict.first_wrong = at + i;
    }
  }
  verdict.hash = XXH3_64bits_digest(hash.get());
  verdict.expected_hash = XXH3_64bits_digest(expected_hash.get());
  return verdict;
}

}  // namespace weightlane::prod
