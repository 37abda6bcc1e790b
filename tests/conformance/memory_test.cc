// Goal: registering is cheap, exact and final: an id names one range once, and 50,000 tensors are
// nothing special.
// Method: many regions in one allocation, registered and forgotten in rounds, READ by their names.
#include <set>

#include "tests/conformance/pair.h"

namespace weightlane::conformance {
namespace {

constexpr uint64_t kTensor = 64;  // bytes

MemoryRange part_of(MemoryRange range, uint64_t offset, uint64_t length) {
  range.address += offset;
  range.length = length;
  return range;
}

Task<void> register_rounds(Conformance* self, uint64_t count, int rounds) {
  net::DataPlane& plane = self->source().plane();
  const MemoryRange all = self->source().allocate(count * kTensor);
  self->source().write(all, 0, pattern(31, 0, count * kTensor));
  const Memory into = co_await Conformance::memory(&self->reader(), kTensor);
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  std::set<RegionId> ever;
  for (int round = 0; round < rounds; ++round) {
    std::vector<RegionId> regions;
    for (uint64_t i = 0; i < count; ++i) {
      const Result<RegionId> region =
          co_await plane.register_memory(part_of(all, i * kTensor, kTensor));
      REQUIRE(region.ok());
      regions.push_back(*region);
      EXPECT_TRUE(ever.insert(*region).second) << "an id came back";
    }
    for (uint64_t i = static_cast<uint64_t>(round); i < count; i += count / 5) {
      ReadWork work;
      work.work_id = i;
      work.into = into.region;
      work.from = link.passive->describe(regions[i]);
      work.length = kTensor;
      REQUIRE((co_await Conformance::read(self, &link, work)).status == CompletionStatus::kSuccess);
      EXPECT_TRUE(self->reader().read(into.range, 0, kTensor) == pattern(31, i * kTensor, kTensor));
    }
    for (const RegionId region : regions) co_await plane.deregister(region);
  }
  co_await Conformance::destroy(self, &link);
}

Task<void> ten_thousand(Conformance* self) { return register_rounds(self, 10'000, 3); }

TEST_P(Conformance, FieldReport17_TenThousandRegionsInRounds) { run(&ten_thousand); }

Task<void> fifty_thousand(Conformance* self) { return register_rounds(self, 50'000, 1); }

TEST_P(Conformance, FieldReport20_FiftyThousandRegions) { run(&fifty_thousand, seconds(120)); }

Task<void> nothing(Conformance* self) {
  net::DataPlane& plane = self->source().plane();
  MemoryRange range = self->source().allocate(4096);
  range.length = 0;
  const Result<RegionId> region = co_await plane.register_memory(range);
  EXPECT_FALSE(region.ok());
  EXPECT_FALSE(plane.allocate_words(0).ok());
  // Unknown ids are ignored, a second time too.
  co_await plane.deregister(RegionId{123'456'789});
  const Memory memory = co_await Conformance::memory(&self->source(), 4096);
  co_await plane.deregister(memory.region);
  co_await plane.deregister(memory.region);
}

TEST_P(Conformance, NothingIsNoRegionAndUnknownIdsAreIgnored) { run(&nothing); }

Task<void> checksum_ranges(Conformance* self) {
  net::DataPlane& plane = self->source().plane();
  const Memory memory = co_await Conformance::memory(&self->source(), 4096);
  self->source().write(memory.range, 0, pattern(1, 0, 4096));
  const Result<uint64_t> whole = co_await plane.checksum(memory.region, 0, 4096);
  const Result<uint64_t> again = co_await plane.checksum(memory.region, 0, 4096);
  REQUIRE(whole.ok() && again.ok());
  EXPECT_EQ(*whole, *again);
  self->source().write(memory.range, 4095, Bytes{static_cast<uint8_t>(~pattern(1, 4095, 1)[0])});
  const Result<uint64_t> changed = co_await plane.checksum(memory.region, 0, 4096);
  REQUIRE(changed.ok());
  EXPECT_NE(*whole, *changed);
  EXPECT_FALSE((co_await plane.checksum(memory.region, 1, 4096)).ok());
  co_await plane.deregister(memory.region);
  EXPECT_FALSE((co_await plane.checksum(memory.region, 0, 4096)).ok());
}

TEST_P(Conformance, ChecksumsCoverRegisteredBytesOnly) { run(&checksum_ranges); }

TEST_P(Conformance, WordsAreGivenBackAndAreZeroAgain) {
  net::DataPlane& plane = source().plane();
  std::set<RegionId> ever;
  for (int round = 0; round < 20; ++round) {
    std::vector<RegionId> blocks;
    for (uint32_t count : {1u, 2u, 8u, 9u, 64u, 1000u}) {
      const Result<RegionId> words = plane.allocate_words(count);
      ASSERT_TRUE(words.ok()) << words.error().message;
      EXPECT_TRUE(ever.insert(*words).second);
      for (uint32_t i = 0; i < count; ++i) {
        ASSERT_EQ(plane.load_word(*words, i), 0u);
        plane.store_word(*words, i, ~uint64_t{i});
      }
      EXPECT_EQ(plane.load_word(*words, count - 1), ~uint64_t{count - 1});
      blocks.push_back(*words);
    }
    for (const RegionId words : blocks) plane.free_words(words);
  }
}

}  // namespace
}  // namespace weightlane::conformance
