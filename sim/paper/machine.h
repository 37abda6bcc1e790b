// Machine: what the paper's hardware can do, as the figures assume it. One table: rates in bytes
// per second, measured ones from the paper, fitted ones marked; printed by `weightlane-sim paper`.
#pragma once

#include <cstdint>

#include "flow/time.h"

namespace weightlane::sim::paper {

constexpr uint64_t kGiga = 1'000'000'000;

struct Machine {
  uint32_t gpus = 8;                    // per machine
  uint64_t nic = 25 * kGiga;            // RDMA, per GPU and direction
  uint64_t pcie = 48 * kGiga;           // per GPU and direction
  uint64_t node_wide = 10'300'000'000;  // TCP to other datacenters, all flows of a machine (fitted)
  uint64_t wide_flow = 8 * kGiga;       // the same, one pair of hosts (fitted)
  uint64_t wide_link = 100 * kGiga;     // the link itself: not what binds in the paper
  // What one transfer gets out of the NIC, by whose software; measured at 1:1 and 50 GB.
  uint64_t ours = 22 * kGiga;
  uint64_t broadcast = 18'800'000'000;       // NCCL
  uint64_t point_to_point = 18'100'000'000;  // UCX
  // The owning object store, one thread each: serialise and seal, pull over TCP, deserialise.
  uint64_t store_put = 780'000'000;   // (fitted)
  uint64_t store_pull = 780'000'000;  // (fitted)
  uint64_t store_get = 780'000'000;   // (fitted)
  Nanos nic_retry = millis(4300);     // timeout 17, retry 7: when the NIC gives a peer up
  Nanos message = micros(50);         // of the control plane, one way
  Nanos connect = micros(500);        // a queue pair, one way
  Nanos read_latency = micros(5);
};

}  // namespace weightlane::sim::paper
