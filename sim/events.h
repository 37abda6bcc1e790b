// What happens in a world, as fixed records: hashed, counted, and shown to whoever compares two
// runs.
#pragma once

#include <cstdint>

#include "flow/time.h"
#include "sim/choices.h"

namespace weightlane::sim {

enum class EventKind : uint8_t {
  kStep,      // a coroutine ran; a: number of the step
  kTimer,     // a timer of a host fired; a: sequence of its arming
  kRequest,   // delivered to a server; a: connection, b: sequence number of the request, c: kind of
              // body
  kResponse,  // delivered to a client; the same
  kConnection,    // a: connection, b: what (ConnectionEvent)
  kReadPosted,    // a: queue pair, b: work id, c: length
  kReadExecuted,  // a: queue pair, b: address or word, c: value
  kReadLanded,    // a: queue pair, b: address or word, c: value
  kCompletion,    // a: queue pair, b: work id, c: status
  kQueuePair,     // a: queue pair, b: what (QueuePairEvent)
  kMemory,        // written, registered, deregistered; a: address or region, b: value
  kFault,         // a: Fault, b, c: its operands
  kTrace,         // Runtime::trace; a, b, c as given
  kMark,          // by the campaign; a, b, c as given
};
constexpr uint32_t kEventKinds = 14;
const char* event_kind_name(EventKind kind);

struct EventRecord {
  Nanos at;
  EventKind kind = EventKind::kStep;
  HostId host;
  uint64_t a = 0, b = 0, c = 0;
  bool operator==(const EventRecord&) const = default;
};

// Sees every event in order; for --check-determinism and for stories. Must not touch the world.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const EventRecord& record) = 0;
};

// How many of each; polls (heartbeats) are counted apart from other messages.
struct EventCounts {
  uint64_t steps = 0;
  uint64_t timers = 0;
  uint64_t messages = 0;
  uint64_t polls = 0;
  uint64_t completions = 0;
  uint64_t executions = 0;  // pieces of READs carried out at a source
  uint64_t total() const {
    return steps + timers + messages + completions + executions;
  }  // without polls
};

}  // namespace weightlane::sim
