// Goal: random task trees give the same results, in the same order, at the same times, as a plain
// interpreter; and a tree that is cut off after any number of steps leaves nothing behind. Method:
// RapidCheck draws a tree (tree.h); it runs as coroutines on ManualRuntime and as callbacks in the
// model (model.h); their logs, which hold starts, ends and cancellations, must be equal. Then, for
// every k, both are dropped after k steps: logs equal again, no allocation left, no node linked.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>
#include <variant>

#include "flow/combinators.h"
#include "flow/future.h"
#include "flow/loop.h"
#include "flow/task_set.h"
#include "tests/flow/alloc_count.h"
#include "tests/flow/model.h"
#include "tests/flow/tree.h"

namespace weightlane::flow::testing {
namespace {

struct Env {
  Runtime* runtime = nullptr;
  Log* log = nullptr;
  int64_t now() const { return runtime->now().count; }
};

// Logs how a node's frame came to its end.
class Scope {
 public:
  Scope(const Env* env, int id) : env_(env), id_(id) { write("start"); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() {
    if (!ended_) write("cancel");
  }
  void end() {
    ended_ = true;
    write("end");
  }

 private:
  void write(const char* what) { env_->log->push_back(log_line(what, id_, env_->now())); }
  const Env* env_;
  int id_;
  bool ended_ = false;
};

// The Env and the Node outlive the tasks.
Task<int> eval(const Env* env, const Node* node);

Task<void> eval_and_forget(const Env* env, const Node* node) {
  try {
    co_await eval(env, node);
  } catch (int) {
  }
}

Task<void> settle_later(Runtime* runtime, Nanos span, Promise<int> promise, int value, bool set) {
  co_await runtime->sleep_for(span);
  if (set) promise.set(value);
}

Task<int> await_promise(const Env* env, const Node* node, bool set) {
  TaskSet setters(*env->runtime);
  Promise<int> promise(*env->runtime);
  const Future<int> future = promise.future();
  setters.spawn(settle_later(env->runtime, nanos(node->span), std::move(promise), node->id, set),
                "setter");
  const Result<int> result = co_await future;
  co_return result.ok() ? result.value() : kBroken;
}

Task<int> await_until(const Env* env, const Node* node) {
  const Promise<int> promise(*env->runtime);
  const Result<int> result =
      co_await promise.future().until(env->runtime->now() + nanos(node->span));
  co_return result.ok() ? result.value() : kTimedOut;
}

Task<int> eval_race(const Env* env, const Node* node) {
  auto winner = co_await race(eval(env, &node->children[0]), eval(env, &node->children[1]),
                              eval(env, &node->children[2]));
  const int value = std::visit([](int v) { return v; }, winner);
  co_return static_cast<int>(winner.index()) * 1000 + value;
}

Task<int> eval_all_vector(const Env* env, const Node* node) {
  std::vector<Task<int>> tasks;
  for (const Node& child : node->children) tasks.push_back(eval(env, &child));
  const std::vector<int> values = co_await all(std::move(tasks));
  int sum = 0;
  for (const int value : values) sum += value;
  co_return sum;
}

Task<int> eval_all_tuple(const Env* env, const Node* node) {
  const auto [a, b] = co_await all(eval(env, &node->children[0]), eval(env, &node->children[1]));
  co_return a + b;
}

Task<int> eval_timeout(const Env* env, const Node* node) {
  const Nanos deadline = env->runtime->now() + nanos(node->span);
  const std::optional<int> value =
      co_await with_timeout(*env->runtime, deadline, eval(env, &node->children[0]));
  co_return value.value_or(kTimedOut);
}

Task<int> eval_spawn(const Env* env, const Node* node) {
  TaskSet set(*env->runtime);
  for (const Node& child : node->children) set.spawn(eval_and_forget(env, &child), "child");
  co_await set.drain();
  co_return node->id;
}

Task<int> eval_catch(const Env* env, const Node* node) {
  try {
    co_return co_await eval(env, &node->children[0]);
  } catch (int thrown) {
    co_return thrown;
  }
}

Task<int> eval_sequence(const Env* env, const Node* node) {
  int sum = 0;
  for (const Node& child : node->children) {
    const int value = co_await eval(env, &child);
    sum += value;
  }
  co_return sum;
}

Task<int> eval_yield(const Env* env, const Node* node) {
  for (int64_t i = 0; i < node->span; ++i) co_await env->runtime->yield();
  co_return node->id;
}

Task<int> eval_sleep(const Env* env, const Node* node) {
  co_await env->runtime->sleep_for(nanos(node->span));
  co_return node->id;
}

Task<int> eval_leaf(const Node* node) {
  if (node->kind == Node::Kind::kThrow) throw node->id;
  co_return node->id;
}

Task<int> eval_inner(const Env* env, const Node* node) {
  using Kind = Node::Kind;
  switch (node->kind) {
    case Kind::kReturn:
    case Kind::kThrow:
      return eval_leaf(node);
    case Kind::kSleep:
      return eval_sleep(env, node);
    case Kind::kYield:
      return eval_yield(env, node);
    case Kind::kAwaitSet:
      return await_promise(env, node, true);
    case Kind::kAwaitBroken:
      return await_promise(env, node, false);
    case Kind::kAwaitUntil:
      return await_until(env, node);
    case Kind::kSequence:
      return eval_sequence(env, node);
    case Kind::kCatch:
      return eval_catch(env, node);
    case Kind::kRace:
      return eval_race(env, node);
    case Kind::kAllVector:
      return eval_all_vector(env, node);
    case Kind::kAllTuple:
      return eval_all_tuple(env, node);
    case Kind::kTimeout:
      return eval_timeout(env, node);
    case Kind::kSpawn:
      return eval_spawn(env, node);
  }
  return eval_leaf(node);
}

Task<int> eval(const Env* env, const Node* node) {
  Scope scope(env, node->id);
  const int value = co_await eval_inner(env, node);
  scope.end();
  co_return value;
}

Task<void> run_root(const Env* env, const Node* node, Outcome* outcome) {
  try {
    outcome->value = co_await eval(env, node);
  } catch (int thrown) {
    outcome->value = thrown;
    outcome->thrown = true;
  }
}

constexpr int kAllSteps = 1 << 20;

struct Run {
  Log log;
  Outcome outcome;
  int steps = 0;
  size_t nodes_left = 0;  // after the cut
};

Run run_tree(const Node& tree, int steps_max) {
  Run run;
  ManualRuntime runtime;
  const Env env{&runtime, &run.log};
  {
    TaskSet set(runtime);
    set.spawn(run_root(&env, &tree, &run.outcome), "root");
    while (run.steps < steps_max && runtime.step()) ++run.steps;
  }
  run.nodes_left = runtime.loop().ready_count() + runtime.loop().timer_count();
  return run;
}

Run run_model(const Node& tree, int steps_max) {
  Run run;
  ModelWorld world;
  {
    Execution root(&world, &tree, [&run](Outcome o) { run.outcome = o; });
    const Ticket first = world.post([&root] { root.start(); });
    while (run.steps < steps_max && world.step()) ++run.steps;
  }
  run.log = std::move(world.log);
  return run;
}

constexpr int kTreesPerCase = 100;  // RapidCheck runs 100 cases

Node draw_tree() {
  const auto byte = rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint8_t>());
  const auto bytes = *rc::gen::scale(6.0, rc::gen::container<std::vector<uint8_t>>(byte));
  return TreeReader(bytes).read();
}

RC_GTEST_PROP(FlowTree, AgreesWithThePlainInterpreter, ()) {
  size_t events = 0;
  for (int i = 0; i < kTreesPerCase; ++i) {
    const Node tree = draw_tree();
    const Run expected = run_model(tree, kAllSteps);
    const Run actual = run_tree(tree, kAllSteps);
    events += expected.log.size();
    RC_ASSERT(actual.log == expected.log);
    RC_ASSERT(actual.outcome.value == expected.outcome.value);
    RC_ASSERT(actual.outcome.thrown == expected.outcome.thrown);
    RC_ASSERT(actual.steps == expected.steps);
    RC_ASSERT(actual.nodes_left == 0u);
  }
  RC_CLASSIFY(events > 20 * kTreesPerCase, "more than 20 events a tree");
}

RC_GTEST_PROP(FlowTree, CanBeCutAnywhere, ()) {
  for (int i = 0; i < kTreesPerCase; ++i) {
    const Node tree = draw_tree();
    const int cuts = std::min(run_model(tree, kAllSteps).steps, 200);
    for (int k = 0; k <= cuts; ++k) {
      const Run expected = run_model(tree, k);
      bool equal = false;
      size_t nodes_left = 0;
      const int64_t live_before = allocations_live();
      {
        const Run actual = run_tree(tree, k);
        nodes_left = actual.nodes_left;
        equal = actual.log == expected.log;
      }
      const int64_t live_after = allocations_live();
      RC_ASSERT(equal);
      RC_ASSERT(live_after == live_before);
      RC_ASSERT(nodes_left == 0u);
    }
  }
}

}  // namespace
}  // namespace weightlane::flow::testing
