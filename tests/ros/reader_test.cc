// Goal: a Reader accepts sealed bytes and no others (P1), ends in a bounded time whatever its
// source does (P6), never posts a READ outside of what both sides named, and leaves no queue pair
// behind. Method: a real Reader and real Sources over a data plane made by hand (fake_plane.h),
// where the test says when a READ is carried out; the clock is moved by hand.
#include "ros/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "flow/loop.h"
#include "flow/random.h"
#include "tests/ros/fake_plane.h"

namespace weightlane::ros::testing {
namespace {

using ::testing::HasSubstr;

constexpr net::Content kContent{{1}, {7}, {42}};
constexpr Stamp kStamp{0xabcdef};
constexpr uint64_t kSlice = 1000;

// One process's tensors: memory, layout, registration, and the shard as a source.
struct Side {
  Side(flow::ManualRuntime* clock, FakePlane* plane, const std::string& name,
       const std::vector<uint64_t>& sizes, uint64_t seed, bool checksums)
      : source({clock, nullptr, plane, nullptr}, name) {
    flow::Rng rng(seed);
    uint64_t total = 0;
    for (const uint64_t size : sizes) total += size + 16;
    memory.resize(total);
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(rng.next());
    std::vector<TensorSpec> tensors;
    uint64_t at = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      tensors.push_back(
          {"t" + std::to_string(i),
           "U8",
           {sizes[i]},
           {reinterpret_cast<uint64_t>(memory.data()) + at, sizes[i], net::Device::kHost, 0}});
      at += sizes[i] + (i % 2 == 0 ? 16 : 0);  // some adjacent, some apart
    }
    Result<Layout> built = Layout::build(tensors, kSlice);
    WL_ASSERT(built.ok());
    layout = std::move(built).value();
    for (const net::MemoryRange& range : layout.ranges())
      regions.push_back(*clock->run(plane->register_memory(range)));
    WL_ASSERT(source.start().ok());
    source.add_incarnation(Incarnation{5});
    WL_ASSERT(source.set_layout(&layout, regions, checksums).ok());
  }
  // Bytes [0, bytes) of the stream.
  std::vector<uint8_t> stream(uint64_t bytes) const {
    std::vector<uint8_t> out;
    for (const Slice& slice : layout.slices()) {
      const net::TensorPlace& place = layout.places()[slice.tensor];
      const auto* from = reinterpret_cast<const uint8_t*>(layout.ranges()[place.region].address) +
                         place.offset + slice.tensor_offset;
      out.insert(out.end(), from, from + slice.length);
    }
    out.resize(bytes);
    return out;
  }
  uint64_t bytes() const { return layout.summary().bytes; }

  std::vector<uint8_t> memory;
  Layout layout;
  std::vector<net::RegionId> regions;
  Source source;
};

flow::Task<void> run_reader(Reader* reader, std::optional<ReadOutcome>* outcome) {
  ReadOutcome ended = co_await reader->run();
  *outcome = std::move(ended);
}

struct World {
  explicit World(bool checksums = false, std::vector<uint64_t> sizes = {2500, 10, 0, 4000, 999})
      : origin(&runtime, &plane, "m/origin/0", sizes, 1, checksums),
        mine(&runtime, &plane, "m/mine/0", sizes, 2, checksums) {
    options.checksums = checksums;
    receiving.content = kContent;
    if (checksums) receiving.checksums.resize(mine.layout.slices().size());
    landing = *plane.allocate_words(3);
    mine.source.show(Stamp{99}, kContent, 0);
    published = origin.stream(origin.bytes());
  }
  ~World() { tasks.cancel_all(); }

  void publish(uint64_t proven) { origin.source.show(kStamp, kContent, proven); }
  void publish() {
    publish(origin.bytes());
    origin.source.compute_digests();
  }
  // Memory goes back to the application, which writes into it.
  void withdraw() {
    origin.source.withdraw();
    for (uint8_t& byte : origin.memory) byte = static_cast<uint8_t>(byte + 1);
  }
  Reader& start(Incarnation meant = Incarnation{5}) {
    net::AssignedEvent assigned{CallNumber{1},
                                AssignmentId{++assignments},
                                kContent,
                                {"origin", meant, origin.source.endpoint(), "node", true}};
    outcome.reset();
    reader = std::make_unique<Reader>(Reader::Context{{&runtime, nullptr, &plane, nullptr},
                                                      {"m", "mine", ShardIndex{0}},
                                                      &options,
                                                      &mine.layout,
                                                      &mine.regions,
                                                      &receiving,
                                                      &mine.source,
                                                      landing,
                                                      &wake},
                                      assigned);
    tasks.spawn(run_reader(reader.get(), &outcome), "test.reader");
    return *reader;
  }
  void pass(Nanos span) { runtime.run_until(runtime.now() + span); }
  // Until the reader has ended, not longer than that.
  ReadOutcome finish(Nanos bound = seconds(60)) {
    const Nanos until = runtime.now() + bound;
    while (!outcome.has_value() && runtime.step(until)) {
    }
    EXPECT_TRUE(outcome.has_value()) << "the reader did not end";
    EXPECT_EQ(plane.open_pairs, 0u);
    EXPECT_EQ(plane.outside, 0u);
    return outcome.value_or(ReadOutcome{});
  }
  void expect_prefix_is_what_was_published() {
    EXPECT_EQ(mine.source.proven(), receiving.sealed_bytes);
    published.resize(std::max<size_t>(published.size(), receiving.sealed_bytes));
    const std::vector<uint8_t> got = mine.stream(receiving.sealed_bytes);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), published.begin()));
  }
  void stop(net::ReleaseKind kind, bool only_if_unopened) {
    reader->stop(kind, only_if_unopened);
    wake.notify_all();
  }

  flow::ManualRuntime runtime;
  FakePlane plane{&runtime};
  HandleOptions options;
  Side origin;
  Side mine;
  Receiving receiving;
  net::RegionId landing;
  flow::Signal wake{runtime};
  std::vector<uint8_t> published;
  std::unique_ptr<Reader> reader;
  std::optional<ReadOutcome> outcome;
  uint64_t assignments = 0;
  flow::TaskSet tasks{runtime};
};

// ---------------------------------------------------------------- what is accepted

TEST(Reader, ReadsTheWholeShard) {
  World world;
  world.publish();
  world.start();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
  EXPECT_EQ(world.receiving.sealed_bytes, world.origin.bytes());
  world.expect_prefix_is_what_was_published();
  EXPECT_EQ(world.plane.destroyed, 1u);
}

TEST(Reader, CompletionsInAnyOrder) {
  World world;
  world.plane.at_once = false;
  world.publish();
  world.start();
  for (int i = 0; i < 200 && !world.outcome.has_value(); ++i) {
    world.pass(millis(1));
    if (!world.plane.posted.empty()) world.plane.serve(world.plane.posted.size() - 1);
  }
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
  world.expect_prefix_is_what_was_published();
}

TEST(Reader, AWindowAndAQueueThatAreSmall) {
  World world;
  world.options.window_bytes = 1500;
  world.plane.max_outstanding = 2;
  world.plane.at_once = false;
  world.publish();
  world.start();
  uint64_t most = 0;
  for (int i = 0; i < 400 && !world.outcome.has_value(); ++i) {
    world.pass(millis(1));
    uint64_t in_flight = 0;
    for (const auto& [pair, work] : world.plane.posted) in_flight += work.length;
    most = std::max(most, in_flight);
    world.plane.serve_all();
  }
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
  EXPECT_LE(most, 1500u + 16u);
  world.expect_prefix_is_what_was_published();
}

// The memory goes back while READs are under way: what they bring is thrown away.
TEST(Reader, ABrokenSealAcceptsNothingSinceTheLastOne) {
  for (int served = 0; served < 40; ++served) {
    World world;
    world.plane.at_once = false;
    world.publish();
    world.start();
    for (int i = 0; i < served && !world.outcome.has_value(); ++i) {
      world.pass(millis(1));
      if (!world.plane.posted.empty())
        world.plane.serve(static_cast<size_t>(i) % world.plane.posted.size());
    }
    if (world.outcome.has_value()) break;
    world.withdraw();
    world.plane.at_once = true;
    world.plane.serve_all();
    const ReadOutcome outcome = world.finish();
    world.expect_prefix_is_what_was_published();
    if (outcome.kind == net::ReleaseKind::kComplete) continue;  // it had everything
    EXPECT_EQ(outcome.kind, net::ReleaseKind::kFailed);
    EXPECT_FALSE(outcome.corrupt);
    if (world.plane.connects == 1 && served > 2)
      EXPECT_THAT(outcome.reason, HasSubstr("took its memory back"));
  }
}

// Under another stamp the same memory is another publication.
TEST(Reader, ARepublicationIsNotTheSame) {
  World world;
  world.plane.at_once = false;
  world.publish();
  world.start();
  world.pass(millis(5));
  ASSERT_FALSE(world.plane.posted.empty());
  world.plane.serve(0);  // the first look
  world.pass(millis(5));
  world.withdraw();
  world.origin.source.show(Stamp{777}, kContent, world.origin.bytes());
  world.plane.at_once = true;
  world.plane.serve_all();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kFailed);
  EXPECT_EQ(world.receiving.sealed_bytes, 0u);
}

// ---------------------------------------------------------------- partial sources

TEST(Reader, WaitsForASourceThatStillReceives) {
  World world;
  world.publish(2600);
  world.start();
  world.pass(seconds(120));  // caught up is not stalled
  EXPECT_FALSE(world.outcome.has_value());
  EXPECT_EQ(world.receiving.sealed_bytes, 2510u);  // whole slices: 1000, 1000, 500, 10
  world.origin.source.advance(5000);
  world.pass(millis(100));
  EXPECT_GT(world.receiving.sealed_bytes, 2510u);
  EXPECT_LE(world.receiving.sealed_bytes, 5000u);
  world.expect_prefix_is_what_was_published();
  world.origin.source.advance(world.origin.bytes());
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
  // It looked now and then, not all the time.
  EXPECT_LT(world.plane.history.size(), 120'000u / 20 * 2);
}

TEST(Reader, GoesOnFromItsPrefix) {
  World world;
  world.plane.at_once = true;
  world.publish(2600);
  world.start();
  world.pass(seconds(1));
  world.stop(net::ReleaseKind::kAbandoned, false);
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kAbandoned);
  const uint64_t prefix = world.receiving.sealed_bytes;
  ASSERT_GT(prefix, 0u);
  world.plane.bytes_read = 0;
  world.origin.source.advance(world.origin.bytes());
  world.start();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
  world.expect_prefix_is_what_was_published();
  uint64_t data = 0;
  for (const net::ReadWork& work : world.plane.history)
    if (work.into != world.landing) data += work.length;
  EXPECT_EQ(data, world.origin.bytes());  // nothing twice
}

// The new source has less than this reader already: it waits, and proves nothing meanwhile.
TEST(Reader, AheadOfItsNewSource) {
  World world;
  world.publish();
  world.receiving.sealed_slices = 4;
  world.receiving.sealed_bytes = world.mine.layout.slices()[3].stream_end;
  world.origin.source.withdraw();
  world.publish(1000);
  world.start();
  world.pass(seconds(30));
  EXPECT_FALSE(world.outcome.has_value());
  EXPECT_EQ(world.receiving.sealed_slices, 4u);
  world.stop(net::ReleaseKind::kAbandoned, false);
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kAbandoned);
}

// ---------------------------------------------------------------- time

// FieldReport1_: a peer sends a part and then nothing.
TEST(Reader, FieldReport1_AStalledSourceIsGivenUp) {
  for (int served = 0; served < 12; ++served) {
    World world;
    world.plane.at_once = false;
    world.publish();
    world.start();
    for (int i = 0; i < served; ++i) {
      world.pass(millis(1));
      if (!world.plane.posted.empty()) world.plane.serve(0);
    }
    if (world.outcome.has_value()) break;
    const Nanos before = world.runtime.now();
    const ReadOutcome outcome = world.finish();
    EXPECT_EQ(outcome.kind, net::ReleaseKind::kFailed);
    EXPECT_THAT(outcome.reason, HasSubstr("2000 ms"));
    EXPECT_LE(world.runtime.now() - before, seconds(3));
    EXPECT_EQ(world.plane.destroyed, 1u);
    world.expect_prefix_is_what_was_published();
  }
}

TEST(Reader, FieldReport6_AnAddressThatAnswersNothing) {
  World world;
  world.plane.silent = true;
  world.publish();
  world.start();
  EXPECT_EQ(world.finish(seconds(6)).kind, net::ReleaseKind::kFailed);
  EXPECT_TRUE(world.plane.history.empty());
}

TEST(Reader, AReadThatFailsEndsIt) {
  for (const size_t which : {size_t{0}, size_t{1}, size_t{3}}) {
    World world;
    world.plane.at_once = false;
    world.publish();
    world.start();
    for (size_t i = 0; i < which; ++i) {
      world.pass(millis(1));
      world.plane.serve(0);
    }
    world.pass(millis(1));
    world.plane.serve(0, net::CompletionStatus::kRetryExceeded);
    const ReadOutcome outcome = world.finish(seconds(1));
    EXPECT_EQ(outcome.kind, net::ReleaseKind::kFailed);
    EXPECT_THAT(outcome.reason, HasSubstr("RETRY_EXC"));
    world.expect_prefix_is_what_was_published();
  }
}

TEST(Reader, AQueuePairThatCannotBeDestroyedPoisons) {
  World world;
  world.plane.destroy_fails = true;
  world.publish();
  world.start();
  const ReadOutcome outcome = world.finish(seconds(25));
  EXPECT_EQ(outcome.kind, net::ReleaseKind::kPoisoned);
  EXPECT_THAT(outcome.reason, HasSubstr("does not drain"));
}

// ---------------------------------------------------------------- stopping

TEST(Reader, StoppedBeforeAQueuePairIsOpen) {
  for (const bool only_if_unopened : {true, false}) {
    World world;
    world.publish();
    world.start();
    world.pass(micros(500));  // connect is under way
    world.stop(net::ReleaseKind::kNeverOpened, only_if_unopened);
    const ReadOutcome outcome = world.finish();
    // A pair was opened meanwhile: then it is not "never opened", but no READ was posted.
    EXPECT_TRUE(world.plane.history.empty());
    EXPECT_TRUE(outcome.kind == net::ReleaseKind::kNeverOpened ||
                outcome.kind == net::ReleaseKind::kAbandoned);
    EXPECT_EQ(outcome.kind == net::ReleaseKind::kAbandoned, world.plane.destroyed == 1);
  }
}

TEST(Reader, AskedToYieldAfterOpeningItGoesOn) {
  World world;
  world.plane.at_once = false;
  world.publish();
  world.start();
  world.pass(millis(5));
  world.stop(net::ReleaseKind::kNeverOpened, true);
  world.plane.at_once = true;
  world.plane.serve_all();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
}

TEST(Reader, StoppedWithReadsUnderWay) {
  World world;
  world.plane.at_once = false;
  world.publish();
  world.start();
  world.pass(millis(5));
  world.plane.serve(0);
  world.pass(millis(5));
  EXPECT_GT(world.plane.posted.size(), 1u);
  world.stop(net::ReleaseKind::kNeverOpened, false);
  EXPECT_EQ(world.finish(seconds(1)).kind, net::ReleaseKind::kAbandoned);
  EXPECT_TRUE(world.plane.posted.empty());
}

// ---------------------------------------------------------------- connecting

TEST(Reader, ASourceThatIsNotReadyYetIsAskedAgain) {
  World world;  // a publisher learns its content id a moment after its readers may
  world.start();
  world.pass(millis(60));
  EXPECT_GT(world.plane.connects, 1u);
  world.publish();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
}

// FieldReport12_: the server's table names a process that is not there any more.
TEST(Reader, FieldReport12_IdentityIsVerifiedAtConnect) {
  World world;
  world.publish();
  world.start(Incarnation{6});
  const ReadOutcome outcome = world.finish(seconds(5));
  EXPECT_EQ(outcome.kind, net::ReleaseKind::kFailed);
  EXPECT_THAT(outcome.reason, HasSubstr("restarted"));
  EXPECT_TRUE(world.plane.history.empty());
}

// FieldReport9_: a bad source is data, not a crash.
TEST(Reader, FieldReport9_AWelcomeThatLiesIsNotBelieved) {
  using Lie = std::function<void(net::WelcomeMessage&)>;
  const std::pair<const char*, Lie> lies[] = {
      {"no stamp", [](auto& w) { w.stamp = {}; }},
      {"short control block", [](auto& w) { w.control.length = 15; }},
      {"a region that is not there", [](auto& w) { w.tensors[0].region = 100; }},
      {"no regions", [](auto& w) { w.regions.clear(); }},
      {"beyond the region", [](auto& w) { w.tensors[1].offset = w.regions[0].length; }},
      {"an offset that wraps", [](auto& w) { w.tensors[0].offset = ~0ull - 3; }},
      {"a region one byte short",
       [](auto& w) {
         for (auto& region : w.regions) --region.length;
       }},
      {"fewer tensors", [](auto& w) { w.tensors.pop_back(); }},
      {"more tensors", [](auto& w) { w.tensors.push_back({}); }},
      {"no tensors", [](auto& w) { w.tensors.clear(); }},
      {"a short digest block", [](auto& w) { w.digests = {1, 0, 16}; }},
  };
  for (const auto& [what, lie] : lies) {
    SCOPED_TRACE(what);
    World world;
    world.plane.lie = lie;
    world.publish();
    world.start();
    EXPECT_EQ(world.finish(seconds(5)).kind, net::ReleaseKind::kFailed);
    EXPECT_TRUE(world.plane.history.empty());
    EXPECT_EQ(world.receiving.sealed_bytes, 0u);
  }
}

TEST(Reader, AWelcomeThatIsNoiseIsNotBelieved) {
  for (const size_t length : {0u, 1u, 8u, 64u, 1000u}) {
    World world;
    world.plane.payload = Bytes(length, 0xa5);
    world.publish();
    world.start();
    EXPECT_EQ(world.finish(seconds(5)).kind, net::ReleaseKind::kFailed);
    EXPECT_TRUE(world.plane.history.empty());
  }
}

// A proven beyond the end, or keys that lead nowhere, hurt nobody either.
TEST(Reader, AProvenThatLiesReadsNoFurtherThanTheStream) {
  World world;
  world.publish(~0ull);
  world.start();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
  World nowhere;
  nowhere.plane.lie = [](net::WelcomeMessage& welcome) { welcome.control.key = 4711; };
  nowhere.publish();
  nowhere.start();
  EXPECT_EQ(nowhere.finish().kind, net::ReleaseKind::kFailed);
}

TEST(Reader, SlicesLargerThanTheTransportReads) {
  World world;
  world.plane.max_read_bytes = kSlice - 1;
  world.publish();
  world.start();
  const ReadOutcome outcome = world.finish();
  EXPECT_EQ(outcome.kind, net::ReleaseKind::kFailed);
  EXPECT_THAT(outcome.reason, HasSubstr("at most 999 bytes"));
}

TEST(Reader, AnEmptyShard) {
  World world(false, {});
  world.publish();
  world.start();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
}

// ---------------------------------------------------------------- checksums

TEST(Checksums, AreComparedAndServedOn) {
  World world(true);
  world.publish();
  world.start();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
  world.expect_prefix_is_what_was_published();
  EXPECT_EQ(world.plane.load_word(world.mine.source.digest_words(), kDigestStampWord),
            world.mine.source.stamp().value);
}

TEST(Checksums, DamagedBytesAreNamed) {
  World world(true);
  world.publish();
  world.pass(seconds(1));  // its own are computed
  int reads = 0;
  world.plane.damage = [&reads](uint8_t* bytes, uint64_t length) {
    if (length == kSlice && ++reads == 5) bytes[17] ^= 1;  // the third slice of t3
  };
  world.start();
  const ReadOutcome outcome = world.finish();
  EXPECT_EQ(outcome.kind, net::ReleaseKind::kFailed);
  EXPECT_TRUE(outcome.corrupt);
  EXPECT_THAT(outcome.reason, HasSubstr("\"t3\" at byte 2000"));
}

// FieldReport16_: the promise is broken: the tensors change while they are published.
TEST(Checksums, FieldReport16_ABrokenPromiseIsCaught) {
  World world(true);
  world.publish();
  world.pass(seconds(1));
  world.origin.memory[100] ^= 1;
  world.start();
  const ReadOutcome outcome = world.finish();
  EXPECT_TRUE(outcome.corrupt);
  EXPECT_THAT(outcome.reason, HasSubstr("\"t0\" at byte 0"));
}

TEST(Checksums, ThatComeLateAreWaitedFor) {
  World world(true);
  world.publish(world.origin.bytes());  // not computed yet
  world.start();
  world.pass(seconds(5));
  EXPECT_FALSE(world.outcome.has_value());
  world.origin.source.compute_digests();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
}

TEST(Checksums, MemoryTakenBackWhileTheyAreWaitedFor) {
  World world(true);
  world.publish(world.origin.bytes());
  world.start();
  world.pass(seconds(1));
  world.withdraw();
  const ReadOutcome outcome = world.finish(seconds(2));
  EXPECT_EQ(outcome.kind, net::ReleaseKind::kFailed);
  EXPECT_FALSE(outcome.corrupt);
}

TEST(Checksums, WithoutThemAtTheSourceItSaysSo) {
  World world(true);
  world.plane.lie = [](net::WelcomeMessage& welcome) { welcome.digests = {}; };
  world.publish();
  world.start();
  const ReadOutcome outcome = world.finish();
  EXPECT_TRUE(outcome.corrupt);
  EXPECT_THAT(outcome.reason, HasSubstr("publish with checksums on"));
}

TEST(Checksums, AreReadInPiecesToo) {
  World world(true, {kSlice * 300});
  world.plane.max_read_bytes = kSlice + 7;
  world.publish();
  world.start();
  EXPECT_EQ(world.finish().kind, net::ReleaseKind::kComplete);
}

// ---------------------------------------------------------------- anything at all

// Whatever is served when, withdrawn, advanced or failed: what is sealed is what was published.
RC_GTEST_PROP(ReaderModel, SealedBytesAreThePublishedOnes, ()) {
  const bool fences = *rc::gen::arbitrary<bool>();
  const auto draws =
      *rc::gen::scale(2.0, rc::gen::container<std::vector<std::pair<int, int>>>(
                               rc::gen::pair(rc::gen::inRange(0, 100), rc::gen::inRange(0, 1000))));
  World world;
  world.plane.at_once = false;
  world.plane.fences = fences;
  uint64_t proven = 1500;
  world.publish(proven);
  world.start();
  bool withdrawn = false;
  for (const auto& [what, detail] : draws) {
    if (world.outcome.has_value() && !withdrawn) world.start();  // re-routed to the same source
    auto& posted = world.plane.posted;
    if (what < 60 && !posted.empty()) {
      world.plane.serve(static_cast<size_t>(detail) % posted.size());
    } else if (what < 62 && !posted.empty()) {
      world.plane.serve(0, net::CompletionStatus::kRemoteOperation);
    } else if (what < 75 && !withdrawn) {
      proven = std::min(world.origin.bytes(), proven + static_cast<uint64_t>(detail) * 3);
      world.origin.source.advance(proven);
    } else if (what < 78 && !withdrawn) {
      world.withdraw();
      withdrawn = true;
    } else if (what < 80 && !world.outcome.has_value()) {
      world.stop(net::ReleaseKind::kAbandoned, false);
    } else {
      world.pass(micros(detail));
    }
    const std::vector<uint8_t> got = world.mine.stream(world.receiving.sealed_bytes);
    RC_ASSERT(std::equal(got.begin(), got.end(), world.published.begin()));
    RC_ASSERT(world.receiving.sealed_bytes <= proven);
    RC_ASSERT(world.mine.source.proven() == world.receiving.sealed_bytes);
    RC_ASSERT(world.plane.outside == 0u);
  }
  // And it ends: by itself when nothing is served any more, or when it is told to.
  if (!world.outcome.has_value()) world.stop(net::ReleaseKind::kAbandoned, false);
  world.pass(seconds(30));
  RC_ASSERT(world.outcome.has_value());
  RC_ASSERT(world.plane.open_pairs == 0u);
}

}  // namespace
}  // namespace weightlane::ros::testing
