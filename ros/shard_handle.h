// ShardHandle: one worker's part of one replica of a model. The face of the protocol inside flow.
//
// States: open -> registered -> published(v) | receiving(v) -> published(v) | holds nothing |
// poisoned -> closed. A call that the state does not allow answers kWrongState and says which state
// it is in; nothing was changed.
//
// The handle owns its transfers, its heartbeat and its memory registrations. Dropping the task of a
// call only detaches the caller: the call goes on, and the next call waits for it. Memory comes
// back through an awaited call only: when unpublish, close, unregister, or a failed replicate or
// update has returned, no READ executed afterwards is ever accepted (P2).
//
// Calls of one handle are made one at a time. publish, unpublish, replicate and update are
// numbered: the n-th of every shard of a replica is one decision (P3).
//
// How much a caller should do after an error:
//   kTimeout, kVersionUnavailable, kReplicaLost, kCallMismatch, kCorrupt   the shard holds nothing;
//   call again when you like kServerLost, kDestinationPoisoned, kSuperseded poisoned: only close()
//   is left; then open again
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flow/result.h"
#include "flow/runtime.h"
#include "flow/task.h"
#include "net/control_plane.h"
#include "net/data_plane.h"
#include "ros/observer.h"
#include "ros/options.h"

namespace weightlane::ros {

// One tensor: contiguous, not owned. Two shards have equal layouts when name, dtype, shape and
// order agree.
struct TensorSpec {
  std::string name;
  std::string dtype;            // as the framework spells it: "F32", "BF16"
  std::vector<uint64_t> shape;  // elements
  net::MemoryRange memory;      // bytes; length 0 is allowed for an empty tensor
};

struct OpenOptions {
  std::string model;
  std::string replica;
  ShardIndex shard;
  uint32_t num_shards = 1;
  std::string node;        // boot id of the machine; equal text: same node
  std::string datacenter;  // equal text: no slow link between (P8); the same for all shards
  // Addresses, the same for every shard of a replica: the first that can be reached is the one.
  std::vector<std::string> servers;
  bool spot = false;       // may vanish at any time: what it holds never counts as a copy (P5), and
                           // it rather carries nothing into its datacenter (P8)
  net::RetainSpec retain;  // what is not to be lost while this handle is open (P5)
  net::OffloadFailure on_offload_failure = net::OffloadFailure::kRefuse;
  uint64_t offload = 0;  // token of an offload; set by OffloadStore alone
  HandleOptions timing;
};

class OffloadStore;

// What one process brings to its handles. All outlive every handle.
struct Environment {
  flow::Runtime* runtime = nullptr;
  net::ControlPlane* control = nullptr;
  net::DataPlane* data = nullptr;
  HandleObserver* observer = nullptr;  // may be null
  OffloadStore* offloads = nullptr;    // may be null: this process keeps nothing for others
};

enum class HandleState : uint8_t { kOpen, kRegistered, kPublished, kReceiving, kPoisoned, kClosed };
const char* handle_state_name(HandleState state);

// Where a transfer stands, for people and dashboards.
struct Progress {
  uint64_t sealed_bytes = 0;
  uint64_t total_bytes = 0;
  std::string source;     // "replica (transport)", when published the last; empty: waiting for one
  uint64_t reroutes = 0;  // of the call under way or the last one
  Nanos stalled{
      0};  // time that the last replicate or update kept the worker's memory from being used
};

class HandleCore;

class ShardHandle {
 public:
  // Errors: kInvalidArgument (index out of range, other num_shards than the replica's),
  // kAlreadyOpen (a live process has this shard: known within three heartbeats; a dead one's is
  // free after its lease), kServerLost. Ends by `deadline`.
  static flow::Task<Result<std::unique_ptr<ShardHandle>>> open(Environment environment,
                                                               OpenOptions options, Nanos deadline);
  // A handle that was not closed is cut off: its tasks are cancelled and its queue pairs destroyed
  // without waiting. Its memory stays registered until the data plane goes.
  ~ShardHandle();

  // State open. Registers the tensors' memory (adjacent ranges as one). Errors: kInvalidArgument
  // (two tensors of one name, overlapping memory), kResourceExhausted (memory that cannot be
  // registered). The layout's order is the given one.
  flow::Task<Result<Done>> register_tensors(std::vector<TensorSpec> tensors);
  // State registered, published: unpublishes first. When it returns no memory of the shard is
  // registered.
  flow::Task<Result<Done>> unregister_tensors();

  // Promises that the tensors do not change until unpublish returns. Returns when the server has
  // this shard; the version shows when all shards have come. The caller's writes must be complete,
  // GPU work synchronised.
  flow::Task<Result<Done>> publish(VersionId version);
  // Returns when the memory is the caller's again, within the drain time (30 s) and a little more;
  // if this was the last copy of a retained version, after that has got into host memory (P5). The
  // one exception: kRetained, when it could not; then it is still published.
  flow::Task<Result<Done>> unpublish();
  // Into the registered tensors. The worker becomes a replica that serves others, already while it
  // receives.
  flow::Task<Result<VersionId>> replicate(net::VersionSpec version, Nanos timeout);
  // One atomic step: is there a newer version than the one held? Then unpublish and replicate it;
  // else nothing. kRetained as for unpublish. After a rewind a newer version may have a lower
  // number: rewound() says so.
  flow::Task<Result<std::optional<VersionId>>> update(net::VersionSpec version, Nanos timeout);
  // Asks that the replicate or update under way end: with an error that says why, for the whole
  // group, because a part of a replica is of no use. Returns at once; the call itself returns when
  // the server has decided, which may still be a success. Nothing when there is no such call.
  void give_up(std::string why);
  // Hands the memory back and leaves. Fails to give the memory back with kDestinationPoisoned only,
  // or, without a deadline, with kRetained: then the handle is as it was. With a deadline (a spot
  // machine's notice) what is retained is handed over until then; at the deadline it closes anyway.
  flow::Task<Result<Done>> close(Nanos deadline = kForever);

  HandleState state() const;
  std::optional<VersionId> holds() const;  // the version published or replicated here
  bool rewound() const;  // what the last update took is of a newer generation than what was held
  Progress progress() const;
  uint64_t registered_bytes() const;
  // What its call under way waits for, with the other's name; empty: there is no call.
  std::string waits_for() const;
  CallNumber next_call() const;  // of the next publish, unpublish, replicate or update
  uint64_t lineage() const;      // in which numbering

 private:
  explicit ShardHandle(std::shared_ptr<HandleCore> core);
  std::shared_ptr<HandleCore> core_;
};

// What is published, as the server sees it. Needs no handle. `model` empty: all models.
flow::Task<Result<net::ListResponse>> list_replicas(Environment environment, std::string server,
                                                    std::string model, Nanos deadline);

}  // namespace weightlane::ros
