// A doubly linked list whose links live in its elements, so that joining and leaving allocate
// nothing and an element can leave in constant time from wherever it is (its destructor, usually).
// Not movable: elements point at it.
#pragma once

#include "flow/assert.h"

namespace weightlane::flow {

class ListHook {
 public:
  ListHook() = default;
  ListHook(const ListHook&) = delete;
  ListHook& operator=(const ListHook&) = delete;

  bool in_list() const { return next_ != nullptr; }
  void leave_list() {
    if (next_ == nullptr) return;
    next_->previous_ = previous_;
    previous_->next_ = next_;
    next_ = nullptr;
    previous_ = nullptr;
  }

 private:
  template <typename T>
  friend class IntrusiveList;
  ListHook* next_ = nullptr;
  ListHook* previous_ = nullptr;
};

// T derives from ListHook. The list owns nothing.
template <typename T>
class IntrusiveList {
 public:
  IntrusiveList() { end_.next_ = end_.previous_ = &end_; }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  bool empty() const { return end_.next_ == &end_; }
  T& front() const { return static_cast<T&>(*end_.next_); }
  T& back() const { return static_cast<T&>(*end_.previous_); }
  void push_back(T& element) {
    ListHook& hook = element;
    WL_ASSERT(!hook.in_list());
    hook.previous_ = end_.previous_;
    hook.next_ = &end_;
    end_.previous_->next_ = &hook;
    end_.previous_ = &hook;
  }
  // `visit` must neither add nor remove elements.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (ListHook* hook = end_.next_; hook != &end_; hook = hook->next_) {
      visit(static_cast<T&>(*hook));
    }
  }

 private:
  ListHook end_;
};

}  // namespace weightlane::flow
