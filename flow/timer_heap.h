// A heap of timers keyed by (time, sequence), so that equal times never depend on the heap's shape.
//
// 4-ary: half the levels of a binary heap, four children beside each other. Removing works
// bottom-up: the hole sinks to a leaf along the smallest children, chosen without branches, and the
// last entry then rises from there; it nearly always came from the bottom, so it hardly rises. A
// node knows its place, so disarming is a removal like any other and nothing dead stays in the
// heap.
//
// The heap owns nothing and allocates only when it holds more timers than ever before. Whoever uses
// it hands out the sequence numbers; equal keys are not allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flow/assert.h"
#include "flow/runtime.h"
#include "flow/time.h"

namespace weightlane::flow {

class TimerHeap {
 public:
  TimerHeap() = default;
  TimerHeap(const TimerHeap&) = delete;
  TimerHeap& operator=(const TimerHeap&) = delete;

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  void push(TimerNode& node, Nanos when, uint64_t sequence) {
    WL_ASSERT(!node.linked);
    node.linked = true;
    entries_.emplace_back();
    rise(entries_.size() - 1, Entry{ordered(when), sequence, &node});
  }
  // kForever when there is none.
  Nanos top_time() const { return entries_.empty() ? kForever : unordered(entries_[0].time); }
  // The heap must not be empty.
  uint64_t top_sequence() const {
    WL_ASSERT(!entries_.empty());
    return entries_[0].sequence;
  }
  TimerNode& top() const {
    WL_ASSERT(!entries_.empty());
    return *entries_[0].node;
  }
  TimerNode& pop() {
    TimerNode& node = top();
    remove(node);
    return node;
  }
  void remove(TimerNode& node) {
    WL_ASSERT(node.linked);
    WL_ASSERT(node.slot < entries_.size() && entries_[node.slot].node == &node);
    node.linked = false;
    const size_t hole = sink(node.slot);
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole < entries_.size()) rise(hole, last);
  }
  // When an armed node is due.
  Nanos time_of(const TimerNode& node) const {
    WL_ASSERT(node.linked);
    return unordered(entries_[node.slot].time);
  }

 private:
  __extension__ using Key = unsigned __int128;
  struct Entry {
    uint64_t time = 0;  // ordered()
    uint64_t sequence = 0;
    TimerNode* node = nullptr;

    Key key() const { return (static_cast<Key>(time) << 64) | sequence; }
  };

  // int64 as an unsigned of the same order, so that a key is one 128-bit number.
  static constexpr uint64_t kSign = uint64_t{1} << 63;
  static uint64_t ordered(Nanos when) { return static_cast<uint64_t>(when.count) ^ kSign; }
  static Nanos unordered(uint64_t time) { return Nanos{static_cast<int64_t>(time ^ kSign)}; }

  void place(size_t slot, const Entry& entry) {
    entries_[slot] = entry;
    entry.node->slot = static_cast<uint32_t>(slot);
  }
  // Moves the entry up from the hole at `slot` and puts it down where it belongs.
  void rise(size_t slot, const Entry& entry) {
    const Key key = entry.key();
    while (slot > 0) {
      const size_t parent = (slot - 1) / 4;
      if (entries_[parent].key() < key) break;
      place(slot, entries_[parent]);
      slot = parent;
    }
    place(slot, entry);
  }
  size_t lesser(size_t a, size_t b) const {
    // A branch here is wrong every other time. The empty asm hides from the compiler, which would
    // make one, that `second` is 0 or 1.
    size_t second = entries_[b].key() < entries_[a].key() ? 1 : 0;
    __asm__("" : "+r"(second));
    return a + (b - a) * second;
  }
  // Moves the hole at `slot` down to a leaf; the leaf's index.
  size_t sink(size_t slot) {
    const size_t size = entries_.size();
    size_t child = slot * 4 + 1;
    while (child + 3 < size) {
      const size_t least = lesser(lesser(child, child + 1), lesser(child + 2, child + 3));
      place(slot, entries_[least]);
      slot = least;
      child = slot * 4 + 1;
    }
    if (child < size) {
      size_t least = child;
      for (size_t other = child + 1; other < size; ++other) least = lesser(least, other);
      place(slot, entries_[least]);
      slot = least;
    }
    return slot;
  }

  std::vector<Entry> entries_;
};

}  // namespace weightlane::flow
