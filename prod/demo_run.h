// The demo's director: starts a server, trainers and rollouts as processes of their own, leads them
// through steps of train -> publish -> update, and believes nothing that was not verified.
//
// Every shard is a process. A step: all trainers change their weights in place and publish the next
// version; all rollouts update to it and compare every byte with what it must be. With chaos, in
// one step a rollout's process and the source of another rollout are killed with SIGKILL at the
// moment when half of the bytes have arrived: the worker's own observer strikes on the loop's
// thread when the sealed prefix passes the half, so it is progress that decides and not time. The
// killed rollout is started again as a new process; all who remain must end the step with the right
// bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "flow/result.h"
#include "prod/command.h"

namespace weightlane::prod {

struct DemoOptions {
  std::string weights;  // a safetensors file; empty: weights of `size`
  uint64_t size = 256ull << 20;
  uint32_t trainers = 1;
  uint32_t rollouts = 3;
  uint32_t shards = 2;
  uint32_t steps = 5;
  uint32_t servers = 1;  // the first leads, the others stand by
  bool chaos = false;
  bool checksums = false;
  std::string transport = "auto";
  Nanos lease = seconds(2);
  bool plain = false;  // no table even on a terminal
};

// Runs the demo; prints what happens. Returns the exit status: 0 only when every update of every
// rollout was verified and, with chaos, both blows were struck.
int run_demo(const DemoOptions& options, const StopRequest& stop);

}  // namespace weightlane::prod
