// Goal: the simulated data plane keeps C1-C7 and shows S1-S12, without faults and under each fault
// of RDMA. Method: one source, one reader, faults set to certain one at a time; what was
// executed and placed is watched by an observer. Where an outcome is drawn, many seeds are run and
// every outcome that the fault may have must be seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/sim/core_fixture.h"

namespace weightlane::sim {
namespace {

WorldConfig with(Fault fault, uint32_t per_million = 999'999) {
  WorldConfig config;
  config.faults.set(fault, per_million);
  return config;
}

// Connects, posts `count` READs of `granules` each, waits for their completions.
flow::Task<void> read_all(Pair* p, uint64_t count, uint64_t granules,
                          Nanos patience = seconds(20)) {
  const Result<Done> prepared = co_await p->reader.prepare(8);
  if (!prepared.ok()) co_return;
  const Result<Done> connected = co_await p->reader.connect(p->source.endpoint);
  if (!connected.ok()) co_return;
  for (uint64_t i = 0; i < count; ++i) {
    const auto posted = p->reader.post(i, p->source.described_memory, i * granules, granules);
    EXPECT_EQ(posted, net::PostResult::kPosted);
  }
  const bool all = co_await p->reader.collect(count, patience);
  (void)all;
}

flow::Task<void> destroy(Pair* p, Nanos patience, Result<Done>* outcome) {
  const Nanos deadline = p->reader_host.now() + patience;
  *outcome = co_await p->reader.pair->destroy(deadline);
}

// ---------------------------------------------------------------- without faults

TEST(DataPlane, ReadsArriveWithTheirTags) {
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_all(&p, 4, 2)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS SUCCESS SUCCESS SUCCESS");
  EXPECT_EQ(p.reader.payload, (Bytes{1, 2, 3}));
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(p.reader.tag(i), 100 + i);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(p.reader.completions[i].work_id, i);
  EXPECT_EQ(p.watcher.executed.size(), 8u);
  EXPECT_EQ(p.watcher.landed.size(), 8u);
}

flow::Task<void> read_words(Pair* p) {
  const Result<Done> prepared = co_await p->reader.prepare(8);
  const Result<Done> connected = co_await p->reader.connect(p->source.endpoint);
  EXPECT_TRUE(prepared.ok() && connected.ok());
  EXPECT_EQ(p->reader.post_words(1, p->source.described_words, 2), net::PostResult::kPosted);
  const bool all = co_await p->reader.collect(1, seconds(1));
  EXPECT_TRUE(all);
}

TEST(DataPlane, WordsArrive) {
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_words(&p)));
  EXPECT_EQ(p.reader_host.data().load_word(p.reader.words, 0), 1000u);
  EXPECT_EQ(p.reader_host.data().load_word(p.reader.words, 1), 1001u);
  EXPECT_EQ(p.reader_host.data().load_word(p.reader.words, 2), 0u);
}

TEST(DataPlane, WordsAreReadOneByOneAndMayTear) {  // S6, R4b
  std::set<std::pair<bool, bool>> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Pair p{WorldConfig{}, seed};
    bool stored = false;
    p.start(read_words(&p));
    p.world.run_until(seconds(60), 100'000, [&] {
      if (!stored && p.watcher.executed.size() == 1) {
        stored = true;
        p.source_host.data().store_word(p.source.words, 0, 1);
        p.source_host.data().store_word(p.source.words, 1, 1);
      }
      return p.done;
    });
    ASSERT_TRUE(p.done);
    seen.insert({p.reader_host.data().load_word(p.reader.words, 0) == 1,
                 p.reader_host.data().load_word(p.reader.words, 1) == 1});
  }
  // Both old (in one piece), the first new, the second new. Both new would be a READ after both.
  EXPECT_TRUE(seen.contains({false, false}));
  EXPECT_TRUE(seen.contains({false, true}));
  EXPECT_TRUE(seen.contains({true, false}));
}

TEST(DataPlane, LandingOrderVariesAndEndsBeforeCompletion) {  // S4
  bool reversed = false;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Pair p{WorldConfig{}, seed};
    ASSERT_TRUE(p.run(read_all(&p, 1, 4)));
    ASSERT_EQ(p.reader.statuses(), "SUCCESS");
    ASSERT_EQ(p.watcher.landed.size(), 4u);
    reversed = reversed || p.watcher.landed.front().address > p.watcher.landed.back().address;
  }
  EXPECT_TRUE(reversed);
}

TEST(DataPlane, ChecksumsOfBothSidesAgree) {
  for (const bool real : {false, true}) {
    WorldConfig config;
    config.data.real_bytes = real;
    Pair p{config};
    Result<uint64_t> at_source = Error{};
    uint64_t at_reader = 0;
    const auto script = [](Pair* q, Result<uint64_t>* theirs, uint64_t* ours) -> flow::Task<void> {
      const Result<Done> prepared = co_await q->reader.prepare(8);
      const Result<Done> connected = co_await q->reader.connect(q->source.endpoint);
      EXPECT_TRUE(prepared.ok() && connected.ok());
      net::ReadWork work;
      work.into = q->reader.memory;
      work.from = q->source.described_memory;
      work.from_offset = 2 * kGranule;
      work.length = 3 * kGranule;
      work.want_checksum = true;
      EXPECT_EQ(q->reader.pair->post_read(work), net::PostResult::kPosted);
      const bool all = co_await q->reader.collect(1, seconds(1));
      EXPECT_TRUE(all);
      *ours = q->reader.completions[0].checksum;
      *theirs =
          co_await q->source_host.data().checksum(q->source.memory, 2 * kGranule, 3 * kGranule);
    };
    ASSERT_TRUE(p.run(script(&p, &at_source, &at_reader)));
    ASSERT_TRUE(at_source.ok());
    EXPECT_EQ(*at_source, at_reader);
    EXPECT_NE(at_reader, 0u);
  }
}

TEST(DataPlane, OutstandingReadsAreBounded) {  // S8
  WorldConfig config;
  config.data.max_outstanding_reads = 2;
  Pair p{config};
  const auto script = [](Pair* q) -> flow::Task<void> {
    const Result<Done> prepared = co_await q->reader.prepare(8);
    const Result<Done> connected = co_await q->reader.connect(q->source.endpoint);
    EXPECT_TRUE(prepared.ok() && connected.ok());
    EXPECT_EQ(q->reader.pair->capabilities().max_outstanding_reads, 2u);
    EXPECT_EQ(q->reader.post(0, q->source.described_memory, 0, 1), net::PostResult::kPosted);
    EXPECT_EQ(q->reader.post(1, q->source.described_memory, 1, 1), net::PostResult::kPosted);
    EXPECT_EQ(q->reader.post(2, q->source.described_memory, 2, 1), net::PostResult::kQueueFull);
    const bool all = co_await q->reader.collect(2, seconds(1));
    EXPECT_TRUE(all);
    EXPECT_EQ(q->reader.post(2, q->source.described_memory, 2, 1), net::PostResult::kPosted);
  };
  ASSERT_TRUE(p.run(script(&p)));
}

TEST(DataPlane, LocalMistakesAreLocalErrors) {  // S10
  WorldConfig config;
  config.data.max_read_bytes = 2 * kGranule;
  Pair p{config};
  ASSERT_TRUE(p.run(read_all(&p, 1, 3)));
  EXPECT_EQ(p.reader.statuses(), "LOC_LEN_ERR");
  EXPECT_TRUE(p.watcher.executed.empty());
}

TEST(DataPlane, BeyondTheRemoteRegionIsRefused) {
  Pair p{WorldConfig{}};
  const auto script = [](Pair* q) -> flow::Task<void> {
    const Result<Done> prepared = co_await q->reader.prepare(8);
    const Result<Done> connected = co_await q->reader.connect(q->source.endpoint);
    EXPECT_TRUE(prepared.ok() && connected.ok());
    net::ReadWork work;
    work.into = q->reader.memory;
    work.from = q->source.described_memory;
    work.from_offset = 7 * kGranule;
    work.length = 2 * kGranule;
    EXPECT_EQ(q->reader.pair->post_read(work), net::PostResult::kPosted);
    const bool all = co_await q->reader.collect(1, seconds(1));
    EXPECT_TRUE(all);
  };
  ASSERT_TRUE(p.run(script(&p)));
  EXPECT_EQ(p.reader.statuses(), "REM_ACCESS_ERR");
  EXPECT_TRUE(p.watcher.landed.empty());
}

TEST(DataPlane, BandwidthDecidesHowLongItTakes) {
  WorldConfig config;
  config.bandwidth.nic_tx = 1'000'000'000;
  config.data.latency = {micros(1), micros(2)};
  Pair p{config};
  const auto script = [](Pair* q, Nanos* took) -> flow::Task<void> {
    const Result<Done> prepared = co_await q->reader.prepare(8);
    const Result<Done> connected = co_await q->reader.connect(q->source.endpoint);
    EXPECT_TRUE(prepared.ok() && connected.ok());
    const Nanos begin = q->world.now();
    for (uint64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(q->reader.post(i, q->source.described_memory, i, 1), net::PostResult::kPosted);
    }
    const bool all = co_await q->reader.collect(8, seconds(10));
    EXPECT_TRUE(all);
    *took = q->world.now() - begin;
  };
  Nanos took;
  ASSERT_TRUE(p.run(script(&p, &took)));
  EXPECT_NEAR(static_cast<double>(took.count), 8.0 * kGranule, 10'000);
}

TEST(DataPlane, ARefusalNamesItsReason) {
  Pair p{WorldConfig{}};
  p.source.refusal = "another incarnation";
  Result<Done> outcome = Done{};
  const auto script = [](Pair* q, Result<Done>* out) -> flow::Task<void> {
    *out = co_await q->reader.connect(q->source.endpoint);
  };
  ASSERT_TRUE(p.run(script(&p, &outcome)));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kRefused);
  EXPECT_EQ(outcome.error().message, "another incarnation");
}

TEST(DataPlane, NobodyListening) {
  Pair p{WorldConfig{}};
  p.source_host.data().stop_listening(&p.source);
  Result<Done> outcome = Done{};
  const auto script = [](Pair* q, Result<Done>* out) -> flow::Task<void> {
    *out = co_await q->reader.connect(q->source.endpoint);
  };
  ASSERT_TRUE(p.run(script(&p, &outcome)));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kUnreachable);
}

TEST(DataPlane, ClosingIsHeardByTheSource) {
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  EXPECT_FALSE(p.source.pairs[0]->closed());
  Result<Done> outcome = Error{};
  ASSERT_TRUE(p.run(destroy(&p, seconds(5), &outcome)));
  EXPECT_TRUE(outcome.ok());
  p.world.run_until(p.world.now() + seconds(1), 1000);
  EXPECT_TRUE(p.source.pairs[0]->closed());
  p.source.pairs.clear();
  EXPECT_EQ(p.world.data_net().pairs(), 0u);
}

// ---------------------------------------------------------------- fences, keys, lives

TEST(DataPlane, AFenceStopsLaterReadsAndLetsSomeThatAreUnderWayThrough) {  // C5
  std::set<std::string> first_statuses;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    WorldConfig config;
    config.bandwidth.nic_tx = 100'000'000;  // a granule takes 650 us
    Pair p{config, seed};
    p.start(read_all(&p, 2, 4));
    p.world.run_until(seconds(60), 100'000, [&] { return p.watcher.executed.size() == 1; });
    const bool partly = p.watcher.executed.size() == 1;
    p.source.pairs.clear();
    p.world.run_until(p.world.now() + seconds(60), 100'000, [&] { return p.done; });
    ASSERT_TRUE(p.done);
    if (!partly) continue;
    first_statuses.insert(net::completion_status_name(p.reader.completions[0].status));
    EXPECT_NE(p.reader.completions[1].status, net::CompletionStatus::kSuccess);
    for (const ReadExecuted& read : p.watcher.executed) {
      if (read.work_id == 1) EXPECT_LT(read.at, p.watcher.dropped);
    }
  }
  EXPECT_EQ(first_statuses, (std::set<std::string>{"SUCCESS", "REM_ACCESS_ERR", "RETRY_EXC_ERR"}));
}

TEST(DataPlane, DeregisteredUnderARead) {  // F16
  std::set<uint32_t> landed;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    WorldConfig config;
    config.bandwidth.nic_tx = 100'000'000;
    Pair p{config, seed};
    p.start(read_all(&p, 1, 4));
    p.world.run_until(seconds(60), 100'000, [&] { return p.watcher.executed.size() == 1; });
    if (p.watcher.executed.size() != 1) continue;
    const auto script = [](Pair* q) -> flow::Task<void> {
      co_await q->source_host.data().deregister(q->source.memory);
    };
    p.source_host.spawn(script(&p), "deregister");
    p.world.run_until(p.world.now() + seconds(60), 100'000, [&] { return p.done; });
    ASSERT_TRUE(p.done);
    if (p.reader.statuses() == "REM_ACCESS_ERR") {
      landed.insert(static_cast<uint32_t>(p.watcher.landed.size()));
      EXPECT_LT(p.watcher.landed.size(), 4u);
    } else {
      EXPECT_EQ(p.reader.statuses(), "SUCCESS");  // it was done by then
    }
  }
  EXPECT_GE(landed.size(), 2u);  // partial data, of different sizes
}

flow::Task<void> register_again(Pair* p) {
  Host& host = p->source_host;
  co_await host.data().deregister(p->source.memory);
  const uint64_t other = host.memory().allocate(8 * kGranule);
  for (uint64_t i = 0; i < 8; ++i) host.memory().write(other + i * kGranule, 500 + i);
  auto registered =
      co_await host.data().register_memory({.address = other, .length = 8 * kGranule});
  p->source.memory = *registered;
}

TEST(DataPlane, AFreedKeyIsUsedAgainWithAnotherTag) {  // S12
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  ASSERT_TRUE(p.run(register_again(&p)));
  const net::RemoteRegion now = p.source.pairs[0]->describe(p.source.memory);
  EXPECT_EQ(now.key >> 8, p.source.described_memory.key >> 8);
  EXPECT_NE(now.key, p.source.described_memory.key);
  const auto script = [](Pair* q) -> flow::Task<void> {
    EXPECT_EQ(q->reader.post(7, q->source.described_memory, 1, 1), net::PostResult::kPosted);
    const bool all = co_await q->reader.collect(2, seconds(1));
    EXPECT_TRUE(all);
  };
  ASSERT_TRUE(p.run(script(&p)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS REM_ACCESS_ERR");
}

TEST(DataPlane, AKeyMayComeBackForOtherMemory) {  // S12 at its worst
  Pair p{with(Fault::kKeyReused)};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  ASSERT_TRUE(p.run(register_again(&p)));
  const net::RemoteRegion now = p.source.pairs[0]->describe(p.source.memory);
  EXPECT_EQ(now.key, p.source.described_memory.key);
}

TEST(DataPlane, AStaleKeyIsRefused) {  // F17
  Pair p{with(Fault::kStaleKey)};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  EXPECT_EQ(p.reader.statuses(), "REM_ACCESS_ERR");
}

flow::Task<void> read_one_more(Pair* p, uint64_t granule) {
  const size_t before = p->reader.completions.size();
  const auto posted = p->reader.post(99, p->source.described_memory, granule, 1);
  EXPECT_EQ(posted, net::PostResult::kPosted);
  const bool all = co_await p->reader.collect(before + 1, seconds(20));
  EXPECT_TRUE(all);
}

TEST(DataPlane, CrashesShowAsTheirKind) {  // F10
  for (const CrashKind kind :
       {CrashKind::kMemoryFirst, CrashKind::kQueuePairFirst, CrashKind::kMachine}) {
    Pair p{WorldConfig{}};
    ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
    p.source_host.crash(kind);
    const Nanos before = p.world.now();
    ASSERT_TRUE(p.run(read_one_more(&p, 1)));
    const Nanos took = p.world.now() - before;
    if (kind == CrashKind::kMemoryFirst) {
      EXPECT_EQ(p.reader.statuses(), "SUCCESS REM_ACCESS_ERR");
      EXPECT_LT(took, millis(10));
    } else {
      EXPECT_EQ(p.reader.statuses(), "SUCCESS RETRY_EXC_ERR");
      EXPECT_GE(took, p.world.config().data.retry_nominal);
      EXPECT_LE(took, p.world.config().data.retry_nominal * 4 + millis(10));
    }
    EXPECT_EQ(p.reader.post(5, p.source.described_memory, 0, 1), net::PostResult::kBroken);
  }
}

TEST(DataPlane, ARestartThatReusesNamesGivesOtherBytesWithSuccess) {  // F11
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  p.source_host.crash(CrashKind::kQueuePairFirst);
  Source second{p.source_host};
  p.source_host.start(Source::run(&second, 8, 700), "source again", /*reuse=*/true);
  p.world.run_until(p.world.now() + seconds(1), 1000);
  ASSERT_EQ(second.endpoint, p.source.endpoint);
  // Somebody else connects to the new life, which gives out the old queue pair number.
  Host& other = p.world.add_host({.name = "other"});
  Reader third{other};
  bool connected = false;
  const auto script = [](Reader* r, std::string endpoint, bool* ok) -> flow::Task<void> {
    const Result<Done> outcome = co_await r->connect(endpoint);
    *ok = outcome.ok();
    co_await r->host.sleep_until(kForever);
  };
  other.start(script(&third, second.endpoint, &connected), "other");
  p.world.run_until(p.world.now() + seconds(5), 10'000);
  ASSERT_TRUE(connected);
  ASSERT_TRUE(p.run(read_one_more(&p, 1)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS SUCCESS");
  EXPECT_EQ(p.reader.tag(1), 701u);
  EXPECT_EQ(p.world.fault_hits().at(Fault::kRestartReuse, WorkOutcome::kFullySuccess), 1u);
  other.crash(CrashKind::kMemoryFirst);
  p.source_host.crash(CrashKind::kMemoryFirst);
}

TEST(DataPlane, APausedSourceStillServes) {  // F12
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  p.source_host.pause(seconds(100));
  ASSERT_TRUE(p.run(read_one_more(&p, 1), seconds(1)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS SUCCESS");
}

TEST(DataPlane, NothingLandsInADeadReader) {
  Pair p{WorldConfig{}};
  p.start(read_all(&p, 4, 2));
  p.world.run_until(seconds(60), 100'000, [&] { return !p.watcher.executed.empty(); });
  p.reader.completions.clear();
  p.reader_host.crash(CrashKind::kMemoryFirst);
  p.reader.pair.reset();
  const size_t landed = p.watcher.landed.size();
  p.world.run_until(p.world.now() + seconds(60), 100'000);
  EXPECT_EQ(p.watcher.landed.size(), landed);
}

// ---------------------------------------------------------------- paths

TEST(DataPlane, AShortFlapDelaysALongOneBreaks) {  // F4
  for (const bool is_long : {false, true}) {
    Pair p{WorldConfig{}};
    ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
    const CutId cut =
        p.world.cut({.data = true, .from = host_bit(p.reader_host.id()), .to = ~0ull});
    p.start(read_one_more(&p, 1));
    p.world.run_until(p.world.now() + (is_long ? seconds(10) : millis(500)), 100'000);
    p.world.mend(cut);
    p.world.run_until(p.world.now() + seconds(1), 100'000);
    EXPECT_EQ(p.reader.statuses(), is_long ? "SUCCESS RETRY_EXC_ERR" : "SUCCESS SUCCESS");
  }
}

TEST(DataPlane, ACutReplyPathExecutesAgain) {  // S7
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  const CutId cut = p.world.cut({.data = true, .from = host_bit(p.source_host.id()), .to = ~0ull});
  p.start(read_one_more(&p, 1));
  p.world.run_until(p.world.now() + millis(500), 100'000);
  p.source_host.memory().write(p.source.address + kGranule, 42);
  p.world.mend(cut);
  p.world.run_until(p.world.now() + millis(500), 100'000);
  EXPECT_EQ(p.reader.statuses(), "SUCCESS SUCCESS");
  EXPECT_EQ(p.watcher.executed.size(), 3u);
  EXPECT_EQ(p.reader.tag(1), 42u);
}

TEST(DataPlane, AnAddressChangeKillsPairsForGood) {  // F5
  Pair p{WorldConfig{}};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  p.world.data_net().lose_addresses(p.source_host.id());
  ASSERT_TRUE(p.run(read_one_more(&p, 1)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS RETRY_EXC_ERR");
}

// ---------------------------------------------------------------- faults of one READ

struct Outcomes {
  std::set<std::string> first;  // statuses of the first READ; "nothing"
  std::set<size_t> executed;    // pieces of it
};

// Two READs of four granules under `fault`, then destroy; the invariants hold whatever happens.
Outcomes outcomes_of(Fault fault, uint64_t seeds) {
  Outcomes outcomes;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Pair p{with(fault, 600'000), seed};
    EXPECT_TRUE(p.run(read_all(&p, 2, 4, seconds(5))));
    if (p.reader.pair == nullptr) continue;
    const auto& completions = p.reader.completions;
    std::map<uint64_t, net::CompletionStatus> status;
    for (size_t i = 0; i < completions.size(); ++i) {
      EXPECT_EQ(completions[i].work_id, i);  // in order
      status[completions[i].work_id] = completions[i].status;
      if (i == 0) continue;
      // S2: after the first error all is flushed.
      if (completions[i - 1].status != net::CompletionStatus::kSuccess) {
        EXPECT_EQ(completions[i].status, net::CompletionStatus::kFlushed);
      }
    }
    outcomes.first.insert(completions.empty() ? "nothing"
                                              : net::completion_status_name(completions[0].status));
    size_t executed = 0;
    for (const auto& read : p.watcher.executed) executed += read.work_id == 0 ? 1 : 0;
    outcomes.executed.insert(executed);
    for (const auto& [work, s] : status) {
      if (s != net::CompletionStatus::kSuccess) continue;
      // C2
      for (uint64_t g = 0; g < 4; ++g) EXPECT_EQ(p.reader.tag(work * 4 + g), 100 + work * 4 + g);
    }
    Result<Done> outcome = Error{};
    EXPECT_TRUE(p.run(destroy(&p, seconds(60), &outcome)));
    EXPECT_TRUE(outcome.ok());
    const size_t before = p.watcher.landed.size();
    p.world.run_until(p.world.now() + seconds(100), 100'000);
    EXPECT_EQ(p.watcher.landed.size(), before) << "landed after destroy (C3)";
  }
  return outcomes;
}

TEST(DataPlane, LostAcknowledgementsAndRequestsLookTheSame) {  // F1, F2
  const Outcomes ack = outcomes_of(Fault::kAckLost, 100);
  EXPECT_EQ(ack.first, (std::set<std::string>{"SUCCESS", "RETRY_EXC_ERR"}));
  EXPECT_EQ(ack.executed, (std::set<size_t>{4}));
  const Outcomes request = outcomes_of(Fault::kRequestLost, 100);
  EXPECT_EQ(request.first, (std::set<std::string>{"SUCCESS", "RETRY_EXC_ERR"}));
  EXPECT_EQ(request.executed, (std::set<size_t>{0, 4}));
}

TEST(DataPlane, ADuplicateIsExecutedAgain) {  // F3
  const Outcomes outcomes = outcomes_of(Fault::kDuplicate, 50);
  EXPECT_EQ(outcomes.first, (std::set<std::string>{"SUCCESS"}));
  EXPECT_EQ(outcomes.executed, (std::set<size_t>{4, 8}));
}

TEST(DataPlane, AnyStatusWithAnyPartExecuted) {
  const Outcomes outcomes = outcomes_of(Fault::kBadStatus, 300);
  EXPECT_GE(outcomes.first.size(), 9u);  // eight errors and success
  EXPECT_EQ(outcomes.executed, (std::set<size_t>{0, 1, 2, 3, 4}));
}

TEST(DataPlane, SlowPairsAreSlowWithoutAnyError) {  // F7
  const Outcomes outcomes = outcomes_of(Fault::kSlowPair, 50);
  EXPECT_EQ(outcomes.first, (std::set<std::string>{"SUCCESS"}));
}

TEST(DataPlane, NoGoodputAndNoTimeout) {  // F9
  const Outcomes outcomes = outcomes_of(Fault::kGoodputNil, 100);
  EXPECT_EQ(outcomes.first, (std::set<std::string>{"SUCCESS", "nothing"}));
}

TEST(DataPlane, AHungDeviceSaysNothing) {  // F22, F28
  for (const Fault fault : {Fault::kCqOverrun, Fault::kFirmwareHang}) {
    const Outcomes outcomes = outcomes_of(fault, 100);
    EXPECT_EQ(outcomes.first, (std::set<std::string>{"SUCCESS", "nothing"}));
    EXPECT_EQ(outcomes.executed, (std::set<size_t>{0, 1, 2, 3, 4}));
  }
  const Outcomes fatal = outcomes_of(Fault::kFirmwareFatal, 100);
  EXPECT_EQ(fatal.first, (std::set<std::string>{"SUCCESS", "FATAL_ERR"}));
}

TEST(DataPlane, WrongPagesComeWithSuccess) {  // F18
  Pair p{with(Fault::kWrongPages)};
  ASSERT_TRUE(p.run(read_all(&p, 1, 4)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS");
  EXPECT_EQ(p.reader.tag(0), 101u);
}

TEST(DataPlane, DataMayBecomeVisibleAfterItsCompletion) {  // F20
  Pair p{with(Fault::kNotVisible)};
  ASSERT_TRUE(p.run(read_all(&p, 1, 4)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS");
  EXPECT_EQ(p.reader.tag(0), 0u);
  p.world.run_until(p.world.now() + seconds(1), 1000);
  EXPECT_EQ(p.reader.tag(0), 100u);
}

// ---------------------------------------------------------------- faults of the plane

TEST(DataPlane, LostHellosAndWelcomesEndByTheDeadline) {
  for (const Fault fault : {Fault::kHelloLost, Fault::kWelcomeLost}) {
    Pair p{with(fault)};
    Result<Done> outcome = Done{};
    const auto script = [](Pair* q, Result<Done>* out) -> flow::Task<void> {
      *out = co_await q->reader.connect(q->source.endpoint, seconds(2));
    };
    ASSERT_TRUE(p.run(script(&p, &outcome), seconds(3)));
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ErrorCode::kUnreachable);
    EXPECT_EQ(p.source.pairs.size(), fault == Fault::kWelcomeLost ? 1u : 0u);
    p.world.run_until(p.world.now() + seconds(1), 1000);
    if (!p.source.pairs.empty()) EXPECT_TRUE(p.source.pairs[0]->closed());
  }
}

TEST(DataPlane, ResourcesRunOut) {  // F19, F24
  Pair p{with(Fault::kNoQueuePair)};
  Result<Done> outcome = Done{};
  const auto script = [](Pair* q, Result<Done>* out) -> flow::Task<void> {
    *out = co_await q->reader.connect(q->source.endpoint, seconds(2));
  };
  ASSERT_TRUE(p.run(script(&p, &outcome)));
  EXPECT_EQ(outcome.error().code, ErrorCode::kResourceExhausted);

  Pair r{with(Fault::kRegistrationFails)};
  const auto prepare = [](Pair* q, Result<Done>* out) -> flow::Task<void> {
    *out = co_await q->reader.prepare(4);
  };
  ASSERT_TRUE(r.run(prepare(&r, &outcome)));
  EXPECT_EQ(outcome.error().code, ErrorCode::kResourceExhausted);
}

TEST(DataPlane, ALostCloseIsNeverHeard) {  // S11
  Pair p{with(Fault::kCloseLost)};
  ASSERT_TRUE(p.run(read_all(&p, 1, 1)));
  Result<Done> outcome = Error{};
  ASSERT_TRUE(p.run(destroy(&p, seconds(5), &outcome)));
  p.world.run_until(p.world.now() + seconds(60), 1000);
  EXPECT_FALSE(p.source.pairs[0]->closed());
}

TEST(DataPlane, AFailedDestroyPoisonsAndGoesOnLanding) {
  bool landed_later = false;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    WorldConfig config = with(Fault::kDestroyFails);
    config.bandwidth.nic_tx = 1'000'000;
    Pair p{config, seed};
    ASSERT_TRUE(p.run(read_all(&p, 1, 4, millis(20))));
    Result<Done> outcome = Done{};
    ASSERT_TRUE(p.run(destroy(&p, millis(100), &outcome)));
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ErrorCode::kDestinationPoisoned);
    const size_t landed = p.watcher.landed.size();
    p.world.run_until(p.world.now() + seconds(10), 100'000);
    landed_later = landed_later || p.watcher.landed.size() > landed;
  }
  EXPECT_TRUE(landed_later);
}

TEST(DataPlane, DestroyTakesTimeAndThenNothingLands) {  // S5, R5
  bool landed_meanwhile = false;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    WorldConfig config;
    config.bandwidth.nic_tx = 20'000'000;
    Pair p{config, seed};
    ASSERT_TRUE(p.run(read_all(&p, 2, 4, millis(1))));
    const size_t before = p.watcher.landed.size();
    Result<Done> outcome = Error{};
    ASSERT_TRUE(p.run(destroy(&p, seconds(5), &outcome)));
    ASSERT_TRUE(outcome.ok());
    const size_t after = p.watcher.landed.size();
    landed_meanwhile = landed_meanwhile || after > before;
    p.world.run_until(p.world.now() + seconds(5), 100'000);
    EXPECT_EQ(p.watcher.landed.size(), after);
    EXPECT_FALSE(p.reader.pair->poll().has_value());
  }
  EXPECT_TRUE(landed_meanwhile);
}

}  // namespace
}  // namespace weightlane::sim
