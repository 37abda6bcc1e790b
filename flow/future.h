// Promise<T> / Future<T>: one value, set once, awaited once.
//
// `co_await future` gives Result<T>: the value, kClosed when the promise died unset, and kTimeout
// from until(deadline) when the deadline came first (the future can then be awaited again). set()
// only enqueues the waiter. The shared state is counted without atomics, and outlives whichever
// side goes first; the Runtime outlives both.
//
// Promise<void> is a Promise of Done: `promise.set()`.
#pragma once

#include <coroutine>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "flow/assert.h"
#include "flow/result.h"
#include "flow/runtime.h"
#include "flow/task.h"

namespace weightlane::flow {

template <typename T>
class FutureAwaiter;

namespace detail {

template <typename T>
struct FutureState {
  enum class Phase : uint8_t { kPending, kSet, kTaken, kBroken };

  explicit FutureState(Runtime& r) : runtime(r) {}
  Runtime& runtime;
  FutureAwaiter<T>* waiter = nullptr;
  uint32_t references = 0;
  Phase phase = Phase::kPending;
  std::optional<ValueOf<T>> value;
};

template <typename T>
class FutureRef {
 public:
  FutureRef() = default;
  explicit FutureRef(FutureState<T>* state) : state_(state) {
    if (state_ != nullptr) ++state_->references;
  }
  FutureRef(const FutureRef& other) : FutureRef(other.state_) {}
  FutureRef(FutureRef&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  FutureRef& operator=(FutureRef other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~FutureRef() {
    if (state_ != nullptr && --state_->references == 0) delete state_;
  }
  explicit operator bool() const { return state_ != nullptr; }
  FutureState<T>* operator->() const { return state_; }
  FutureState<T>& operator*() const { return *state_; }

 private:
  FutureState<T>* state_ = nullptr;
};

}  // namespace detail

template <typename T>
class [[nodiscard]] FutureAwaiter final : private TimedWaiter {
  using Phase = typename detail::FutureState<T>::Phase;

 public:
  FutureAwaiter(detail::FutureRef<T> state, Nanos deadline)
      : TimedWaiter(state->runtime), state_(std::move(state)), deadline_(deadline) {
    on_fire = [](TimerNode& node) {
      auto& self = static_cast<FutureAwaiter&>(node);
      self.leave();
      self.wake();
    };
  }
  ~FutureAwaiter() { leave(); }

  bool await_ready() const noexcept { return state_->phase != Phase::kPending; }
  void await_suspend(std::coroutine_handle<> coroutine) {
    WL_ASSERT(state_->waiter == nullptr);
    state_->waiter = this;
    wait(coroutine, deadline_);
  }
  Result<ValueOf<T>> await_resume() {
    // A value that came between the deadline and this step is still taken.
    switch (state_->phase) {
      case Phase::kSet: {
        state_->phase = Phase::kTaken;
        ValueOf<T> value = std::move(*state_->value);
        state_->value.reset();
        return value;
      }
      case Phase::kBroken:
        return Error{ErrorCode::kClosed, "the promise was dropped unset"};
      case Phase::kPending:
        return Error{ErrorCode::kTimeout, "the future was not set in time"};
      case Phase::kTaken:
        break;
    }
    WL_ASSERT(!"a future gives its value once");
    return Error{ErrorCode::kClosed, "the value was taken before"};
  }

 private:
  template <typename>
  friend class Promise;
  void leave() {
    if (state_->waiter == this) state_->waiter = nullptr;
  }
  void set_or_broken() {
    leave();
    wake();
  }

  detail::FutureRef<T> state_;
  Nanos deadline_;
};

template <typename T>
class [[nodiscard]] Future {
 public:
  Future() = default;
  explicit Future(detail::FutureRef<T> state) : state_(std::move(state)) {}
  Future(Future&&) noexcept = default;
  Future& operator=(Future&&) noexcept = default;

  explicit operator bool() const { return static_cast<bool>(state_); }
  // Whether awaiting would give a result at once (a value, or kClosed).
  bool ready() const { return state_ && state_->phase != detail::FutureState<T>::Phase::kPending; }
  FutureAwaiter<T> until(Nanos deadline) const {
    WL_ASSERT(static_cast<bool>(state_));
    return FutureAwaiter<T>(state_, deadline);
  }
  FutureAwaiter<T> operator co_await() const { return until(kForever); }

 private:
  detail::FutureRef<T> state_;
};

template <typename T>
class Promise {
  using State = detail::FutureState<T>;
  using Phase = typename State::Phase;

 public:
  Promise() = default;  // empty: no state, nothing to set
  explicit Promise(Runtime& runtime) : state_(new State(runtime)) {}
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    if (this != &other) {
      abandon();
      state_ = std::move(other.state_);
    }
    return *this;
  }
  ~Promise() { abandon(); }

  explicit operator bool() const { return static_cast<bool>(state_); }
  bool is_set() const {
    return state_ && (state_->phase == Phase::kSet || state_->phase == Phase::kTaken);
  }
  Future<T> future() const {
    WL_ASSERT(static_cast<bool>(state_));
    return Future<T>(state_);
  }
  void set(ValueOf<T> value) {
    WL_ASSERT(static_cast<bool>(state_));
    WL_ASSERT(state_->phase == Phase::kPending);
    state_->value.emplace(std::move(value));
    settle(Phase::kSet);
  }
  void set()
    requires std::is_same_v<ValueOf<T>, Done>
  {
    set(Done{});
  }

 private:
  void abandon() {
    if (state_ && state_->phase == Phase::kPending) settle(Phase::kBroken);
    state_ = {};
  }
  void settle(Phase phase) {
    state_->phase = phase;
    if (state_->waiter != nullptr) state_->waiter->set_or_broken();
  }

  detail::FutureRef<T> state_;
};

}  // namespace weightlane::flow
