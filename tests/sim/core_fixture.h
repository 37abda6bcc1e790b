// Two hosts of a simulated world, a source that accepts and a reader that reads: what the tests of
// the data plane share.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "flow/signal.h"
#include "sim/data_plane.h"
#include "sim/world.h"

namespace weightlane::sim {

constexpr uint64_t kGranule = 64 << 10;

// Accepts everybody and tells them the names of its two regions: memory first, words second.
class Source final : public net::Acceptor {
 public:
  explicit Source(Host& h) : host(h) {}
  net::AcceptDecision on_connect(std::span<const uint8_t> said,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    hellos.emplace_back(said.begin(), said.end());
    if (!refusal.empty()) return Error{ErrorCode::kRefused, refusal};
    described_memory = pair->describe(memory);
    described_words = pair->describe(words);
    pairs.push_back(std::move(pair));
    return net::Accept{Bytes{1, 2, 3}};
  }
  // Granule i of `granules` is tagged base + i.
  static flow::Task<void> run(Source* self, uint64_t granules, uint64_t base) {
    Host& host = self->host;
    self->address = host.memory().allocate(granules * kGranule);
    for (uint64_t i = 0; i < granules; ++i)
      host.memory().write(self->address + i * kGranule, base + i);
    auto registered = co_await host.data().register_memory(
        {.address = self->address, .length = granules * kGranule});
    auto words = host.data().allocate_words(4);
    if (!registered.ok() || !words.ok()) co_return;
    self->memory = *registered;
    self->words = *words;
    for (uint32_t i = 0; i < 4; ++i) host.data().store_word(self->words, i, 1000 + i);
    Result<std::string> endpoint = host.data().listen(self);
    self->endpoint = *endpoint;
    struct Forget {
      Source* source;
      ~Forget() { source->pairs.clear(); }
    } forget{self};
    co_await host.sleep_until(kForever);
  }

  Host& host;
  uint64_t address = 0;
  net::RegionId memory;
  net::RegionId words;
  net::RemoteRegion described_memory;
  net::RemoteRegion described_words;
  std::string endpoint;
  std::string refusal;
  std::vector<Bytes> hellos;
  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs;
};

// Reads under the control of a test: what it does is `script`, a coroutine.
class Reader {
 public:
  explicit Reader(Host& h) : host(h), wake(h) {}

  flow::Task<Result<Done>> prepare(uint64_t granules) {
    address = host.memory().allocate(granules * kGranule);
    auto registered =
        co_await host.data().register_memory({.address = address, .length = granules * kGranule});
    if (!registered.ok()) co_return registered.error();
    memory = *registered;
    auto landing = host.data().allocate_words(4);
    if (!landing.ok()) co_return landing.error();
    words = *landing;
    co_return Done{};
  }
  flow::Task<Result<Done>> connect(std::string endpoint, Nanos patience = seconds(5)) {
    const Nanos deadline = host.now() + patience;
    auto connected = co_await host.data().connect(endpoint, Bytes{9}, &wake, deadline);
    if (!connected.ok()) co_return connected.error();
    pair = std::move(connected->pair);
    payload = std::move(connected->payload);
    co_return Done{};
  }
  net::PostResult post(uint64_t work_id, net::RemoteRegion from, uint64_t first,
                       uint64_t granules) {
    net::ReadWork work;
    work.work_id = work_id;
    work.into = memory;
    work.into_offset = first * kGranule;
    work.from = from;
    work.from_offset = first * kGranule;
    work.length = granules * kGranule;
    return pair->post_read(work);
  }
  net::PostResult post_words(uint64_t work_id, net::RemoteRegion from, uint64_t count) {
    net::ReadWork work;
    work.work_id = work_id;
    work.into = words;
    work.from = from;
    work.length = count * 8;
    return pair->post_read(work);
  }
  // False: not so many by the deadline.
  flow::Task<bool> collect(size_t count, Nanos patience) {
    const Nanos deadline = host.now() + patience;
    while (completions.size() < count) {
      while (auto completion = pair->poll()) completions.push_back(*completion);
      if (completions.size() >= count) break;
      if (host.now() >= deadline) co_return false;
      co_await wake.wait_until(deadline);
    }
    co_return true;
  }
  std::string statuses() const {
    std::string text;
    for (const net::Completion& completion : completions) {
      if (!text.empty()) text += " ";
      text += net::completion_status_name(completion.status);
    }
    return text;
  }
  uint64_t tag(uint64_t granule) const { return host.memory().read(address + granule * kGranule); }

  Host& host;
  flow::Signal wake;
  uint64_t address = 0;
  net::RegionId memory;
  net::RegionId words;
  std::unique_ptr<net::QueuePair> pair;
  Bytes payload;
  std::vector<net::Completion> completions;
};

// Counts what is executed and what lands, and when.
class Watcher : public WorldObserver {
 public:
  void on_read_executed(const ReadExecuted& read) override { executed.push_back(read); }
  void on_read_landed(const ReadLanded& read) override { landed.push_back(read); }
  void on_queue_pair_destroyed(Nanos at, QueuePairId) override { destroyed = at; }
  void on_passive_dropped(Nanos at, QueuePairId) override { dropped = at; }
  std::vector<ReadExecuted> executed;
  std::vector<ReadLanded> landed;
  Nanos destroyed;
  Nanos dropped;
};

struct Pair {
  explicit Pair(const WorldConfig& config, uint64_t seed = 1, ChoiceMode mode = ChoiceMode::kSeed)
      : choices(seed, mode), world(config, choices) {
    world.set_observer(&watcher);
    source_host.start(Source::run(&source, 8, 100), "source");
    world.run_until(seconds(1), 1000);
  }
  ~Pair() { world.end(); }
  // Runs `task` as the reader's main task, to its end or to `until`.
  bool run(flow::Task<void> task, Nanos until = seconds(300)) {
    done = false;
    start(std::move(task));
    world.run_until(world.now() + until, 1'000'000, [this] { return done; });
    return done;
  }
  void start(flow::Task<void> task) {
    if (reader_host.alive()) {
      reader_host.spawn(finish(this, std::move(task)), "reader");
    } else {
      reader_host.start(finish(this, std::move(task)), "reader");
    }
  }
  static flow::Task<void> finish(Pair* self, flow::Task<void> task) {
    co_await std::move(task);
    self->done = true;
  }

  ChoiceSource choices;
  World world;
  Host& source_host = world.add_host({.name = "source"});
  Host& reader_host = world.add_host({.name = "reader"});
  Watcher watcher;
  Source source{source_host};
  Reader reader{reader_host};
  bool done = false;
};

}  // namespace weightlane::sim
