// Names of states, for people.
#include "ros/shard_handle.h"

namespace weightlane::ros {

const char* handle_state_name(HandleState state) {
  switch (state) {
    case HandleState::kOpen:
      return "open";
    case HandleState::kRegistered:
      return "registered";
    case HandleState::kPublished:
      return "published";
    case HandleState::kReceiving:
      return "receiving";
    case HandleState::kPoisoned:
      return "poisoned";
    case HandleState::kClosed:
      return "closed";
  }
  return "unknown";
}

}  // namespace weightlane::ros
