// How fast the core is: events of its own, and whole small worlds, per second and core.
#include <benchmark/benchmark.h>

#include "tests/sim/core_world.h"

namespace weightlane::sim {
namespace {

flow::Task<void> nap(Host* host, Nanos every) {
  while (true) co_await host->sleep_for(every);
}

// Sleeping tasks only: a timer and a step per wake-up.
void BM_Timers(benchmark::State& state) {
  WorldConfig config;
  config.order = static_cast<ReadyOrder>(state.range(0));
  ChoiceSource choices(1);
  World world(config, choices);
  for (int i = 0; i < 16; ++i) {
    Host& host = world.add_host({});
    host.start(nap(&host, micros(100 + i)), "nap");
    for (int j = 0; j < 5; ++j) host.spawn(nap(&host, micros(100 + i + 17 * j)), "nap");
  }
  uint64_t events = 0;
  for (auto _ : state) {
    const uint64_t before = world.counts().total();
    world.run_until(kForever, 10'000);
    events += world.counts().total() - before;
  }
  state.counters["events"] =
      benchmark::Counter(static_cast<double>(events), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Timers)->Arg(0)->Arg(1)->Arg(2)->Arg(3);

// Windows of READs between two hosts: post, execute, land, complete.
void BM_Reads(benchmark::State& state) {
  uint64_t events = 0;
  uint64_t reads = 0;
  Pair p{WorldConfig{}};
  p.world.set_observer(nullptr);
  const auto script = [](Pair* q) -> flow::Task<void> {
    const Result<Done> prepared = co_await q->reader.prepare(8);
    const Result<Done> connected = co_await q->reader.connect(q->source.endpoint);
    if (!prepared.ok() || !connected.ok()) co_return;
    while (true) {
      for (uint64_t i = 0; i < 8; ++i) q->reader.post(i, q->source.described_memory, i, 1);
      const bool all = co_await q->reader.collect(8, seconds(10));
      if (!all) co_return;
      q->reader.completions.clear();
    }
  };
  p.start(script(&p));
  for (auto _ : state) {
    const EventCounts before = p.world.counts();
    p.world.run_until(kForever, 10'000);
    events += p.world.counts().total() - before.total();
    reads += p.world.counts().completions - before.completions;
  }
  state.counters["events"] =
      benchmark::Counter(static_cast<double>(events), benchmark::Counter::kIsRate);
  state.counters["reads"] =
      benchmark::Counter(static_cast<double>(reads), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Reads);

// The swarm's small world: everything in it but the protocol, with its observer.
void BM_SwarmWorlds(benchmark::State& state) {
  uint64_t seed = 0;
  uint64_t events = 0;
  for (auto _ : state) {
    ChoiceSource choices(seed++);
    events += run_swarm(choices).events;
  }
  state.counters["events"] =
      benchmark::Counter(static_cast<double>(events), benchmark::Counter::kIsRate);
  state.counters["worlds"] =
      benchmark::Counter(static_cast<double>(seed), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_SwarmWorlds);

}  // namespace
}  // namespace weightlane::sim

BENCHMARK_MAIN();
