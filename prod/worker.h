// Worker: the blocking face of the protocol, for applications.
//
// A Worker owns a thread that runs the event loop with everything in it: heartbeats, transfers, the
// data planes. Its handles are used from ordinary threads: each call goes to the loop, and the
// caller waits there for its end. A busy or stopped caller hinders nothing; the heartbeat never
// waits for it.
//
// Calls that change a handle come from one thread at a time; state(), holds() and progress() from
// any, also beside a call. What the calls promise and which errors they give is said in
// ros/shard_handle.h. `within` bounds the wait of the caller: after it the call answers kTimeout
// and goes on without its caller, and the handle's next call waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/messages.h"
#include "prod/log.h"
#include "prod/shared_memory.h"
#include "ros/shard_handle.h"

namespace weightlane::prod {

struct WorkerOptions {
  std::string transport = "auto";  // auto, same-host, tcp, verbs
  std::string data_host;           // numeric address that readers connect to; empty: all of them
  uint16_t port_first = 0;         // ports of the data planes, both included; 0: any free one
  uint16_t port_last = 0;
  std::string node;  // whoever gives the same is on the same machine; empty: the kernel's boot id
  unsigned helper_threads = 3;
  uint64_t offload_limit = UINT64_MAX;  // bytes of host memory that this process keeps for others
  ros::HandleObserver* observer = nullptr;  // called on the loop's thread; outlives the Worker
  // Once readable, this is called on the loop's thread with what the handles' calls wait for; -1:
  // never. The descriptor outlives the Worker.
  int waits_descriptor = -1;
  std::function<void(int descriptor, const std::vector<std::string>& lines)> on_waits;
  Log* log = nullptr;  // outlives the Worker; null: errors to standard error
};

class Worker;

class WorkerHandle {
 public:
  // Cuts a handle off that was not closed. The Worker outlives it.
  ~WorkerHandle();
  WorkerHandle(const WorkerHandle&) = delete;
  WorkerHandle& operator=(const WorkerHandle&) = delete;

  Result<Done> register_tensors(std::vector<ros::TensorSpec> tensors, Nanos within = kForever);
  Result<Done> unregister_tensors(Nanos within = kForever);
  Result<Done> publish(VersionId version, Nanos within = kForever);
  Result<Done> unpublish(Nanos within = kForever);
  // `timeout` is the group's: all shards end by it, the caller too.
  Result<VersionId> replicate(net::VersionSpec version, Nanos timeout);
  Result<std::optional<VersionId>> update(net::VersionSpec version, Nanos timeout);
  // From any thread: see ros::ShardHandle.
  void give_up(std::string why);
  // kRetained: as for unpublish, and the handle is as it was.
  Result<Done> close(Nanos within = kForever);
  // For a process that has to go (a spot machine's notice): what is retained is handed over if that
  // can be done in time; then it closes anyway.
  Result<Done> close_by(Nanos within);

  ros::HandleState state() const;
  std::optional<VersionId> holds() const;
  bool rewound() const;  // the last update went to a newer generation, perhaps to a lower number
  ros::Progress progress() const;
  uint64_t registered_bytes() const;

 private:
  friend class Worker;
  WorkerHandle(Worker* worker, std::unique_ptr<ros::ShardHandle> handle);

  Worker* worker_;
  std::unique_ptr<ros::ShardHandle> handle_;  // touched on the loop's thread only
};

class Worker {
 public:
  // kInvalidArgument (a transport that isn't one), or what the data plane says: the transport asked
  // for can't be used on this machine.
  static Result<std::unique_ptr<Worker>> start(WorkerOptions options);
  // The handles are gone by then. Waits for the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Memory that readers on this machine can map: faster than any other. kResourceExhausted.
  Result<SharedMemory> allocate(uint64_t bytes);
  // As ros::ShardHandle::open; `options.node` is filled in if empty.
  Result<std::unique_ptr<WorkerHandle>> open(ros::OpenOptions options, Nanos within);
  // What this process keeps for others in host memory (P5): how much; and, before the process ends,
  // handing it over, or waiting for somebody to take a copy, until `within` has passed. Nothing is
  // kept afterwards.
  uint64_t offload_bytes() const;
  Result<Done> hand_over(Nanos within);
  // Until the version can be had; kTimeout.
  Result<net::Content> wait(std::string server, std::string model, net::VersionSpec version,
                            Nanos within);
  // Begins the model's next generation if the present one is `expected`: returns the new one.
  Result<Generation> rewind(std::string server, std::string model, Generation expected,
                            Nanos within);
  // What is published at `server`.
  Result<net::ListResponse> list(std::string server, std::string model, Nanos within);

 private:
  friend class WorkerHandle;
  struct Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightlane::prod
