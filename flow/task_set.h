// TaskSet: the owner of background work. Whoever starts something that outlives the call owns a
// TaskSet.
//
// spawn() only enqueues the first step. A task that ends leaves the set at once; destroying the set
// (or cancel_all) cancels what is left, the latest spawned first. An exception out of a task breaks
// an invariant: the process stops and names the task. A set must not be destroyed by one of its own
// tasks while that runs (the end of a task is fine: a frame may hold the last reference to what
// owns the set).
//
// Declare the set after everything its tasks use, so that it is destroyed first.
#pragma once

#include <cstddef>

#include "flow/intrusive_list.h"
#include "flow/runtime.h"
#include "flow/signal.h"
#include "flow/task.h"

namespace weightlane::flow {

class TaskSet {
 public:
  explicit TaskSet(Runtime& runtime) : runtime_(runtime), emptied_(runtime) {}
  ~TaskSet() { cancel_all(); }
  TaskSet(const TaskSet&) = delete;
  TaskSet& operator=(const TaskSet&) = delete;

  // `name` must be a string literal: it is shown in deadlock reports and when the task throws.
  void spawn(Task<void> task, const char* name);
  // Cancels the latest spawned first, and what destructors may spawn meanwhile too.
  void cancel_all();
  // Returns when no task is left. Never to be awaited by a task of the same set.
  Task<void> drain();
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // visit(const char* name) for every live task, in the order of spawning.
  template <typename Visit>
  void for_each_name(Visit visit) const {
    entries_.for_each([&visit](const Entry& entry) { visit(entry.name); });
  }

 private:
  struct Entry final : TaskOwner, ListHook {
    Entry(TaskSet& s, Task<void> t, const char* n) : set(s), name(n), task(std::move(t)) {}
    TaskSet& set;
    const char* name;
    ReadyNode first_step;
    Task<void> task;
  };

  static std::coroutine_handle<> on_task_done(TaskOwner& owner);
  void remove(Entry& entry);

  Runtime& runtime_;
  size_t size_ = 0;
  Signal emptied_;
  IntrusiveList<Entry> entries_;
};

}  // namespace weightlane::flow
