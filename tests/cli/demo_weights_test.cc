// Goal: the demo's verification is to be believed: right bytes pass, and one wrong, old, mixed or
// moved byte fails, with weights that are made and with weights from a file.
// Method: shards loaded, trained to a version and verified; then damaged in each of those ways.
#include "prod/demo_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>

namespace weightlane::prod {
namespace {

using ::testing::HasSubstr;

std::vector<uint8_t> at_version(const DemoShard& shard, uint64_t version) {
  std::vector<uint8_t> memory(demo_memory_bytes(shard.bytes));
  EXPECT_TRUE(demo_load(shard, memory).ok());
  // In steps, as a trainer gets there.
  for (uint64_t step = 0; step < version; ++step) demo_train(memory, step, step + 1);
  return memory;
}

bool right(const DemoShard& shard, const std::vector<uint8_t>& memory, uint64_t version) {
  Result<DemoVerdict> verdict = demo_verify(shard, memory, version);
  EXPECT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->wrong_bytes == 0, verdict->hash == verdict->expected_hash);
  return verdict->wrong_bytes == 0;
}

void expect_believable(const DemoShard& shard) {
  const std::vector<uint8_t> second = at_version(shard, 2);
  const std::vector<uint8_t> third = at_version(shard, 3);
  EXPECT_TRUE(right(shard, second, 2));
  EXPECT_TRUE(right(shard, third, 3));
  EXPECT_FALSE(right(shard, second, 3));
  EXPECT_FALSE(right(shard, std::vector<uint8_t>(second.size()), 2));
  for (const size_t at : {size_t{0}, shard.bytes / 2, shard.bytes - 1}) {
    std::vector<uint8_t> damaged = second;
    damaged[at] = static_cast<uint8_t>(damaged[at] + 1);
    Result<DemoVerdict> verdict = demo_verify(shard, damaged, 2);
    ASSERT_TRUE(verdict.ok());
    EXPECT_EQ(verdict->wrong_bytes, 1u);
    EXPECT_EQ(verdict->first_wrong, at);
  }
  std::vector<uint8_t> torn = third;
  std::memcpy(torn.data() + 8, second.data() + 8, 8);
  EXPECT_FALSE(right(shard, torn, 3));
  std::vector<uint8_t> moved = second;
  std::memcpy(moved.data(), second.data() + 16, 16);
  EXPECT_FALSE(right(shard, moved, 2));
}

void expect_whole(const std::vector<DemoShard>& shards, uint64_t bytes) {
  uint64_t sum = 0;
  for (const DemoShard& shard : shards) {
    EXPECT_FALSE(shard.tensors.empty());
    uint64_t filled = 0;
    for (const SafetensorsEntry& entry : shard.tensors) {
      EXPECT_EQ(entry.begin, filled);
      filled = entry.end;
    }
    EXPECT_EQ(filled, shard.bytes);
    sum += shard.bytes;
  }
  EXPECT_EQ(sum, bytes);
}

TEST(DemoWeights, MadeWeightsAreVerifiedToTheByte) {
  Result<std::vector<DemoShard>> shards = demo_shards_of_size(3 << 20, 3);
  ASSERT_TRUE(shards.ok());
  ASSERT_EQ(shards->size(), 3u);
  expect_whole(*shards, 3 << 20);
  for (const DemoShard& shard : *shards) expect_believable(shard);
  std::vector<uint8_t> other = at_version((*shards)[0], 2);
  other.resize(demo_memory_bytes((*shards)[1].bytes));
  EXPECT_FALSE(right((*shards)[1], other, 2)) << "another shard's bytes";
}

TEST(DemoWeights, AFilesWeightsAreVerifiedToTheByte) {
  std::string folder = std::filesystem::temp_directory_path() / "weightlane-demo-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  SafetensorsLayout layout;
  std::vector<uint8_t> data;
  for (int i = 0; i < 5; ++i) {
    const uint64_t bytes =
        100'003u * static_cast<uint64_t>(i + 1);  // odd, so shards do not begin at words
    layout.tensors.push_back(
        {"t" + std::to_string(i), "U8", {bytes}, data.size(), data.size() + bytes});
    for (uint64_t j = 0; j < bytes; ++j)
      data.push_back(static_cast<uint8_t>(j * 7 + static_cast<uint64_t>(i)));
  }
  layout.data_bytes = data.size();
  const std::string path = folder + "/weights.safetensors";
  ASSERT_TRUE(write_safetensors(path, layout, data).ok());
  for (const uint32_t count : {1u, 2u, 5u}) {
    Result<std::vector<DemoShard>> shards = demo_shards_of_file(path, count);
    ASSERT_TRUE(shards.ok()) << shards.error().message;
    expect_whole(*shards, data.size());
    uint64_t at = 0;
    for (const DemoShard& shard : *shards) {
      // Version 0 is the file.
      const std::vector<uint8_t> loaded = at_version(shard, 0);
      EXPECT_EQ(std::memcmp(loaded.data(), data.data() + at, shard.bytes), 0);
      at += shard.bytes;
      expect_believable(shard);
    }
  }
  EXPECT_THAT(demo_shards_of_file(path, 6).error().message, HasSubstr("5 tensors"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace weightlane::prod
