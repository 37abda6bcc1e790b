// Rivals: how weights are moved without reference-oriented storage, in the same network as ours and
// with the same care: the same NICs, stragglers, pipelining and shares, each with the rate that its
// software was measured to reach.
//
//   broadcast        a collective (NCCL): a pipelined chain from the trainer through all receivers,
//                    then a barrier: nobody goes on before the last has it, senders included
//   point to point   (UCX): a driver tells who sends to whom, in rounds; a round begins when the
//                    one before has ended
//   object store     (Ray): the owner serialises into its store, which must be whole before others
//                    pull it over TCP into theirs, deserialise, and copy to the device
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flow/signal.h"
#include "sim/paper/machine.h"
#include "sim/world.h"

namespace weightlane::sim::paper {

// Plain processes and transfers between them.
class Rivals {
 public:
  explicit Rivals(const Machine& machine, uint64_t bytes, uint32_t chunks = 1024);
  ~Rivals();
  Rivals(const Rivals&) = delete;
  Rivals& operator=(const Rivals&) = delete;

  HostId add_gpu(const std::string& datacenter = "dc0");
  void slow_down(HostId gpu, uint32_t permille);

  // Each returns seconds from now until the last of its transfers has ended.
  // One chain per communicator: its first member sends.
  double broadcast(const std::vector<std::vector<HostId>>& communicators);
  // All pairs at once.
  struct Pair {
    HostId from;
    HostId to;
  };
  double round(const std::vector<Pair>& pairs);
  double object_store(HostId owner, HostId reader);

 private:
  // How far a receiver is: who sends on waits for it.
  struct Stage {
    explicit Stage(flow::Runtime& runtime) : changed(runtime) {}
    uint32_t done = 0;  // chunks
    flow::Signal changed;
  };
  Stage& add_stage(HostId gpu);
  void begin(HostId from, HostId to, uint64_t cap, Stage* upstream);
  double finish(Nanos began);
  static flow::Task<void> idle(Host* host);
  static flow::Task<void> move(Rivals* self, HostId from, HostId to, uint64_t cap, Stage* upstream,
                               Stage* mine);
  static flow::Task<void> through_store(Rivals* self, HostId owner, HostId reader);
  Nanos span_at(uint64_t rate) const;

  Machine machine_;
  uint64_t bytes_;
  uint32_t chunks_;
  ChoiceSource choices_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Stage>> stages_;
  uint32_t gpus_ = 0;
  uint64_t busy_ = 0;
};

}  // namespace weightlane::sim::paper
