// Queue<T>: first in, first out, between coroutines of one runtime; any number of poppers.
//
// A push that finds a popper waiting wakes it, and the item is *claimed*: a later pop() doesn't
// overtake. A popper cancelled after it was woken gives its claim to the next one, so no item is
// ever lost. The ring grows to the largest length seen and stays: no allocation per message. A
// Queue must outlive its poppers, and asserts it.
#pragma once

#include <coroutine>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "flow/assert.h"
#include "flow/intrusive_list.h"
#include "flow/runtime.h"

namespace weightlane::flow {

template <typename T>
class Queue;

namespace detail {

// Awaits one item; kForever and plain T for pop(), a deadline and std::optional<T> for pop_until().
template <typename T>
class PopWaiter : protected TimedWaiter, protected ListHook {
 public:
  bool await_ready() {
    if (queue_.unclaimed() == 0) return false;
    claim();
    return true;
  }
  void await_suspend(std::coroutine_handle<> coroutine) {
    queue_.poppers_.push_back(*this);
    wait(coroutine, deadline_);
  }

 protected:
  PopWaiter(Queue<T>& queue, Nanos deadline)
      : TimedWaiter(queue.runtime_), queue_(queue), deadline_(deadline) {
    on_fire = [](TimerNode& node) {
      auto& self = static_cast<PopWaiter&>(node);
      self.leave_list();
      self.wake();
    };
  }
  ~PopWaiter() {
    leave_list();
    if (claimed_) {
      --queue_.claims_;
      queue_.wake_poppers();
    }
  }
  std::optional<T> take() {
    if (!claimed_ && queue_.unclaimed() > 0) claim();  // it came between the deadline and this step
    if (!claimed_) return std::nullopt;
    claimed_ = false;
    --queue_.claims_;
    return queue_.take_front();
  }

 private:
  friend class Queue<T>;
  friend class IntrusiveList<PopWaiter>;
  void claim() {
    claimed_ = true;
    ++queue_.claims_;
  }

  Queue<T>& queue_;
  Nanos deadline_;
  bool claimed_ = false;
};

}  // namespace detail

template <typename T>
class Queue {
 public:
  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

  class [[nodiscard]] Pop final : public detail::PopWaiter<T> {
   public:
    explicit Pop(Queue& queue) : detail::PopWaiter<T>(queue, kForever) {}
    T await_resume() {
      std::optional<T> item = this->take();
      WL_ASSERT(item.has_value());
      return std::move(*item);
    }
  };
  class [[nodiscard]] PopUntil final : public detail::PopWaiter<T> {
   public:
    PopUntil(Queue& queue, Nanos deadline) : detail::PopWaiter<T>(queue, deadline) {}
    std::optional<T> await_resume() { return this->take(); }
  };

  explicit Queue(Runtime& runtime, size_t limit = kUnlimited) : runtime_(runtime), limit_(limit) {}
  ~Queue() { WL_ASSERT(poppers_.empty() && claims_ == 0); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // The queue must have room: for callers that know, or that made it unlimited.
  void push(T item) {
    WL_ASSERT(size_ < limit_);
    append(std::move(item));
  }
  // False, and the item is dropped, when the queue is full.
  [[nodiscard]] bool try_push(T item) {
    if (size_ >= limit_) return false;
    append(std::move(item));
    return true;
  }
  Pop pop() { return Pop(*this); }
  PopUntil pop_until(Nanos deadline) { return PopUntil(*this, deadline); }
  // At once or not at all; leaves alone what a woken popper has claimed.
  std::optional<T> try_pop() {
    if (unclaimed() == 0) return std::nullopt;
    return take_front();
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  friend class detail::PopWaiter<T>;

  size_t unclaimed() const { return size_ - claims_; }
  void append(T item) {
    if (size_ == ring_.size()) grow();
    ring_[(head_ + size_) & (ring_.size() - 1)].emplace(std::move(item));
    ++size_;
    wake_poppers();
  }
  T take_front() {
    std::optional<T>& slot = ring_[head_];
    T item = std::move(*slot);
    slot.reset();
    head_ = (head_ + 1) & (ring_.size() - 1);
    --size_;
    return item;
  }
  void wake_poppers() {
    while (unclaimed() > 0 && !poppers_.empty()) {
      detail::PopWaiter<T>& popper = poppers_.front();
      popper.leave_list();
      popper.claim();
      popper.wake();
    }
  }
  void grow() {
    std::vector<std::optional<T>> larger(ring_.empty() ? 8 : ring_.size() * 2);
    for (size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(ring_[(head_ + i) & (ring_.size() - 1)]);
    }
    ring_ = std::move(larger);
    head_ = 0;
  }

  Runtime& runtime_;
  size_t limit_;
  std::vector<std::optional<T>> ring_;  // a power of two of slots
  size_t head_ = 0;
  size_t size_ = 0;
  size_t claims_ = 0;  // items that belong to woken poppers
  IntrusiveList<detail::PopWaiter<T>> poppers_;
};

}  // namespace weightlane::flow
