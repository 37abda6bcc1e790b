// Window: how many bytes of READs a reader keeps in flight.
//
// A reader learns that bytes are proven up to two windows after they have come, and only then may
// the next one in a chain have them: whatever is in flight beyond what the link holds lengthens
// every chain, and waits in queues where others wait behind it. So it starts small, and grows only
// where the link has shown that it holds more: to twice the best rate seen times the least time a
// READ took (as BBR does). Where a round trip is short against the start it never grows; over a
// long one it doubles with every round trip until the rate stops growing.
//
// Integers and the caller's clock only: the same READs at the same times give the same window.
#pragma once

#include <cstdint>
#include <deque>

#include "flow/time.h"

namespace weightlane::ros {

class Window {
 public:
  // Bytes; `start` counts as no more than `most`.
  Window(uint64_t start, uint64_t most);

  // One READ alone always fits, however long it is.
  bool admits(uint64_t length) const { return in_flight_ == 0 || in_flight_ + length <= bytes_; }
  // Looks count too, with no length: the first one tells how long a READ takes that waits for
  // nothing. `id` is the READ's own while it is in flight.
  void posted(uint64_t id, uint64_t length, Nanos now);
  void completed(uint64_t id, Nanos now);

  uint64_t bytes() const { return bytes_; }

 private:
  struct Posted {
    uint64_t id = 0;
    uint64_t length = 0;
    Nanos at{0};
    uint64_t delivered = 0;  // bytes that had been delivered by then
  };
  uint64_t start_;
  uint64_t most_;
  uint64_t bytes_;
  uint64_t in_flight_ = 0;
  uint64_t delivered_ = 0;
  uint64_t rate_ = 0;          // bytes a millisecond, the most seen
  Nanos least_{kForever};      // from posting to completion
  std::deque<Posted> posted_;  // in order of posting, which is that of completions almost always
};

}  // namespace weightlane::ros
