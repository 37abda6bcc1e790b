// Goal: a shard's tensors become the same stream on both sides, and what cannot be one is refused.
// Method: known cases: canonical order, slices, merged memory, mistakes, sizes at the edges, and
// 50,000 tensors under a bar. Random layouts: layout_prop_test.cc.
#include "ros/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace weightlane::ros::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kGiB = 1ull << 30;

TensorSpec tensor(std::string name, uint64_t address, uint64_t bytes) {
  return {std::move(name), "U8", {bytes}, {address, bytes, net::Device::kHost, 0}};
}
Layout built(const std::vector<TensorSpec>& tensors, uint64_t slice_bytes = 4 * kMiB) {
  Result<Layout> layout = Layout::build(tensors, slice_bytes);
  EXPECT_TRUE(layout.ok()) << (layout.ok() ? "" : layout.error().message);
  return layout.ok() ? std::move(layout).value() : Layout{};
}
std::string refused(const std::vector<TensorSpec>& tensors, uint64_t slice_bytes = 4 * kMiB) {
  Result<Layout> layout = Layout::build(tensors, slice_bytes);
  EXPECT_FALSE(layout.ok());
  if (layout.ok()) return "";
  EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
  return layout.error().message;
}

TEST(Layout, SmallTensorsComeFirstEachInTheOrderGiven) {
  const Layout layout = built({tensor("big", 0x1000'0000, 2 * kMiB), tensor("a", 0x1000, 10),
                               tensor("bigger", 0x2000'0000, 3 * kMiB),
                               tensor("b", 0x2000, 2 * kMiB - 1), tensor("c", 0x900, 5)});
  std::vector<std::string> names;
  for (uint32_t i = 0; i < 5; ++i) names.push_back(layout.tensor_name(i));
  EXPECT_THAT(names, ::testing::ElementsAre("a", "b", "c", "big", "bigger"));
  EXPECT_EQ(layout.tensor_bytes(1), 2 * kMiB - 1);
  EXPECT_EQ(layout.summary().tensors, 5u);
  EXPECT_EQ(layout.summary().bytes, layout.slices().back().stream_end);
}

// FieldReport21_: slices of one byte, odd ones, and larger than the tensor.
TEST(Layout, FieldReport21_SlicesOfAnySize) {
  for (const uint64_t slice : {1ull, 7ull, 100ull, 4096ull, 1'000'000ull}) {
    const Layout layout = built({tensor("a", 0x1000, 100), tensor("b", 0x2000, 33)}, slice);
    uint64_t stream = 0;
    uint64_t in_tensor[2] = {0, 0};
    for (const Slice& piece : layout.slices()) {
      EXPECT_LE(piece.length, slice);
      EXPECT_GT(piece.length, 0u);
      EXPECT_EQ(piece.tensor_offset, in_tensor[piece.tensor]);
      in_tensor[piece.tensor] += piece.length;
      stream += piece.length;
      EXPECT_EQ(piece.stream_end, stream);
    }
    EXPECT_EQ(in_tensor[0], 100u);
    EXPECT_EQ(in_tensor[1], 33u);
    EXPECT_EQ(layout.slices().size(), (99 / slice + 1) + (32 / slice + 1));
  }
}

TEST(Layout, SlicesBelowCountsWholeOnesOnly) {
  const Layout layout = built({tensor("a", 0x1000, 100), tensor("b", 0x2000, 33)}, 40);
  const std::pair<uint64_t, size_t> rows[] = {{0, 0},   {39, 0},  {40, 1},  {99, 2},   {100, 3},
                                              {132, 3}, {133, 4}, {134, 4}, {~0ull, 4}};
  for (const auto& [bytes, slices] : rows) EXPECT_EQ(layout.slices_below(bytes), slices) << bytes;
}

TEST(Layout, TouchingMemoryIsRegisteredOnce) {
  const Layout layout =
      built({tensor("c", 0x3000, 0x1000), tensor("a", 0x1000, 0x1000), tensor("b", 0x2000, 0x1000),
             tensor("far", 0x9000, 0x10), tensor("empty", 0x5000, 0)});
  ASSERT_EQ(layout.ranges().size(), 2u);
  EXPECT_EQ(layout.ranges()[0].address, 0x1000u);
  EXPECT_EQ(layout.ranges()[0].length, 0x3000u);
  EXPECT_EQ(layout.places()[0], (net::TensorPlace{0, 0x2000}));
  EXPECT_EQ(layout.places()[1], (net::TensorPlace{0, 0}));
  EXPECT_EQ(layout.places()[2], (net::TensorPlace{0, 0x1000}));
  EXPECT_EQ(layout.places()[3], (net::TensorPlace{1, 0}));
}

TEST(Layout, DevicesAreApart) {
  TensorSpec host = tensor("host", 0x1000, 0x1000);
  TensorSpec gpu = tensor("gpu", 0x1800, 0x1000);  // same numbers, other memory
  gpu.memory.device = net::Device::kCuda;
  TensorSpec gpu1 = tensor("gpu1", 0x2800, 0x1000);
  gpu1.memory.device = net::Device::kCuda;
  gpu1.memory.device_index = 1;
  EXPECT_EQ(built({host, gpu, gpu1}).ranges().size(), 3u);
}

TEST(Layout, MistakesAreNamed) {
  EXPECT_THAT(refused({tensor("w", 0x1000, 8), tensor("v", 0x2000, 8), tensor("w", 0x3000, 8)}),
              HasSubstr("two tensors are named \"w\""));
  EXPECT_THAT(refused({tensor("a", 0x1000, 0x101), tensor("b", 0x1100, 8)}),
              HasSubstr("\"a\" and \"b\" overlap"));
  EXPECT_THAT(refused({tensor("a", 0x1000, 0x100), tensor("b", 0x1100, 0x100),
                       tensor("c", 0x11ff, 8)}),  // into a merged range
              HasSubstr("\"b\" and \"c\" overlap"));
  EXPECT_THAT(refused({tensor("a", 0x1000, 8), tensor("b", 0x1000, 8)}), HasSubstr("overlap"));
  EXPECT_THAT(refused({tensor("a", ~0ull - 4, 100)}), HasSubstr("\"a\" wraps around"));
  EXPECT_THAT(refused({tensor("a", 0x1000, 8)}, 0), HasSubstr("slice_bytes is 0"));
}

TEST(Layout, EmptyTensorsCountAndCostNothing) {
  const Layout layout =
      built({tensor("e1", 0, 0), tensor("a", 0x1000, 8), tensor("e2", 0x1000, 0)});
  EXPECT_EQ(layout.summary().tensors, 3u);
  EXPECT_EQ(layout.slices().size(), 1u);
  EXPECT_EQ(layout.ranges().size(), 1u);
  const Layout none = built({});
  EXPECT_EQ(none.summary().bytes, 0u);
  EXPECT_TRUE(none.slices().empty());
  EXPECT_EQ(none.slices_below(100), 0u);
  EXPECT_NE(none.summary(), built({tensor("e1", 0, 0)}).summary());
}

TEST(Layout, TheDigestIsOfNamesTypesShapesAndOrderNotOfAddresses) {
  const std::vector<TensorSpec> base{tensor("a", 0x1000, 16), tensor("b", 0x2000, 16)};
  const net::LayoutSummary summary = built(base).summary();
  EXPECT_EQ(summary, built({tensor("a", 0x9000, 16), tensor("b", 0x5000, 16)}, 7).summary());
  EXPECT_NE(summary, built({base[1], base[0]}).summary());
  std::vector<TensorSpec> other = base;
  other[0].dtype = "I8";
  EXPECT_NE(summary, built(other).summary());
  other = base;
  other[0].shape = {4, 4};
  EXPECT_NE(summary, built(other).summary());
  other = base;
  other[0].name = "a2";
  EXPECT_NE(summary, built(other).summary());
  other[0].name = "ab";
  other[0].dtype = "U";
  std::vector<TensorSpec> shifted = base;
  shifted[0].name = "a";
  shifted[0].dtype = "bU";
  EXPECT_NE(built(other).summary(), built(shifted).summary());
}

TEST(Layout, OffsetsBeyondFourGiB) {
  const Layout layout = built(
      {tensor("a", 1ull << 40, 5 * kGiB + 3), tensor("b", (1ull << 40) + 5 * kGiB + 3, 6 * kGiB)},
      kGiB);
  ASSERT_EQ(layout.ranges().size(), 1u);
  EXPECT_EQ(layout.places()[1].offset, 5 * kGiB + 3);
  EXPECT_EQ(layout.slices()[5].tensor_offset, 5 * kGiB);
  EXPECT_EQ(layout.slices()[5].length, 3u);
  EXPECT_EQ(layout.slices().back().stream_end, 11 * kGiB + 3);
  EXPECT_EQ(layout.slices_below(11 * kGiB + 2), layout.slices().size() - 1);
}

// FieldReport20_: many named tensors. The bar is wide: it guards against a quadratic mistake.
TEST(Layout, FieldReport20_FiftyThousandTensors) {
  std::vector<TensorSpec> tensors;
  for (uint64_t i = 0; i < 50'000; ++i)
    tensors.push_back(tensor("model.layers." + std::to_string(i) + ".weight",
                             0x10'0000'0000 + (i * 7919 % 50'000) * 0x1000, 0x1000));
  const auto start = std::chrono::steady_clock::now();
  const Layout layout = built(tensors);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, std::chrono::seconds(3));
  EXPECT_EQ(layout.ranges().size(), 1u);
  EXPECT_EQ(layout.slices().size(), 50'000u);
  EXPECT_EQ(layout.summary().bytes, 50'000u * 0x1000);
}

}  // namespace
}  // namespace weightlane::ros::testing
