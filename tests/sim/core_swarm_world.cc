// The world of core_world.h. Sources register, publish words, fence and register again at their own
// pace; readers connect, read windows, check what they got, destroy, and start over; all of them
// call a server now and then.
#include <algorithm>
#include <map>
#include <set>

#include "tests/sim/core_world.h"

namespace weightlane::sim {
namespace {

constexpr uint64_t kGranules = 8;

// Holds C2 and C3: a success has landed whole, and nothing lands after the end of its queue pair or
// of its READ.
class Contract final : public WorldObserver {
 public:
  void on_read_landed(const ReadLanded& read) override {
    if (over_.contains(read.pair.value)) violations += " landed after destroy;";
    const auto key = std::pair(read.pair.value, read.work_id);
    if (completed_.contains(key)) violations += " landed after its completion;";
    landed_[key].insert(read.address);
  }
  void on_completion(Nanos, HostId, QueuePairId pair, const net::Completion& completion) override {
    const auto key = std::pair(pair.value, completion.work_id);
    if (!completed_.insert(key).second) violations += " completed twice;";
    if (completion.status != net::CompletionStatus::kSuccess) {
      failed_.insert(pair.value);
      return;
    }
    ++succeeded;
    if (failed_.contains(pair.value)) violations += " success after an error;";
    if (landed_[key].size() != completion.work_id % 16) violations += " success without its data;";
  }
  void on_queue_pair_destroyed(Nanos, QueuePairId pair) override { over_.insert(pair.value); }

  std::string violations;
  uint64_t succeeded = 0;

 private:
  std::set<uint64_t> over_;
  std::set<uint64_t> failed_;
  std::set<std::pair<uint64_t, uint64_t>> completed_;
  std::map<std::pair<uint64_t, uint64_t>, std::set<uint64_t>> landed_;
};

class Echo final : public net::RequestHandler {
 public:
  flow::Task<net::Response> handle(net::Request request) override {
    net::Response response;
    response.server = BootId{request.header.sequence};
    response.body = net::AcceptedResponse{};
    co_return response;
  }
};

flow::Task<void> serve(Host* host, Echo* echo) {
  auto serving = host->control().serve("server:7000", echo);
  co_await host->sleep_until(kForever);
}

flow::Task<void> call_server(Host* host) {
  std::unique_ptr<net::Connection> connection;
  for (uint64_t sequence = 1; sequence < 10'000; ++sequence) {
    if (connection == nullptr) {
      const Nanos deadline = host->now() + seconds(5);
      auto connected = co_await host->control().connect("server:7000", deadline);
      if (!connected.ok()) {
        co_await host->sleep_for(millis(50));
        continue;
      }
      connection = std::move(connected).value();
    }
    net::Request request;
    request.header.sequence = sequence;
    request.body = net::ListRequest{"model"};
    const Nanos deadline = host->now() + seconds(3);
    net::CallOutcome outcome = co_await connection->call(std::move(request), deadline);
    if (!std::holds_alternative<net::Response>(outcome)) connection.reset();
    co_await host->sleep_for(millis(20));
  }
}

struct Stand {
  explicit Stand(const WorldConfig& config, ChoiceSource& c) : choices(c), world(config, c) {}
  ~Stand() { world.end(); }
  ChoiceSource& choices;
  World world;
  Contract contract;
  Echo echo;
  std::vector<std::unique_ptr<Source>> sources;
};

// What one life of a source accepts with; told to readers through Stand, as a server would.
flow::Task<void> run_source(Stand* stand, Source* source) {
  Host& host = source->host;
  host.spawn(call_server(&host), "call");
  uint64_t next = 100;
  for (int round = 0; round < 10'000; ++round) {
    source->address = host.memory().allocate(kGranules * kGranule);
    for (uint64_t i = 0; i < kGranules; ++i) {
      host.memory().write(source->address + i * kGranule, next++);
    }
    auto memory = co_await host.data().register_memory(
        {.address = source->address, .length = kGranules * kGranule});
    auto words = host.data().allocate_words(2);
    if (!memory.ok() || !words.ok()) continue;
    source->memory = *memory;
    source->words = *words;
    source->endpoint = *host.data().listen(source);
    const int64_t rest = stand->choices.log_uniform(stream_of(host.id(), Subsystem::kWorkload),
                                                    "rest", millis(1).count, seconds(4).count);
    co_await host.sleep_for(nanos(rest));
    host.data().store_word(source->words, 0, next);
    host.data().stop_listening(source);
    source->endpoint.clear();
    const uint32_t how =
        stand->choices.choose(stream_of(host.id(), Subsystem::kWorkload), "how", 2);
    if (how == 0) source->pairs.clear();
    co_await host.data().deregister(source->memory);
    source->pairs.clear();
    host.data().free_words(source->words);
    host.memory().free(source->address);
  }
}

flow::Task<void> read_window(Stand* stand, Source* source, Reader* reader, uint64_t* next_id) {
  const StreamId stream = stream_of(reader->host.id(), Subsystem::kWorkload);
  const uint32_t count = 1 + stand->choices.choose(stream, "reads", 4);
  uint64_t posted = 0;
  for (uint32_t i = 0; i < count; ++i) {
    // The low four bits of a work id say how many units its READ has.
    const uint64_t id = 16 * ++*next_id;
    const bool words = stand->choices.choose(stream, "words", 4) == 1;
    const auto result = words ? reader->post_words(id + 2, source->described_words, 2)
                              : reader->post(id + 2, source->described_memory, 2 * i, 2);
    if (result == net::PostResult::kPosted) ++posted;
  }
  const bool all = co_await reader->collect(reader->completions.size() + posted, seconds(3));
  (void)all;
}

flow::Task<void> run_reader(Stand* stand, Host* host) {
  host->spawn(call_server(host), "call");
  Reader reader(*host);
  const StreamId stream = stream_of(host->id(), Subsystem::kWorkload);
  Result<Done> prepared = co_await reader.prepare(kGranules);
  for (int i = 0; !prepared.ok() && i < 100; ++i) prepared = co_await reader.prepare(kGranules);
  for (int round = 0; round < 10'000; ++round) {
    Source* source = stand->sources[stand->choices.choose(stream, "source", 2)].get();
    Result<Done> connected = Error{};
    if (!source->endpoint.empty()) connected = co_await reader.connect(source->endpoint);
    if (!connected.ok()) {
      co_await host->sleep_for(millis(10));
      continue;
    }
    uint64_t next_id = 0;
    const uint32_t windows = 1 + stand->choices.choose(stream, "windows", 4);
    for (uint32_t i = 0; i < windows; ++i) {
      co_await read_window(stand, source, &reader, &next_id);
      co_await host->sleep_for(millis(1));
    }
    const Nanos deadline = host->now() + seconds(100);
    const Result<Done> destroyed = co_await reader.pair->destroy(deadline);
    if (!destroyed.ok()) {
      host->exit();
      co_await host->sleep_until(kForever);
    }
    reader.completions.clear();
  }
}

class Director final : public HostDirector {
 public:
  explicit Director(Stand& stand) : stand_(stand) {}
  void restart(Host& host, bool reuse) override {
    if (host.id().value == 1) return host.start(serve(&host, &stand_.echo), "serve", reuse);
    if (host.id().value > 3) return host.start(run_reader(&stand_, &host), "reader", reuse);
    Source& source = *stand_.sources[host.id().value - 2];
    source.endpoint.clear();
    source.pairs.clear();
    host.start(run_source(&stand_, &source), "source", reuse);
  }

 private:
  Stand& stand_;
};

WorldConfig draw_config(ChoiceSource& choices) {
  const StreamId stream = stream_of(kWorldHost, Subsystem::kConfig);
  WorldConfig config;
  config.order = static_cast<ReadyOrder>(choices.choose(stream, "order", 4));
  config.control.codec = choices.chance(stream, "codec", 100'000);
  config.data.real_bytes = choices.chance(stream, "real", 100'000);
  config.data.fences = !choices.chance(stream, "no_fences", 300'000);
  config.bandwidth.nic_tx =
      static_cast<uint64_t>(choices.log_uniform(stream, "nic", 10'000'000, 25'000'000'000));
  config.faults = draw_swarm(choices, false);
  return config;
}

}  // namespace

SwarmResult run_swarm(ChoiceSource& choices, EventSink* sink) {
  Stand stand(draw_config(choices), choices);
  World& world = stand.world;
  world.set_sink(sink);
  world.set_observer(&stand.contract);
  world.add_host({.name = "server"});
  for (int i = 0; i < 5; ++i) {
    Host& host = world.add_host({.name = "h" + std::to_string(i)});
    if (i < 2) stand.sources.push_back(std::make_unique<Source>(host));
  }
  Director director(stand);
  for (uint32_t i = 1; i < world.host_count(); ++i) director.restart(world.host({i}), true);
  FaultInjector injector(world, InjectorConfig{}, director);
  injector.start();
  const StopReason faulty = world.run_until(seconds(20), 4'000);
  SwarmResult result;
  injector.heal(true);
  const StopReason healed = world.run_until(world.now() + seconds(5), 2'000);
  if (faulty == StopReason::kDeadlock || healed == StopReason::kDeadlock) {
    result.violations += " deadlock: " + world.waiting_report();
  }
  result.violations += stand.contract.violations;
  result.reads_succeeded = stand.contract.succeeded;
  result.hash = world.hash();
  result.events = world.counts().total();
  result.faults = world.fault_hits();
  world.end();
  for (const auto& source : stand.sources) source->pairs.clear();
  return result;
}

}  // namespace weightlane::sim
