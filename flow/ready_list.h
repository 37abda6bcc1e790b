// The ready queue in its plainest form: first in, first out, intrusive.
#pragma once

#include <cstddef>

#include "flow/assert.h"
#include "flow/runtime.h"

namespace weightlane::flow {

class ReadyList {
 public:
  ReadyList() = default;
  ReadyList(const ReadyList&) = delete;
  ReadyList& operator=(const ReadyList&) = delete;

  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }

  void push_back(ReadyNode& node) {
    WL_ASSERT(!node.linked);
    node.linked = true;
    node.next = nullptr;
    node.prev = last_;
    (last_ != nullptr ? last_->next : first_) = &node;
    last_ = &node;
    ++size_;
  }
  void remove(ReadyNode& node) {
    WL_ASSERT(node.linked);
    node.linked = false;
    (node.prev != nullptr ? node.prev->next : first_) = node.next;
    (node.next != nullptr ? node.next->prev : last_) = node.prev;
    --size_;
  }
  // The list must not be empty.
  ReadyNode& pop_front() {
    WL_ASSERT(first_ != nullptr);
    ReadyNode& node = *first_;
    remove(node);
    return node;
  }

 private:
  ReadyNode* first_ = nullptr;
  ReadyNode* last_ = nullptr;
  size_t size_ = 0;
};

}  // namespace weightlane::flow
