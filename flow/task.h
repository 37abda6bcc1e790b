// Task<T>: a lazy, single-threaded coroutine with exactly one owner.
//
// Nothing runs until the task is awaited (`co_await std::move(task)`) or started by an owner
// (TaskSet, race, all, with_timeout, a runtime). Awaiting transfers control symmetrically, so a
// chain of any length uses no stack.
//
// Dropping a Task cancels it: the frame of what it awaits is destroyed before its own, so
// destructors run innermost first, each frame's locals in reverse order. Awaiters take their timers
// and queue places back in their destructors; after the drop nothing refers to the task. A
// cancelled task sees no exception and runs no code but destructors.
//
// What a task must not do: be dropped by code that it is itself running (a task can't destroy its
// own owner; hand that to someone else's task); keep references to parameters that the caller
// doesn't promise to keep (pass by value). Dropping a nested chain recurses once per level: bound
// the depth (10^5 is fine, 10^6 is not).
//
// An exception leaves the task into whoever awaits it. Expected outcomes are Result<T>, not
// exceptions.
#pragma once

#include <coroutine>
#include <exception>
#include <type_traits>
#include <utility>
#include <variant>

#include "flow/assert.h"
#include "flow/result.h"
#include "flow/runtime.h"

namespace weightlane::flow {

// What a started task reports to. `on_done` is called once, when the task has ended and is
// suspended for good; it returns the coroutine to run next (std::noop_coroutine() for none) and may
// destroy the task.
struct TaskOwner {
  std::coroutine_handle<> (*on_done)(TaskOwner&) = nullptr;
};

// What a combinator holds for a T: Done stands for void.
template <typename T>
using ValueOf = std::conditional_t<std::is_void_v<T>, Done, T>;

namespace detail {

class TaskPromiseBase {
 public:
  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <typename P>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<P> self) const noexcept {
      TaskPromiseBase& promise = self.promise();
      if (promise.continuation_) return promise.continuation_;
      return promise.owner_->on_done(*promise.owner_);
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  void continue_with(std::coroutine_handle<> continuation) { continuation_ = continuation; }
  void report_to(TaskOwner& owner) { owner_ = &owner; }

 private:
  std::coroutine_handle<> continuation_ = nullptr;
  TaskOwner* owner_ = nullptr;
};

template <typename T>
class TaskPromise final : public TaskPromiseBase {
 public:
  Task<T> get_return_object() noexcept;
  void return_value(T value) { result_.template emplace<1>(std::move(value)); }
  void unhandled_exception() noexcept { result_.template emplace<2>(std::current_exception()); }
  bool failed() const { return result_.index() == 2; }
  T take() {
    if (failed()) std::rethrow_exception(std::get<2>(std::move(result_)));
    WL_ASSERT(result_.index() == 1);
    return std::move(*std::get_if<1>(&result_));
  }

 private:
  std::variant<std::monostate, T, std::exception_ptr> result_;
};

template <>
class TaskPromise<void> final : public TaskPromiseBase {
 public:
  Task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void unhandled_exception() noexcept { exception_ = std::current_exception(); }
  bool failed() const { return exception_ != nullptr; }
  void take() {
    if (failed()) std::rethrow_exception(std::exchange(exception_, nullptr));
  }

 private:
  std::exception_ptr exception_;
};

}  // namespace detail

template <typename T>
class [[nodiscard]] Task {
  static_assert(!std::is_reference_v<T>, "a Task returns values; return a pointer instead");

 public:
  using promise_type = detail::TaskPromise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      cancel();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Task() { cancel(); }

  // Drops the work, if any; the task is empty afterwards.
  void cancel() {
    if (Handle handle = std::exchange(handle_, nullptr)) handle.destroy();
  }
  explicit operator bool() const { return handle_ != nullptr; }
  bool done() const { return handle_ && handle_.done(); }

  // For owners. Runs the task in place until it first suspends; `owner` hears of the end, perhaps
  // before this returns.
  void start(TaskOwner& owner) {
    WL_ASSERT(handle_ && !handle_.done());
    handle_.promise().report_to(owner);
    handle_.resume();
  }
  // For owners that let a ready queue make the first step.
  std::coroutine_handle<> prepare(TaskOwner& owner) {
    WL_ASSERT(handle_ && !handle_.done());
    handle_.promise().report_to(owner);
    return handle_;
  }
  // For owners, after the end: whether it ended by an exception, and the value (or the exception,
  // rethrown).
  bool failed() const { return handle_.promise().failed(); }
  T take() {
    WL_ASSERT(done());
    return handle_.promise().take();
  }

  class Awaiter {
   public:
    explicit Awaiter(Task task) : task_(std::move(task)) {}
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> continuation) noexcept {
      task_.handle_.promise().continue_with(continuation);
      return task_.handle_;
    }
    T await_resume() { return task_.handle_.promise().take(); }

   private:
    Task task_;  // so that the frame goes at the end of the co_await expression
  };
  Awaiter operator co_await() && {
    WL_ASSERT(handle_ && !handle_.done());
    return Awaiter(std::move(*this));
  }

 private:
  friend promise_type;
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_ = nullptr;
};

namespace detail {
template <typename T>
Task<T> TaskPromise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}
inline Task<void> TaskPromise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}
}  // namespace detail

}  // namespace weightlane::flow
