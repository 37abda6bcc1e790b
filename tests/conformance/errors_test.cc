// Goal: what goes wrong is told as wrong, once, and nothing lands after a plane said that nothing
// can. Method: stale, foreign and out-of-range names; fences; regions and pairs destroyed under
// READs. Which error comes is left to the plane where the contract leaves it; that one comes, and
// in what order, is not.
#include <algorithm>

#include "flow/task_set.h"
#include "tests/conformance/pair.h"

namespace weightlane::conformance {
namespace {

constexpr uint64_t kMiB = 1ull << 20;

// Posts one READ that must fail, by completion or by being refused, then checks that the pair is
// dead.
Task<CompletionStatus> fails(Conformance* self, Link* link, ReadWork work) {
  const PostResult posted = link->pair->post_read(work);
  if (posted == PostResult::kBroken) co_return CompletionStatus::kFlushed;
  EXPECT_EQ(posted, PostResult::kPosted);
  const std::optional<Completion> completion = co_await Conformance::next(self, link);
  if (!completion) co_return CompletionStatus::kSuccess;
  EXPECT_EQ(completion->work_id, work.work_id);
  EXPECT_NE(completion->status, CompletionStatus::kSuccess);
  co_return completion->status;
}

// After an error: refused at once, or flushed.
Task<void> is_dead(Conformance* self, Link* link, ReadWork work) {
  work.work_id = 9999;
  const PostResult posted = link->pair->post_read(work);
  if (posted == PostResult::kBroken) co_return;
  EXPECT_EQ(posted, PostResult::kPosted);
  const std::optional<Completion> completion = co_await Conformance::next(self, link);
  REQUIRE(completion.has_value());
  EXPECT_EQ(completion->work_id, 9999u);
  EXPECT_EQ(completion->status, CompletionStatus::kFlushed);
}

// A link with a region on each side, and a READ of all of it.
struct Scene {
  Memory from;
  Memory into;
  Link link;
  ReadWork work;
};

Task<Scene> scene(Conformance* self, uint64_t bytes) {
  Scene result;
  result.from = co_await Conformance::memory(&self->source(), bytes);
  result.into = co_await Conformance::memory(&self->reader(), bytes);
  self->source().write(result.from.range, 0, pattern(11, 0, bytes));
  result.link = co_await Conformance::connect(self);
  if (result.link.pair != nullptr) {
    result.work.work_id = 1;
    result.work.into = result.into.region;
    result.work.from = result.link.passive->describe(result.from.region);
    result.work.length = std::min(bytes, result.link.pair->capabilities().max_read_bytes);
  }
  co_return result;
}

Task<void> beyond_remote(Conformance* self) {
  Scene s = co_await scene(self, 64 * 1024);
  REQUIRE(s.link.pair != nullptr);
  ReadWork wrong = s.work;
  wrong.from_offset = 1;  // one byte beyond the end
  const CompletionStatus status = co_await fails(self, &s.link, wrong);
  EXPECT_EQ(net::classify(status), net::ErrorClass::kRemote) << completion_status_name(status);
  co_await is_dead(self, &s.link, s.work);
  co_await Conformance::destroy(self, &s.link);

  Link second = co_await Conformance::connect(self);
  REQUIRE(second.pair != nullptr);
  wrong.from = second.passive->describe(s.from.region);
  wrong.from_offset = ~0ull - 7;  // and what overflows
  wrong.length = 16;
  co_await fails(self, &second, wrong);
  co_await Conformance::destroy(self, &second);
}

TEST_P(Conformance, FieldReport32_RangesBeyondTheSourcesRegionAreRefused) {
  if (!factory().checks_ranges) GTEST_SKIP() << "this plane does not look";
  run(&beyond_remote);
}

Task<void> made_up_region(Conformance* self) {
  Scene s = co_await scene(self, 4096);
  REQUIRE(s.link.pair != nullptr);
  ReadWork wrong = s.work;
  wrong.from.key ^= 0x5a5a'5a00;
  co_await fails(self, &s.link, wrong);
  co_await is_dead(self, &s.link, s.work);
  co_await Conformance::destroy(self, &s.link);
}

TEST_P(Conformance, FieldReport32_ARegionNobodyRegisteredIsRefused) { run(&made_up_region); }

Task<void> beyond_local(Conformance* self) {
  Scene s = co_await scene(self, 64 * 1024);
  REQUIRE(s.link.pair != nullptr);
  const Bytes before = self->reader().read(s.into.range, 0, 64 * 1024);
  ReadWork wrong = s.work;
  wrong.into_offset = 1;
  const CompletionStatus status = co_await fails(self, &s.link, wrong);
  EXPECT_NE(net::classify(status), net::ErrorClass::kNone);
  co_await is_dead(self, &s.link, s.work);
  co_await Conformance::destroy(self, &s.link);
  EXPECT_TRUE(self->reader().read(s.into.range, 0, 64 * 1024) == before);
}

TEST_P(Conformance, FieldReport31_LandingOutsideTheRegistrationIsRefused) { run(&beyond_local); }

Task<void> unknown_local(Conformance* self) {
  Scene s = co_await scene(self, 4096);
  REQUIRE(s.link.pair != nullptr);
  ReadWork wrong = s.work;
  wrong.into = RegionId{0x7777'7777};
  co_await fails(self, &s.link, wrong);
  co_await Conformance::destroy(self, &s.link);
}

TEST_P(Conformance, AnUnknownDestinationIsRefused) { run(&unknown_local); }

Task<void> too_long(Conformance* self) {
  Scene s = co_await scene(self, 4096);
  REQUIRE(s.link.pair != nullptr);
  ReadWork wrong = s.work;
  wrong.length = s.link.pair->capabilities().max_read_bytes + 1;
  co_await fails(self, &s.link, wrong);
  co_await Conformance::destroy(self, &s.link);
}

TEST_P(Conformance, AReadOverTheMaximumIsRefused) { run(&too_long); }

Task<void> stale(Conformance* self) {
  Scene s = co_await scene(self, 256 * 1024);
  REQUIRE(s.link.pair != nullptr);
  EXPECT_EQ((co_await Conformance::read(self, &s.link, s.work)).status, CompletionStatus::kSuccess);
  co_await self->source().plane().deregister(s.from.region);
  // The same memory under a new name: the old one stays dead.
  const Result<RegionId> again = co_await self->source().plane().register_memory(s.from.range);
  REQUIRE(again.ok());
  EXPECT_NE(again.value(), s.from.region);
  s.work.work_id = 2;
  const CompletionStatus status = co_await fails(self, &s.link, s.work);
  EXPECT_EQ(net::classify(status), net::ErrorClass::kRemote) << completion_status_name(status);
  co_await is_dead(self, &s.link, s.work);
  co_await Conformance::destroy(self, &s.link);
}

TEST_P(Conformance, AStaleRegionIsRefused) {
  if (!factory().refuses_stale_regions)
    GTEST_SKIP() << "C6 allows other bytes, and so does this plane";
  run(&stale);
}

Task<void> flush_in_order(Conformance* self) {
  Scene s = co_await scene(self, kMiB);
  REQUIRE(s.link.pair != nullptr);
  const uint64_t count = std::min(16u, s.link.pair->capabilities().max_outstanding_reads);
  const uint64_t wrong_one = count / 3;
  uint64_t posted = 0;
  for (; posted < count; ++posted) {
    ReadWork work = s.work;
    work.work_id = posted;
    work.length = kMiB / count;
    work.into_offset = work.from_offset = posted * work.length;
    if (posted == wrong_one) work.from.key ^= 0x1234'5600;
    const PostResult result = s.link.pair->post_read(work);
    if (posted > wrong_one && result == PostResult::kBroken) break;  // it was quick
    REQUIRE(result == PostResult::kPosted);
  }
  bool failed = false;
  for (uint64_t i = 0; i < posted; ++i) {
    const std::optional<Completion> completion = co_await Conformance::next(self, &s.link);
    REQUIRE(completion.has_value());
    if (!failed && completion->status == CompletionStatus::kSuccess) {
      EXPECT_LT(completion->work_id, wrong_one);
    } else if (!failed) {
      failed = true;
      EXPECT_EQ(completion->work_id, wrong_one);
    } else {
      EXPECT_EQ(completion->status, CompletionStatus::kFlushed);
      EXPECT_EQ(completion->work_id, i) << "flushed in the order of posting";
    }
  }
  EXPECT_TRUE(failed);
  EXPECT_FALSE(s.link.pair->poll().has_value());
  co_await is_dead(self, &s.link, s.work);
  co_await Conformance::destroy(self, &s.link);
}

TEST_P(Conformance, AfterTheFirstErrorEverythingIsFlushedInOrder) { run(&flush_in_order); }

Task<void> new_pair(Conformance* self) {
  Scene s = co_await scene(self, 128 * 1024);
  REQUIRE(s.link.pair != nullptr);
  ReadWork wrong = s.work;
  wrong.from.key ^= 0x1234'5600;
  co_await fails(self, &s.link, wrong);
  co_await Conformance::destroy(self, &s.link);
  // Dead pairs are replaced, not revived (R6).
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  s.work.from = link.passive->describe(s.from.region);
  EXPECT_EQ((co_await Conformance::read(self, &link, s.work)).status, CompletionStatus::kSuccess);
  EXPECT_TRUE(self->reader().read(s.into.range, 0, 128 * 1024) == pattern(11, 0, 128 * 1024));
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, AfterAnErrorANewPairReads) { run(&new_pair); }

Task<void> fence(Conformance* self) {
  Scene s = co_await scene(self, 256 * 1024);
  REQUIRE(s.link.pair != nullptr);
  EXPECT_EQ((co_await Conformance::read(self, &s.link, s.work)).status, CompletionStatus::kSuccess);
  self->acceptor().pairs.clear();
  s.work.work_id = 2;
  co_await fails(self, &s.link, s.work);
  co_await is_dead(self, &s.link, s.work);
  co_await Conformance::destroy(self, &s.link);
  // The memory itself is as good as before.
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  s.work.from = link.passive->describe(s.from.region);
  EXPECT_EQ((co_await Conformance::read(self, &link, s.work)).status, CompletionStatus::kSuccess);
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, ADroppedPassivePairFailsLaterReads) { run(&fence); }

Task<void> fence_under_reads(Conformance* self) {
  Scene s = co_await scene(self, 8 * kMiB);
  REQUIRE(s.link.pair != nullptr);
  uint64_t posted = 0;
  s.work.length = kMiB;
  for (; posted < 8; ++posted) {
    s.work.work_id = posted;
    s.work.into_offset = s.work.from_offset = posted * kMiB;
    REQUIRE(s.link.pair->post_read(s.work) == PostResult::kPosted);
  }
  self->acceptor().pairs.clear();
  // Those under way may succeed; each ends, and no success follows an error.
  bool failed = false;
  for (uint64_t i = 0; i < posted; ++i) {
    const std::optional<Completion> completion = co_await Conformance::next(self, &s.link);
    REQUIRE(completion.has_value());
    const bool success = completion->status == CompletionStatus::kSuccess;
    EXPECT_FALSE(failed && success);
    failed = failed || !success;
  }
  co_await Conformance::destroy(self, &s.link);
}

TEST_P(Conformance, AFenceUnderReadsEndsThemAll) { run(&fence_under_reads); }

Task<void> destroy_under_reads(Conformance* self) {
  constexpr uint64_t kSize = 16 * kMiB;
  const Bytes poison = pattern(5, 0, kSize);
  for (int round = 0; round < 5; ++round) {
    Scene s = co_await scene(self, kSize);
    REQUIRE(s.link.pair != nullptr);
    s.work.length = kSize / 64;
    uint64_t posted = 0;
    for (; posted < 64; ++posted) {
      s.work.work_id = posted;
      s.work.into_offset = s.work.from_offset = posted * s.work.length;
      if (s.link.pair->post_read(s.work) != PostResult::kPosted) break;
    }
    EXPECT_GT(posted, 0u);
    if (round % 2 == 1) co_await Conformance::next(self, &s.link);  // the transfer has begun
    co_await Conformance::destroy(self, &s.link);
    self->reader().write(s.into.range, 0, poison);
    co_await self->reader().runtime().sleep_for(millis(20));
    EXPECT_TRUE(self->reader().read(s.into.range, 0, kSize) == poison)
        << "something landed after destroy()";
    co_await self->reader().plane().deregister(s.into.region);
    co_await self->source().plane().deregister(s.from.region);
    self->reader().free_memory(s.into.range);
    self->source().free_memory(s.from.range);
  }
}

TEST_P(Conformance, FieldReport03_NothingLandsAfterDestroy) { run(&destroy_under_reads); }

Task<void> destroy_idle(Conformance* self) {
  Link idle = co_await Conformance::connect(self);
  REQUIRE(idle.pair != nullptr);
  co_await Conformance::destroy(self, &idle);
  // One whose source has gone is destroyed like any other.
  Link orphan = co_await Conformance::connect(self);
  REQUIRE(orphan.pair != nullptr);
  self->acceptor().pairs.clear();
  co_await Conformance::destroy(self, &orphan);
}

TEST_P(Conformance, IdleAndOrphanedPairsAreDestroyed) { run(&destroy_idle); }

Task<void> deregister_under_reads(Conformance* self) {
  constexpr uint64_t kSize = 16 * kMiB;
  for (int round = 0; round < 4; ++round) {
    Scene s = co_await scene(self, kSize);
    REQUIRE(s.link.pair != nullptr);
    uint64_t posted = 0;
    s.work.length = kSize / 8;
    for (; posted < 8; ++posted) {
      s.work.work_id = posted;
      s.work.into_offset = s.work.from_offset = posted * s.work.length;
      REQUIRE(s.link.pair->post_read(s.work) == PostResult::kPosted);
    }
    if (round % 2 == 1) {
      const std::optional<Completion> first = co_await Conformance::next(self, &s.link);
      REQUIRE(first.has_value() && first->status == CompletionStatus::kSuccess);
      --posted;
    }
    co_await self->source().plane().deregister(s.from.region);
    // No READ of ours touches it any more: the application may free it.
    self->source().free_memory(s.from.range);
    bool failed = false;
    for (; posted > 0; --posted) {
      const std::optional<Completion> completion = co_await Conformance::next(self, &s.link);
      REQUIRE(completion.has_value());
      const bool success = completion->status == CompletionStatus::kSuccess;
      EXPECT_FALSE(failed && success);
      failed = failed || !success;
    }
    co_await Conformance::destroy(self, &s.link);
    co_await self->reader().plane().deregister(s.into.region);
    self->reader().free_memory(s.into.range);
  }
}

TEST_P(Conformance, ARegionMayBeDeregisteredUnderReads) { run(&deregister_under_reads); }

}  // namespace
}  // namespace weightlane::conformance
