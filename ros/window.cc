// A sample of the rate is what was delivered while one READ was in flight, over the time it was.
#include "ros/window.h"

#include <algorithm>

#include "flow/assert.h"

namespace weightlane::ros {

namespace {

constexpr uint64_t kNanosInMilli = 1'000'000;
constexpr uint64_t kRoom = 2;  // windows' worth of what the link holds

}  // namespace

Window::Window(uint64_t start, uint64_t most)
    : start_(std::min(start, most)), most_(most), bytes_(start_) {}

void Window::posted(uint64_t id, uint64_t length, Nanos now) {
  in_flight_ += length;
  posted_.push_back({id, length, now, delivered_});
}

void Window::completed(uint64_t id, Nanos now) {
  const auto found = std::find_if(posted_.begin(), posted_.end(),
                                  [id](const Posted& posted) { return posted.id == id; });
  WL_ASSERT(found != posted_.end());
  const Posted read = *found;
  posted_.erase(found);
  in_flight_ -= read.length;
  delivered_ += read.length;
  const Nanos took = std::max(now - read.at, nanos(1));
  least_ = std::min(least_, took);
  const uint64_t meanwhile = delivered_ - read.delivered;
  const uint64_t rate = meanwhile * kNanosInMilli / static_cast<uint64_t>(took.count);
  rate_ = std::max(rate_, rate);
  const uint64_t micros_least = static_cast<uint64_t>(least_.count) / 1000;
  const uint64_t held = rate_ * micros_least / 1000;
  bytes_ = std::clamp(kRoom * held, start_, most_);
}

}  // namespace weightlane::ros
