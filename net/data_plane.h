// DataPlane: registered memory and one-sided READs, in the vocabulary of verbs.
//
// Implemented by the simulator (symbolic memory, every fault of RDMA semantics), by verbs (RC queue
// pairs), by TCP and by same-host copies; tests/conformance holds them to one contract. One
// DataPlane object serves one process (one simulated host). Everything here is called on the loop's
// thread, and every callback comes on it.
//
// What an implementation promises, and no more:
//   C1  A READ is carried out at the source some time between its post and its completion, piece by
//   piece; only aligned
//       8-byte words are read whole. Data of one READ lands in any order; only its completion is
//       evidence (S4, S6).
//   C2  kSuccess implies that all bytes landed. Any other status says nothing about what was
//   executed (not, partly, fully).
//       After the first error of a queue pair every later READ on it ends with kFlushed, in posting
//       order (S2).
//   C3  The destination of a posted READ belongs to the plane until its completion or until
//   destroy() returned ok (S5):
//       after that nothing can land any more.
//   C4  Success of a READ says nothing about whether it was still allowed: callers seal (DESIGN
//   section 4). C5  A source learns nothing of READs, nor of its reader's death (S11). Dropping its
//   PassiveQueuePair makes later READs
//       on that pair fail; READs being carried out meanwhile may still succeed.
//   C6  A RemoteRegion may become stale at any time; a stale one fails with kRemoteAccess or, in
//   the worst case (a restart
//       that reuses address, number and key: F11), succeeds with other bytes.
//   C7  connect(), register_memory(), destroy() end by their deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "flow/result.h"
#include "flow/runtime.h"
#include "flow/signal.h"
#include "flow/task.h"
#include "net/ids.h"

namespace weightlane::net {

// A registration of local memory, by this plane. Never reused within a process.
using RegionId = StrongId<struct RegionTag, uint64_t>;

enum class Device : uint8_t { kHost, kCuda };

struct MemoryRange {
  uint64_t address = 0;  // as the application knows it; the simulator's is symbolic
  uint64_t length = 0;   // bytes
  Device device = Device::kHost;
  int device_index = 0;
};

// What a peer needs to READ one of our regions over one connection. Opaque to protocol code, which
// only carries it.
struct RemoteRegion {
  uint64_t key = 0;
  uint64_t base = 0;
  uint64_t length = 0;  // bytes
  bool operator==(const RemoteRegion&) const = default;
};

// Order and values follow ibv_wc_status where there is one.
enum class CompletionStatus : uint8_t {
  kSuccess = 0,
  kLocalLength = 1,
  kLocalQpOperation = 2,
  kLocalProtection = 4,
  kFlushed = 5,
  kBadResponse = 7,
  kLocalAccess = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccess = 10,
  kRemoteOperation = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
  kFatal = 19,
  kResponseTimeout = 20,
  kGeneral = 21,
};
const char* completion_status_name(CompletionStatus status);  // "RETRY_EXC" and so on

// R7: errors are classed before anyone reacts.
enum class ErrorClass : uint8_t { kNone, kLocal, kUnknown, kRemote, kPath, kDevice };
ErrorClass classify(CompletionStatus status);

struct Completion {
  uint64_t work_id = 0;
  CompletionStatus status = CompletionStatus::kSuccess;
  uint64_t checksum = 0;  // of the landed bytes, when asked for and status is kSuccess
};

struct ReadWork {
  uint64_t work_id = 0;
  RegionId into;             // a local registration
  uint64_t into_offset = 0;  // bytes from its start
  RemoteRegion from;
  uint64_t from_offset = 0;  // bytes from the start of the remote region
  uint64_t length = 0;       // bytes, 1 .. capabilities().max_read_bytes
  bool want_checksum =
      false;  // compute Completion::checksum over what landed, while it is still in the cache
};

struct Capabilities {
  bool fences = false;                 // dropping a PassiveQueuePair stops its reader at once
  uint64_t max_read_bytes = 0;         // per READ
  uint32_t max_outstanding_reads = 0;  // per queue pair; further posts are refused with kQueueFull
};

enum class PostResult : uint8_t { kPosted, kQueueFull, kBroken };

// The reader's end of a connection.
class QueuePair {
 public:
  // Without an awaited destroy() before it: only when the process goes anyway.
  virtual ~QueuePair() = default;

  virtual Capabilities capabilities() const = 0;
  virtual std::string_view transport() const = 0;  // "tcp", "verbs", "same-host", "sim"
  virtual PostResult post_read(const ReadWork& work) = 0;
  // The next completion, if there is one. `wake` (see connect) is notified when one arrives on an
  // empty queue.
  virtual std::optional<Completion> poll() = 0;
  // To the error state, drain, destroy: once it returns ok nothing can land any more (R5, R6).
  // Completions not yet polled are dropped. kDestinationPoisoned: that could not be reached by
  // `deadline`; the destinations must not be used again.
  virtual flow::Task<Result<Done>> destroy(Nanos deadline) = 0;
};

// The source's end. Destroying the object destroys the queue pair: the fence.
class PassiveQueuePair {
 public:
  virtual ~PassiveQueuePair() = default;
  // How the peer of this connection names our region. The region must be registered.
  virtual RemoteRegion describe(RegionId region) = 0;
  // True once the reader is known to have gone (closed or died); never certain to become true (C5).
  virtual bool closed() const = 0;
  virtual std::string_view transport() const = 0;
};

struct Accept {
  Bytes payload;  // handed to the reader's connect()
};
using AcceptDecision = Result<Accept>;

class Acceptor {
 public:
  virtual ~Acceptor() = default;
  // A reader wants to connect and said `hello`. On accept keep `pair`; dropping it refuses or
  // fences. Must not block.
  virtual AcceptDecision on_connect(std::span<const uint8_t> hello,
                                    std::unique_ptr<PassiveQueuePair> pair) = 0;
};

struct Connected {
  std::unique_ptr<QueuePair> pair;
  Bytes payload;  // what the acceptor said
};

class DataPlane {
 public:
  virtual ~DataPlane() = default;

  // Memory. The application must not free a range before deregister() has returned.
  virtual flow::Task<Result<RegionId>> register_memory(MemoryRange range) = 0;
  // Synchronous in effect: when it returns no READ through any plane touches the range. Unknown ids
  // are ignored.
  virtual flow::Task<void> deregister(RegionId region) = 0;

  // Control blocks and landing words: `count` aligned 64-bit words of host memory, registered, all
  // 0.
  virtual Result<RegionId> allocate_words(uint32_t count) = 0;
  virtual void free_words(RegionId words) = 0;
  // Ordered: everything this process wrote before is visible to READs that see the new value, and
  // nothing that it writes after the call can be seen by a READ that is ordered before the store (a
  // full fence on both sides).
  virtual void store_word(RegionId words, uint32_t index, uint64_t value) = 0;
  virtual uint64_t load_word(RegionId words, uint32_t index) const = 0;

  // Checksum of bytes of a local region (the same function as ReadWork::want_checksum), computed
  // off the loop's thread.
  virtual flow::Task<Result<uint64_t>> checksum(RegionId region, uint64_t offset,
                                                uint64_t length) = 0;

  // The text by which peers reach `acceptor`, until stop_listening. `acceptor` outlives that.
  virtual Result<std::string> listen(Acceptor* acceptor) = 0;
  virtual void stop_listening(Acceptor* acceptor) = 0;

  // `wake` is notified when a completion arrives on an empty queue and when the pair breaks; it
  // outlives the pair. Errors: kUnreachable (nobody answers, deadline), kRefused (the acceptor's
  // reason), kResourceExhausted.
  virtual flow::Task<Result<Connected>> connect(std::string endpoint, Bytes hello,
                                                flow::Signal* wake, Nanos deadline) = 0;
};

}  // namespace weightlane::net
