// OffloadStore: what a process keeps in host memory for others, because the reference server asked
// for it (P5: the last copy of a retained version; P8: a seed for its datacenter).
//
// An offload is a replica of its own. For each shard the store opens one more handle, under the
// replica name and token of the server's OffloadEvent, gives it host memory with the layout of the
// handle that was asked, and lets it replicate the content. So everything is what it is for any
// other replica: own regions, own control block and stamp, seals, one decision for all shards (P3),
// readers while it is still partial, drain and fence before its memory goes. Where the bytes come
// from is the scheduler's business: from the memory of the very handle that was asked (a copy
// within the process, which waits for no other reader), or, for a seed or an heir, from anywhere.
//
// It outlives the handle it was made for. The server ends it with a DropEvent, when another copy is
// there or nobody retains the version any more; close() hands over what it can until a deadline.
//
// Wide-area seeding builds on this: Directory::direct_offload() makes any group's processes
// receive any content into host memory.
#pragma once

#include <memory>
#include <vector>

#include "flow/future.h"
#include "flow/signal.h"
#include "flow/task_set.h"
#include "net/host_memory.h"
#include "ros/layout.h"

namespace weightlane::ros {

class HandleCore;

class OffloadStore {
 public:
  // One shard to keep: `open` names the offload's own replica and its token.
  struct Wanted {
    OpenOptions open;
    Layout layout;  // of the handle that was asked: its memory is not used
    net::Content content;
  };

  // All outlive the store, which outlives every handle that names it in its Environment.
  OffloadStore(Environment environment, net::HostMemory* memory, OffloadOptions options);
  ~OffloadStore();
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;

  // Begins to keep it. Ends when it is whole here, or with why it can't be: then nothing is left of
  // it. The offload goes on when the future is dropped.
  flow::Future<Result<Done>> keep(Wanted wanted);
  // Before the process ends: hands over what is retained and was taken by nobody else, until the
  // deadline; then lets it go. Nothing is kept afterwards, and nothing taken any more.
  flow::Task<void> close(Nanos deadline);

  uint64_t bytes() const { return bytes_; }  // of all offloads; 0 when nothing is kept (P11)
  size_t size() const { return kept_.size(); }

 private:
  struct Kept;
  static flow::Task<void> run(OffloadStore* self, std::shared_ptr<Kept> kept);
  flow::Task<Result<Done>> fill(std::shared_ptr<Kept> kept);
  Result<Done> take_memory(Kept& kept);
  void give_back_memory(Kept& kept);
  HandleName name(const Kept& kept) const;

  Environment environment_;
  net::HostMemory* memory_;
  OffloadOptions options_;
  uint64_t bytes_ = 0;
  Nanos close_by_ = kForever;  // not kForever: the process ends
  std::vector<std::shared_ptr<Kept>> kept_;
  flow::Signal changed_;
  flow::TaskSet tasks_;
};

}  // namespace weightlane::ros
