// Goal: a READ lands the right bytes, all of them and no others, and says so exactly once.
// Method: bytes recognisable by position on the source, a poison on the reader; READs of many
// shapes, one at a time and as many as the plane takes; both sides compared.
#include <algorithm>
#include <set>

#include "flow/task_set.h"
#include "tests/conformance/pair.h"

namespace weightlane::conformance {
namespace {

constexpr uint64_t kMiB = 1ull << 20;

Task<void> many_shapes(Conformance* self) {
  constexpr uint64_t kSize = 6 * kMiB;
  const Memory from = co_await Conformance::memory(&self->source(), kSize);
  const Memory into = co_await Conformance::memory(&self->reader(), kSize);
  self->source().write(from.range, 0, pattern(1, 0, kSize));
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  EXPECT_FALSE(link.pair->transport().empty());
  const RemoteRegion remote = link.passive->describe(from.region);
  uint64_t work_id = 100;
  constexpr uint64_t kLengths[] = {1,    3,    7,    8,      9,        63,      512,
                                   4095, 4096, 4097, 65'537, kMiB + 1, 4 * kMiB};
  for (const uint64_t length : kLengths) {
    for (const uint64_t offset : {0, 1, 8, 4093}) {
      const uint64_t landing = (offset * 3) % 4099 + 16;
      const Bytes poison = pattern(99 + work_id, 0, length + 32);
      self->reader().write(into.range, landing - 16, poison);
      ReadWork work;
      work.work_id = ++work_id;
      work.into = into.region;
      work.into_offset = landing;
      work.from = remote;
      work.from_offset = offset;
      work.length = length;
      const Completion completion = co_await Conformance::read(self, &link, work);
      REQUIRE(completion.status == CompletionStatus::kSuccess);
      Bytes expected = poison;
      const Bytes bytes = pattern(1, offset, length);
      std::copy(bytes.begin(), bytes.end(), expected.begin() + 16);
      const Bytes landed = self->reader().read(into.range, landing - 16, length + 32);
      EXPECT_TRUE(landed == expected) << length << " bytes from " << offset;
    }
  }
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, ReadsOfManyShapesLandTheRightBytesAndNoOthers) { run(&many_shapes); }

Task<void> many_outstanding(Conformance* self) {
  constexpr uint64_t kPiece = 64 * 1024 + 8;
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  const uint32_t limit = link.pair->capabilities().max_outstanding_reads;
  REQUIRE(limit > 0 && limit <= 1024);
  const Memory from = co_await Conformance::memory(&self->source(), kPiece * limit);
  const Memory into = co_await Conformance::memory(&self->reader(), kPiece * limit);
  const Bytes bytes = pattern(2, 0, kPiece * limit);
  self->source().write(from.range, 0, bytes);
  ReadWork work;
  work.into = into.region;
  work.from = link.passive->describe(from.region);
  work.length = kPiece;
  for (int round = 0; round < 2; ++round) {
    std::multiset<uint64_t> due;
    for (uint32_t i = 0; i < limit; ++i) {
      work.work_id = 1000 * static_cast<uint64_t>(round) + i;
      work.into_offset = work.from_offset = kPiece * i;
      REQUIRE(link.pair->post_read(work) == PostResult::kPosted);
      due.insert(work.work_id);
    }
    // Nothing was polled, so nothing has left the queue.
    EXPECT_EQ(link.pair->post_read(work), PostResult::kQueueFull);
    while (!due.empty()) {
      const std::optional<Completion> completion = co_await Conformance::next(self, &link);
      REQUIRE(completion.has_value());
      EXPECT_EQ(completion->status, CompletionStatus::kSuccess);
      EXPECT_EQ(due.erase(completion->work_id), 1u) << completion->work_id;
    }
    EXPECT_FALSE(link.pair->poll().has_value());
    EXPECT_TRUE(self->reader().read(into.range, 0, bytes.size()) == bytes);
    self->reader().write(into.range, 0, Bytes(bytes.size()));
  }
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, AFullQueueRefusesAndEveryWorkIdCompletesOnce) { run(&many_outstanding); }

Task<void> checksums(Conformance* self) {
  constexpr uint64_t kSize = 3 * kMiB + 13;
  const Memory from = co_await Conformance::memory(&self->source(), kSize);
  const Memory into = co_await Conformance::memory(&self->reader(), kSize);
  self->source().write(from.range, 0, pattern(3, 0, kSize));
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  ReadWork work;
  work.into = into.region;
  work.from = link.passive->describe(from.region);
  work.want_checksum = true;
  std::set<uint64_t> seen;
  for (const uint64_t length :
       {uint64_t{1}, uint64_t{100}, uint64_t{70'001}, 2 * kMiB, kSize - 5}) {
    work.work_id = length;
    work.from_offset = 5;
    work.into_offset = 2;
    work.length = length;
    const Completion completion = co_await Conformance::read(self, &link, work);
    REQUIRE(completion.status == CompletionStatus::kSuccess);
    const Result<uint64_t> origin =
        co_await self->source().plane().checksum(from.region, 5, length);
    const Result<uint64_t> landed =
        co_await self->reader().plane().checksum(into.region, 2, length);
    REQUIRE(origin.ok() && landed.ok());
    EXPECT_EQ(completion.checksum, *origin) << length;
    EXPECT_EQ(completion.checksum, *landed) << length;
    seen.insert(completion.checksum);
  }
  EXPECT_EQ(seen.size(), 5u) << "other bytes have another checksum";
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, ChecksumsOfLandedBytesEqualTheSources) { run(&checksums); }

Task<void> words(Conformance* self) {
  net::DataPlane& at_source = self->source().plane();
  net::DataPlane& at_reader = self->reader().plane();
  const Result<RegionId> block = at_source.allocate_words(3);
  const Result<RegionId> landing = at_reader.allocate_words(3);
  REQUIRE(block.ok() && landing.ok());
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(at_source.load_word(*block, i), 0u);
  ReadWork work;
  work.into = *landing;
  work.from = link.passive->describe(*block);
  work.length = 24;
  for (uint64_t value = 1; value <= 200; ++value) {
    at_source.store_word(*block, 0, value);
    at_source.store_word(*block, 2, ~value);
    work.work_id = value;
    const Completion completion = co_await Conformance::read(self, &link, work);
    REQUIRE(completion.status == CompletionStatus::kSuccess);
    EXPECT_EQ(at_reader.load_word(*landing, 0), value);
    EXPECT_EQ(at_reader.load_word(*landing, 1), 0u);
    EXPECT_EQ(at_reader.load_word(*landing, 2), ~value);
  }
  // One word of several, into another place.
  work.work_id = 1;
  work.from_offset = 16;
  work.into_offset = 8;
  work.length = 8;
  const Completion completion = co_await Conformance::read(self, &link, work);
  EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
  EXPECT_EQ(at_reader.load_word(*landing, 1), at_source.load_word(*block, 2));
  co_await Conformance::destroy(self, &link);
  at_source.free_words(*block);
  at_reader.free_words(*landing);
}

TEST_P(Conformance, WordsAreReadAsStored) { run(&words); }

Task<void> store_for_ever(Conformance* self, RegionId block) {
  for (uint64_t i = 1;; ++i) {
    self->source().plane().store_word(block, 0, i << 32 | i);
    co_await self->source().runtime().yield();
  }
}

Task<void> words_whole(Conformance* self) {
  const Result<RegionId> block = self->source().plane().allocate_words(1);
  const Result<RegionId> landing = self->reader().plane().allocate_words(1);
  REQUIRE(block.ok() && landing.ok());
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  flow::TaskSet background(self->source().runtime());
  background.spawn(store_for_ever(self, *block), "store for ever");
  ReadWork work;
  work.into = *landing;
  work.from = link.passive->describe(*block);
  work.length = 8;
  uint64_t last = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    work.work_id = i;
    const Completion completion = co_await Conformance::read(self, &link, work);
    REQUIRE(completion.status == CompletionStatus::kSuccess);
    const uint64_t value = self->reader().plane().load_word(*landing, 0);
    EXPECT_EQ(value >> 32, value & 0xffff'ffff) << "a word was read in two halves";
    EXPECT_GE(value, last) << "READs one after the other went back in time";
    last = value;
  }
  background.cancel_all();
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, WordsAreReadWholeAndNeverGoBack) { run(&words_whole); }

Task<void> two_pairs(Conformance* self) {
  constexpr uint64_t kSize = 8 * kMiB;
  constexpr uint64_t kPiece = kMiB;
  const Memory from = co_await Conformance::memory(&self->source(), kSize);
  const Memory first_into = co_await Conformance::memory(&self->reader(), kSize);
  const Memory second_into = co_await Conformance::memory(&self->reader(), kSize);
  const Bytes bytes = pattern(4, 0, kSize);
  self->source().write(from.range, 0, bytes);
  Link first = co_await Conformance::connect(self);
  Link second = co_await Conformance::connect(self);
  REQUIRE(first.pair != nullptr && second.pair != nullptr);
  ReadWork work;
  work.length = kPiece;
  for (uint64_t i = 0; i < kSize / kPiece; ++i) {
    work.work_id = i;
    work.into_offset = work.from_offset = i * kPiece;
    work.into = first_into.region;
    work.from = first.passive->describe(from.region);
    REQUIRE(first.pair->post_read(work) == PostResult::kPosted);
    work.into = second_into.region;
    work.from = second.passive->describe(from.region);
    REQUIRE(second.pair->post_read(work) == PostResult::kPosted);
  }
  for (Link* link : {&first, &second}) {
    for (uint64_t i = 0; i < kSize / kPiece; ++i) {
      const std::optional<Completion> completion = co_await Conformance::next(self, link);
      REQUIRE(completion.has_value());
      EXPECT_EQ(completion->status, CompletionStatus::kSuccess);
    }
  }
  EXPECT_TRUE(self->reader().read(first_into.range, 0, kSize) == bytes);
  EXPECT_TRUE(self->reader().read(second_into.range, 0, kSize) == bytes);
  // The end of one is nothing to the other.
  co_await Conformance::destroy(self, &first);
  work.work_id = 77;
  const Completion completion = co_await Conformance::read(self, &second, work);
  EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
  co_await Conformance::destroy(self, &second);
}

TEST_P(Conformance, TwoPairsReadBesideEachOther) { run(&two_pairs); }

Task<void> big_offsets(Conformance* self) {
  constexpr uint64_t kFour = 4ull << 30;
  constexpr uint64_t kPiece = 64 * 1024;
  const Memory from = co_await Conformance::memory(&self->source(), kFour + 2 * kMiB);
  const Memory into = co_await Conformance::memory(&self->reader(), kPiece);
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  ReadWork work;
  work.into = into.region;
  work.from = link.passive->describe(from.region);
  work.length = kPiece;
  for (const uint64_t offset : {kFour - kPiece / 2, kFour + kPiece, kFour + kMiB, kFour / 2}) {
    self->source().write(from.range, offset, pattern(offset, 0, kPiece));
    work.work_id = work.from_offset = offset;
    const Completion completion = co_await Conformance::read(self, &link, work);
    REQUIRE(completion.status == CompletionStatus::kSuccess);
    EXPECT_TRUE(self->reader().read(into.range, 0, kPiece) == pattern(offset, 0, kPiece)) << offset;
  }
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, FieldReport30_OffsetsAboveFourGiB) {
  if (!factory().sparse_memory && factory().memory_limit_bytes < (5ull << 30)) {
    GTEST_SKIP() << "this world has not that much memory";
  }
  run(&big_offsets);
}

}  // namespace
}  // namespace weightlane::conformance
