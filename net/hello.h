// The two messages that a reader and a source exchange when a queue pair is connected: whom and
// what the reader means, and where the source's memory is. Plain values, as those of
// net/messages.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/messages.h"

namespace weightlane::net {

struct HelloMessage {
  Incarnation source;  // whom the reader means; another one refuses
  AssignmentId assignment;
  Content content;
  LayoutSummary layout;
  std::string reader;  // "model/replica/shard", for people
  bool operator==(const HelloMessage&) const = default;
};

struct TensorPlace {
  uint32_t region = 0;  // index into WelcomeMessage::regions
  uint64_t offset = 0;  // bytes
  bool operator==(const TensorPlace&) const = default;
};
struct WelcomeMessage {
  Stamp stamp;           // of `content`, at the moment of accepting: the CPU's half of the seal
  RemoteRegion control;  // word 0: stamp, word 1: proven bytes
  RemoteRegion
      digests;  // length 0: no checksums. word 0: the stamp once ready, then one word per slice
  uint64_t slice_bytes = 0;  // how the source cuts the stream for its digests
  std::vector<RemoteRegion> regions;
  std::vector<TensorPlace> tensors;  // in canonical order
  bool operator==(const WelcomeMessage&) const = default;
};

}  // namespace weightlane::net
