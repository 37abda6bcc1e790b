// The world's one queue of times, keyed (time, sequence), and its list of ready coroutines.
//
// TimerQueue is flow's heap with the host of each timer in its key, so that a paused host's timers
// and messages can be parked and put back in their order; what belongs to no process (the network,
// the hardware) is the world's.
#pragma once

#include <cstdint>

#include "flow/assert.h"
#include "flow/runtime.h"
#include "flow/timer_heap.h"
#include "sim/choices.h"

namespace weightlane::sim {

class TimerQueue {
 public:
  struct Entry {
    int64_t at = 0;
    uint64_t key = 0;  // sequence << kHostBits | host: ties go by order of arming
    flow::TimerNode* node = nullptr;

    HostId host() const { return {static_cast<uint32_t>(key & (kHostLimit - 1))}; }
    uint64_t sequence() const { return key >> kHostBits; }
  };
  static constexpr uint32_t kHostBits = 18;  // leaves 46 bits of sequence
  static constexpr uint32_t kHostLimit = 1u << kHostBits;
  static constexpr uint32_t kParked = 1u << 31;  // in a node's slot: parked_timers_ of its host

  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  int64_t top_time() const { return heap_.top_time().count; }
  void arm(flow::TimerNode& node, HostId host, int64_t at) {
    push({at, next_sequence_++ << kHostBits | host.value, &node});
  }
  // With the key it had before: what was parked keeps its place.
  void push(Entry entry) { heap_.push(*entry.node, Nanos{entry.at}, entry.key); }
  void disarm(flow::TimerNode& node) { heap_.remove(node); }
  Entry pop() {
    const Entry entry{heap_.top_time().count, heap_.top_sequence(), &heap_.top()};
    heap_.remove(*entry.node);
    return entry;
  }

 private:
  flow::TimerHeap heap_;
  uint64_t next_sequence_ = 0;
};

class World;

// A timer of the simulator itself: calls a function at a time of the world, and disarms itself when
// destroyed. With a host it is heard by that host's process, so it waits while the process is
// paused.
class Alarm final : private flow::TimerNode {
 public:
  using Call = void (*)(void* context);

  Alarm(World& world, Call call, void* context) : world_(world), call_(call), context_(context) {
    on_fire = fire;
  }
  ~Alarm() { disarm(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void arm(Nanos at, HostId host = kWorldHost);
  void disarm() {
    if (linked) disarm_linked();
  }
  bool armed() const { return linked; }
  // To tell the simulator's own timers from those of the processes.
  static bool is_alarm(const flow::TimerNode& node) { return node.on_fire == fire; }

 private:
  static void fire(flow::TimerNode& node) {
    auto& self = static_cast<Alarm&>(node);
    self.call_(self.context_);
  }
  void disarm_linked();

  World& world_;
  Call call_;
  void* context_;
};

// First in, first out, with removal from anywhere; nodes carry their host in `slot`.
class ReadyList {
 public:
  bool empty() const { return size_ == 0; }
  uint32_t size() const { return size_; }
  flow::ReadyNode* front() const { return head_; }
  flow::ReadyNode* nth(uint32_t index) const {
    flow::ReadyNode* node = head_;
    while (index-- > 0) node = node->next;
    return node;
  }
  void push_back(flow::ReadyNode& node) {
    WL_ASSERT(!node.linked);
    node.linked = true;
    node.next = nullptr;
    node.prev = tail_;
    (tail_ != nullptr ? tail_->next : head_) = &node;
    tail_ = &node;
    ++size_;
  }
  void remove(flow::ReadyNode& node) {
    (node.prev != nullptr ? node.prev->next : head_) = node.next;
    (node.next != nullptr ? node.next->prev : tail_) = node.prev;
    node.next = node.prev = nullptr;
    node.linked = false;
    --size_;
  }

 private:
  flow::ReadyNode* head_ = nullptr;
  flow::ReadyNode* tail_ = nullptr;
  uint32_t size_ = 0;
};

}  // namespace weightlane::sim
