// What flow costs on one core. Bars: 8 M timer wake-ups/s, 15 M yields/s, no allocation per wake-up
// after warm-up.
//
// Each benchmark reports items/s and `allocs`, the operator news per item (frames among them) once
// warm. Run with
// --benchmark_repetitions=5 --benchmark_report_aggregates_only=true and take the median; the
// machine may be shared.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "flow/combinators.h"
#include "flow/future.h"
#include "flow/loop.h"
#include "flow/queue.h"
#include "flow/task_set.h"
#include "tests/flow/alloc_count.h"

namespace weightlane::flow::testing {
namespace {

// For those benchmarks that only wake: one allocation fails them.
enum class Allocates { kYes, kNever };

constexpr int64_t kStepsPerIteration = 1000;

void report(benchmark::State& state, Allocates allowed, int64_t items, int64_t allocations) {
  state.SetItemsProcessed(items);
  state.counters["allocs"] = static_cast<double>(allocations) / static_cast<double>(items);
  if (allowed == Allocates::kNever && allocations != 0) state.SkipWithError("it allocates");
}

// `wakes` outlives the task.
Task<void> sleep_forever(Runtime* runtime, Rng rng, int64_t* wakes) {
  for (;;) {
    const int64_t span = static_cast<int64_t>(rng.below(1000));
    co_await runtime->sleep_for(nanos(span + 1));
    ++*wakes;
  }
}

// A wake-up: the timer fires, the coroutine runs, draws a span and arms the next.
void timer_wake_ups(benchmark::State& state) {
  ManualRuntime runtime;
  int64_t wakes = 0;
  for (int64_t i = 0; i < state.range(0); ++i) {
    runtime.spawn(sleep_forever(&runtime, Rng(7, static_cast<uint64_t>(i)), &wakes), "sleeper");
  }
  const int64_t steps = kStepsPerIteration + state.range(0);
  for (int64_t i = 0; i < 4 * steps; ++i) runtime.step();
  wakes = 0;
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    for (int64_t i = 0; i < kStepsPerIteration; ++i) runtime.step();
  }
  report(state, Allocates::kNever, wakes, allocations_made() - allocations);
}
BENCHMARK(timer_wake_ups)->Arg(100)->Arg(1000)->Arg(10000);

Task<void> yield_forever(Runtime* runtime) {
  for (;;) co_await runtime->yield();
}

void yields(benchmark::State& state) {
  ManualRuntime runtime;
  for (int64_t i = 0; i < state.range(0); ++i) runtime.spawn(yield_forever(&runtime), "yielder");
  for (int64_t i = 0; i < 4 * state.range(0); ++i) runtime.step();
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    for (int64_t i = 0; i < kStepsPerIteration; ++i) runtime.step();
  }
  const int64_t items = state.iterations() * kStepsPerIteration;
  report(state, Allocates::kNever, items, allocations_made() - allocations);
}
BENCHMARK(yields)->Arg(1)->Arg(100)->Arg(1000);

Task<void> empty_task() { co_return; }

void spawn_and_end(benchmark::State& state) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    set.spawn(empty_task(), "empty");
    runtime.step();
  }
  report(state, Allocates::kYes, state.iterations(), allocations_made() - allocations);
}
BENCHMARK(spawn_and_end);

void spawn_sleep_and_drop(benchmark::State& state) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  int64_t wakes = 0;
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    set.spawn(sleep_forever(&runtime, Rng(1), &wakes), "sleeper");
    runtime.step();
    set.cancel_all();
  }
  report(state, Allocates::kYes, state.iterations(), allocations_made() - allocations);
}
BENCHMARK(spawn_sleep_and_drop);

Task<int> one() { co_return 1; }

Task<void> call_forever(Runtime* runtime, int64_t* calls) {
  for (;;) {
    for (int i = 0; i < 100; ++i) {
      const int value = co_await one();
      *calls += value;
    }
    co_await runtime->yield();
  }
}

void awaited_calls(benchmark::State& state) {
  ManualRuntime runtime;
  int64_t calls = 0;
  runtime.spawn(call_forever(&runtime, &calls), "caller");
  const int64_t allocations = allocations_made();
  for (auto _ : state) runtime.step();
  report(state, Allocates::kYes, calls, allocations_made() - allocations);
}
BENCHMARK(awaited_calls);

// The queues outlive the task.
Task<void> echo_forever(Queue<uint64_t>* in, Queue<uint64_t>* out) {
  for (;;) {
    const uint64_t item = co_await in->pop();
    out->push(item + 1);
  }
}

void queue_messages(benchmark::State& state) {
  ManualRuntime runtime;
  Queue<uint64_t> there(runtime);
  Queue<uint64_t> back(runtime);
  TaskSet set(runtime);
  set.spawn(echo_forever(&there, &back), "ping");
  set.spawn(echo_forever(&back, &there), "pong");
  there.push(1);
  for (int i = 0; i < 100; ++i) runtime.step();
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    for (int64_t i = 0; i < kStepsPerIteration; ++i) runtime.step();
  }
  const int64_t items = state.iterations() * kStepsPerIteration;
  report(state, Allocates::kNever, items, allocations_made() - allocations);
}
BENCHMARK(queue_messages);

// A call: a promise, a message to the server, an answer through the promise, with a deadline that
// never comes.
struct Call {
  int argument = 0;
  Promise<int> reply;
};

Task<void> serve_calls(Queue<Call>* calls) {
  for (;;) {
    Call call = co_await calls->pop();
    call.reply.set(call.argument + 1);
  }
}

Task<void> make_calls(Runtime* runtime, Queue<Call>* calls, int64_t* answered) {
  for (;;) {
    Promise<int> promise(*runtime);
    const Future<int> future = promise.future();
    calls->push(Call{1, std::move(promise)});
    const Result<int> reply = co_await future.until(runtime->now() + seconds(1));
    if (reply.ok()) ++*answered;
  }
}

void promise_calls(benchmark::State& state) {
  ManualRuntime runtime;
  Queue<Call> calls(runtime);
  TaskSet set(runtime);
  int64_t answered = 0;
  set.spawn(serve_calls(&calls), "server");
  set.spawn(make_calls(&runtime, &calls, &answered), "client");
  for (int i = 0; i < 100; ++i) runtime.step();
  answered = 0;
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    for (int64_t i = 0; i < kStepsPerIteration; ++i) runtime.step();
  }
  report(state, Allocates::kYes, answered, allocations_made() - allocations);
}
BENCHMARK(promise_calls);

Task<void> yield_once(Runtime* runtime) { co_await runtime->yield(); }

Task<void> timeouts_forever(Runtime* runtime, int64_t* ended) {
  for (;;) {
    const Nanos deadline = runtime->now() + seconds(1);
    const bool in_time = co_await with_timeout(*runtime, deadline, yield_once(runtime));
    *ended += in_time ? 1 : 0;
  }
}

void tasks_with_timeout(benchmark::State& state) {
  ManualRuntime runtime;
  int64_t ended = 0;
  runtime.spawn(timeouts_forever(&runtime, &ended), "timeouts");
  for (int i = 0; i < 100; ++i) runtime.step();
  ended = 0;
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    for (int64_t i = 0; i < kStepsPerIteration; ++i) runtime.step();
  }
  report(state, Allocates::kYes, ended, allocations_made() - allocations);
}
BENCHMARK(tasks_with_timeout);

// A world as the simulator makes it thousands of: 30 actors of 3 coroutines (mail, a heartbeat,
// calls to a neighbour with a deadline), 2,000 events, dropped.
struct Actor {
  explicit Actor(Runtime& runtime) : mail(runtime), tasks(runtime) {}
  Queue<Call> mail;
  TaskSet tasks;  // last: gone before the mail
};

Task<int> ask(Runtime* runtime, Queue<Call>* mail, int argument) {
  Promise<int> promise(*runtime);
  const Future<int> future = promise.future();
  mail->push(Call{argument, std::move(promise)});
  const Result<int> reply = co_await future.until(runtime->now() + millis(5));
  co_return reply.ok() ? reply.value() : 0;
}

Task<void> call_neighbour(Runtime* runtime, Queue<Call>* mail, Rng rng) {
  for (;;) {
    const int64_t span = static_cast<int64_t>(rng.below(1000));
    co_await runtime->sleep_for(micros(span));
    const int reply = co_await ask(runtime, mail, 1);
    benchmark::DoNotOptimize(reply);
  }
}

void world_of_30(benchmark::State& state) {
  int64_t wakes = 0;
  const int64_t allocations = allocations_made();
  for (auto _ : state) {
    ManualRuntime runtime;
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 30; ++i) actors.push_back(std::make_unique<Actor>(runtime));
    for (uint64_t i = 0; i < 30; ++i) {
      Actor& actor = *actors[i];
      actor.tasks.spawn(serve_calls(&actor.mail), "mail");
      actor.tasks.spawn(sleep_forever(&runtime, Rng(1, i), &wakes), "heartbeat");
      actor.tasks.spawn(call_neighbour(&runtime, &actors[(i + 1) % 30]->mail, Rng(2, i)), "calls");
    }
    for (int i = 0; i < 2000; ++i) runtime.step();
    for (auto& actor : actors) actor->tasks.cancel_all();
  }
  report(state, Allocates::kYes, state.iterations(), allocations_made() - allocations);
}
BENCHMARK(world_of_30)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace weightlane::flow::testing

BENCHMARK_MAIN();
