// race, all, with_timeout: several tasks as one.
//
// The tasks are started in place, in argument order, before the combinator suspends: between the
// caller's look at the state and a branch's wait nothing else runs. Once the outcome is decided no
// further branch is started, and the rest are cancelled in argument order before the caller sees
// the result. Dropping the combined task cancels all of them, in argument order too. Each
// combinator costs one frame and nothing per branch.
//
// The joins below are locals of the combinators' frames: they go, and cut what still runs, before
// the caller goes on.
//
// An exception out of a branch decides the outcome: the others are cancelled and it is rethrown to
// the caller.
#pragma once

#include <coroutine>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "flow/assert.h"
#include "flow/runtime.h"
#include "flow/task.h"

namespace weightlane::flow {
namespace detail {

// The value of a finished task, Done for void; rethrows.
template <typename T>
ValueOf<T> take_value(Task<T>& task) {
  if constexpr (std::is_void_v<T>) {
    task.take();
    return Done{};
  } else {
    return task.take();
  }
}

// The coroutine that waits for several tasks, and whether it may go on: after `needed` ends, or one
// failure.
class Join {
 public:
  explicit Join(size_t needed) : needed_(needed) {}
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // A branch ended; the coroutine to run next.
  std::coroutine_handle<> ended(size_t index, bool failed) {
    WL_ASSERT(!decided_);
    last_ = index;
    failed_ = failed;
    --needed_;
    decided_ = failed || needed_ == 0;
    // While branches are being started the parent goes on by the answer of await_suspend.
    if (!decided_ || starting_) return std::noop_coroutine();
    return parent_;
  }
  bool decided() const { return decided_; }
  bool failed() const { return failed_; }
  size_t last() const { return last_; }

 protected:
  void begin_starting(std::coroutine_handle<> parent) {
    parent_ = parent;
    starting_ = true;
  }
  // The answer of await_suspend: whether to stay suspended.
  bool end_starting() {
    starting_ = false;
    return !decided_;
  }

 private:
  std::coroutine_handle<> parent_ = nullptr;
  size_t needed_;
  size_t last_ = 0;
  bool starting_ = false;
  bool decided_ = false;
  bool failed_ = false;
};

template <typename T>
struct Branch final : TaskOwner {
  explicit Branch(Task<T> t) : task(std::move(t)) {
    on_done = [](TaskOwner& owner) {
      auto& self = static_cast<Branch&>(owner);
      return self.join->ended(self.index, self.task.failed());
    };
  }
  void start_in(Join& parent, size_t position) {
    if (parent.decided()) return;
    join = &parent;
    index = position;
    task.start(*this);
  }

  Join* join = nullptr;
  size_t index = 0;
  Task<T> task;
};

template <typename... Ts>
class TupleJoin final : public Join {
 public:
  TupleJoin(size_t needed, Task<Ts>... tasks)
      : Join(needed), branches_(Branch<Ts>(std::move(tasks))...) {}
  ~TupleJoin() {
    std::apply([](auto&... branch) { (branch.task.cancel(), ...); }, branches_);
  }

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> parent) {
    begin_starting(parent);
    std::apply(
        [this](auto&... branch) {
          size_t index = 0;
          (branch.start_in(*this, index++), ...);
        },
        branches_);
    return end_starting();
  }
  void await_resume() const noexcept {}

  template <size_t I>
  auto take() {
    return take_value(std::get<I>(branches_).task);
  }

 private:
  std::tuple<Branch<Ts>...> branches_;
};

template <typename Variant, typename JoinT, size_t... I>
Variant take_last(JoinT& join, std::index_sequence<I...>) {
  std::optional<Variant> result;
  ((I == join.last() ? void(result.emplace(std::in_place_index<I>, join.template take<I>()))
                     : void()),
   ...);
  return std::move(*result);
}

template <typename JoinT, size_t... I>
void rethrow_last(JoinT& join, std::index_sequence<I...>) {
  ((I == join.last() ? void(join.template take<I>()) : void()), ...);
}

template <typename Values, typename JoinT, size_t... I>
Values take_all(JoinT& join, std::index_sequence<I...>) {
  return Values{join.template take<I>()...};
}

template <typename T>
class VectorJoin final : public Join {
 public:
  explicit VectorJoin(std::vector<Task<T>> tasks) : Join(tasks.size()) {
    branches_.reserve(tasks.size());
    for (Task<T>& task : tasks) branches_.emplace_back(std::move(task));
  }
  ~VectorJoin() {
    for (Branch<T>& branch : branches_) branch.task.cancel();
  }

  bool await_ready() const noexcept { return branches_.empty(); }
  bool await_suspend(std::coroutine_handle<> parent) {
    begin_starting(parent);
    for (size_t i = 0; i < branches_.size(); ++i) branches_[i].start_in(*this, i);
    return end_starting();
  }
  void await_resume() const noexcept {}

  Task<T>& task(size_t index) { return branches_[index].task; }
  size_t size() const { return branches_.size(); }

 private:
  std::vector<Branch<T>> branches_;
};

// Runs one task until it ends or the deadline comes. When both fall into one turn, whichever the
// ready queue runs first wins: a wake-up by the timer is taken back when the task ends before it.
template <typename T>
class TimeoutJoin final : private TimedWaiter, private TaskOwner {
 public:
  TimeoutJoin(Runtime& runtime, Nanos deadline, Task<T> task)
      : TimedWaiter(runtime), deadline_(deadline), task_(std::move(task)) {
    on_fire = [](TimerNode& node) { static_cast<TimeoutJoin&>(node).wake(); };
    on_done = [](TaskOwner& owner) -> std::coroutine_handle<> {
      auto& self = static_cast<TimeoutJoin&>(owner);
      if (self.starting_) return std::noop_coroutine();
      return self.parent_;
    };
  }
  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> parent) {
    parent_ = parent;
    starting_ = true;
    task_.start(*this);
    starting_ = false;
    if (task_.done()) return false;
    wait(parent, deadline_);
    return true;
  }
  bool await_resume() const { return task_.done(); }
  Task<T>& task() { return task_; }

 private:
  Nanos deadline_;
  std::coroutine_handle<> parent_ = nullptr;
  bool starting_ = false;
  Task<T> task_;
};

}  // namespace detail

// The first to end wins; the variant's index says which. Done stands for void.
template <typename... Ts>
Task<std::variant<ValueOf<Ts>...>> race(Task<Ts>... tasks) {
  static_assert(sizeof...(Ts) > 0);
  detail::TupleJoin<Ts...> join(1, std::move(tasks)...);
  co_await join;
  co_return detail::take_last<std::variant<ValueOf<Ts>...>>(join, std::index_sequence_for<Ts...>{});
}

// All values, in argument order. Done stands for void.
template <typename... Ts>
Task<std::tuple<ValueOf<Ts>...>> all(Task<Ts>... tasks) {
  static_assert(sizeof...(Ts) > 0);
  using Values = std::tuple<ValueOf<Ts>...>;
  detail::TupleJoin<Ts...> join(sizeof...(Ts), std::move(tasks)...);
  co_await join;
  if (join.failed()) detail::rethrow_last(join, std::index_sequence_for<Ts...>{});
  co_return detail::take_all<Values>(join, std::index_sequence_for<Ts...>{});
}

template <typename T>
Task<std::vector<ValueOf<T>>> all(std::vector<Task<T>> tasks) {
  detail::VectorJoin<T> join(std::move(tasks));
  co_await join;
  if (join.failed()) detail::take_value(join.task(join.last()));  // rethrows
  std::vector<ValueOf<T>> values;
  values.reserve(join.size());
  for (size_t i = 0; i < join.size(); ++i) values.push_back(detail::take_value(join.task(i)));
  co_return values;
}

namespace detail {

template <typename T>
Task<std::optional<T>> run_until_deadline(Runtime* runtime, Nanos deadline, Task<T> task) {
  TimeoutJoin<T> join(*runtime, deadline, std::move(task));
  const bool ended = co_await join;
  if (!ended) co_return std::nullopt;
  co_return join.task().take();
}

inline Task<bool> run_until_deadline(Runtime* runtime, Nanos deadline, Task<void> task) {
  TimeoutJoin<void> join(*runtime, deadline, std::move(task));
  const bool ended = co_await join;
  if (ended) join.task().take();
  co_return ended;
}

}  // namespace detail

// The value, or nothing when the deadline came first and the task was cancelled; for Task<void>,
// a bool. The task is started even when the deadline has passed. `runtime` outlives the call.
template <typename T>
auto with_timeout(Runtime& runtime, Nanos deadline, Task<T> task) {
  return detail::run_until_deadline(&runtime, deadline, std::move(task));
}

}  // namespace weightlane::flow
