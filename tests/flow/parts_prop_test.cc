// Goal: TimerHeap is a map ordered by (time, sequence), and Queue loses, doubles and reorders
// nothing whoever is cancelled when. Method: RapidCheck draws operations; a std::map, and a count
// of items in and out, are the models.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "flow/loop.h"
#include "flow/queue.h"
#include "flow/task_set.h"
#include "flow/timer_heap.h"

namespace weightlane::flow::testing {
namespace {

RC_GTEST_PROP(TimerHeapModel, IsAnOrderedMap, ()) {
  TimerHeap heap;
  std::map<std::pair<int64_t, uint64_t>, TimerNode*> model;
  std::deque<TimerNode> nodes;
  std::vector<std::pair<int64_t, uint64_t>> keys;  // by node
  const auto operations = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 5), rc::gen::inRange(-20, 20)));
  uint64_t sequence = 0;
  for (const auto& [what, number] : operations) {
    if (what < 3) {
      nodes.emplace_back();
      keys.emplace_back(number, sequence);
      heap.push(nodes.back(), nanos(number), sequence);
      model[{number, sequence}] = &nodes.back();
      ++sequence;
    } else if (what == 3 && !model.empty()) {
      RC_ASSERT(&heap.top() == model.begin()->second);
      heap.pop();
      model.erase(model.begin());
    } else if (what == 4 && !nodes.empty()) {
      const size_t index = static_cast<size_t>(number + 20) % nodes.size();
      if (nodes[index].linked) {
        RC_ASSERT(heap.time_of(nodes[index]) == nanos(keys[index].first));
        heap.remove(nodes[index]);
        model.erase(keys[index]);
      }
    }
    RC_ASSERT(heap.size() == model.size());
    const Nanos first = model.empty() ? kForever : nanos(model.begin()->first.first);
    RC_ASSERT(heap.top_time() == first);
  }
  for (const auto& [key, node] : model) RC_ASSERT(&heap.pop() == node);
  RC_ASSERT(heap.empty());
}

// The queue and the vector outlive the task.
Task<void> pop_forever(Queue<int>* queue, std::vector<int>* out) {
  for (;;) {
    const int item = co_await queue->pop();
    out->push_back(item);
  }
}

Task<void> pop_until_once(Queue<int>* queue, Nanos deadline, std::vector<int>* out) {
  const std::optional<int> item = co_await queue->pop_until(deadline);
  if (item) out->push_back(*item);
}

RC_GTEST_PROP(QueueModel, LosesAndReordersNothing, ()) {
  ManualRuntime runtime;
  Queue<int> queue(runtime);
  std::vector<int> out;
  std::vector<std::unique_ptr<TaskSet>> poppers;
  const auto operations = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 6), rc::gen::inRange(0, 100)));
  int pushed = 0;
  for (const auto& [what, number] : operations) {
    if (what <= 1) queue.push(pushed++);
    if (what == 2) {
      poppers.push_back(std::make_unique<TaskSet>(runtime));
      const bool limited = number % 2 == 0;
      poppers.back()->spawn(limited ? pop_until_once(&queue, runtime.now() + nanos(number), &out)
                                    : pop_forever(&queue, &out),
                            "popper");
    }
    if (what == 3 && !poppers.empty()) {
      poppers.erase(poppers.begin() + number % static_cast<int>(poppers.size()));
    }
    if (what == 4) {
      for (int i = 0; i < number % 4; ++i) runtime.step();
    }
    if (what == 5) {
      const std::optional<int> item = queue.try_pop();
      if (item) out.push_back(*item);
    }
    RC_ASSERT(queue.size() + out.size() == static_cast<size_t>(pushed));
  }
  runtime.run();
  poppers.clear();
  while (const std::optional<int> item = queue.try_pop()) out.push_back(*item);
  RC_ASSERT(out.size() == static_cast<size_t>(pushed));
  for (int i = 0; i < pushed; ++i) RC_ASSERT(out[static_cast<size_t>(i)] == i);
}

}  // namespace
}  // namespace weightlane::flow::testing
