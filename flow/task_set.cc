// TaskSet's bookkeeping. An entry is unlinked before its task is destroyed, and the set isn't
// touched after that: the frame's destructors may spawn into the set, or even own it.
#include "flow/task_set.h"

#include <exception>
#include <string>

namespace weightlane::flow {
namespace {

[[noreturn]] void task_threw(Task<void>& task, const char* name) {
  std::string what = "an exception that is no std::exception";
  try {
    task.take();
  } catch (const std::exception& exception) {
    what = exception.what();
  } catch (...) {
  }
  assertion_failed("a task must not end by an exception", __FILE__, __LINE__,
                   std::string("task ") + name + ": " + what);
}

}  // namespace

void TaskSet::spawn(Task<void> task, const char* name) {
  auto* entry = new Entry(*this, std::move(task), name);
  entry->on_done = &TaskSet::on_task_done;
  entry->first_step.coroutine = entry->task.prepare(*entry);
  entries_.push_back(*entry);
  ++size_;
  runtime_.make_ready(entry->first_step);
}

void TaskSet::remove(Entry& entry) {
  entry.leave_list();
  --size_;
  if (entry.first_step.linked) runtime_.cancel_ready(entry.first_step);
  if (size_ == 0) emptied_.notify_all();
}

std::coroutine_handle<> TaskSet::on_task_done(TaskOwner& owner) {
  Entry& entry = static_cast<Entry&>(owner);
  if (entry.task.failed()) task_threw(entry.task, entry.name);
  entry.set.remove(entry);
  delete &entry;  // last: it may take the set with it
  return std::noop_coroutine();
}

void TaskSet::cancel_all() {
  while (!entries_.empty()) {
    Entry& entry = entries_.back();
    remove(entry);
    delete &entry;
  }
}

Task<void> TaskSet::drain() {
  while (size_ > 0) co_await emptied_.wait();
}

}  // namespace weightlane::flow
