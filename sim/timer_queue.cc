// Equal times are decided by the sequence number, never by the heap's shape: a run must not depend
// on what else was armed.
#include "sim/timer_queue.h"

namespace weightlane::sim {

void TimerQueue::sift_up(size_t at, Entry entry) {
  while (at > 0) {
    const size_t parent = (at - 1) / 4;
    if (!entry.before(heap_[parent])) break;
    put(at, heap_[parent]);
    at = parent;
  }
  put(at, entry);
}

void TimerQueue::sift_down(size_t at, Entry entry) {
  const size_t size = heap_.size();
  // The hole sinks to a leaf along the smallest children, chosen without branches, and the entry
  // rises from there: it came from the bottom.
  const auto lesser = [this](size_t a, size_t b) {
    return a + (b - a) * static_cast<size_t>(heap_[b].before(heap_[a]));
  };
  size_t child = at * 4 + 1;
  while (child + 3 < size) {
    const size_t least = lesser(lesser(child, child + 1), lesser(child + 2, child + 3));
    put(at, heap_[least]);
    at = least;
    child = at * 4 + 1;
  }
  if (child < size) {
    size_t least = child;
    for (size_t next = child + 1; next < size; ++next) least = lesser(least, next);
    put(at, heap_[least]);
    at = least;
  }
  sift_up(at, entry);
}

void TimerQueue::disarm(flow::TimerNode& node) {
  WL_ASSERT(node.linked);
  const size_t at = node.slot;
  WL_ASSERT(at < heap_.size() && heap_[at].node == &node);
  node.linked = false;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (at == heap_.size()) return;
  sift_down(at, last);
}

TimerQueue::Entry TimerQueue::pop() {
  const Entry top = heap_.front();
  top.node->linked = false;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (!heap_.empty()) sift_down(0, last);
  return top;
}

}  // namespace weightlane::sim
