// What a world is made of before anything happens in it. All drawn by the campaign (or written by a
// test); the same config and the same choices give the same run.
#pragma once

#include <cstdint>
#include <string>

#include "flow/time.h"
#include "sim/choices.h"
#include "sim/fault_list.h"

namespace weightlane::sim {

enum class ReadyOrder : uint8_t {
  kFifo,
  kRandom,     // any ready task next
  kPct,        // hosts have priorities, which change at drawn steps; FIFO within a host
  kStarveOne,  // one host runs only when no other can, and is now and then held up for milliseconds
};
const char* ready_order_name(ReadyOrder order);

// A span drawn log-uniformly.
struct SpanRange {
  Nanos least;
  Nanos most;
};

struct ControlConfig {
  SpanRange delay{micros(20), millis(2)};           // one message, one way, same datacenter
  SpanRange wide_delay{millis(10), millis(80)};     // between datacenters
  SpanRange break_notice{micros(100), seconds(2)};  // until one side sees that a connection is dead
  SpanRange stall_break{seconds(1), seconds(20)};   // until an unreachable peer breaks a connection
  bool codec = false;               // encode and decode every message with net/codec.h
  bool drop_first_replies = false;  // the first reply to every request is lost with its connection
};

struct DataConfig {
  uint64_t granule_bytes =
      64 << 10;  // of symbolic memory; READs of memory begin and end at granules
  uint64_t max_read_bytes = 1ull << 30;
  uint32_t max_outstanding_reads = 16;
  bool fences = true;
  // How many READs of one pair are carried out at the same time. 1: each is executed before the
  // next, as one RC queue pair does without losses. More: nothing orders the execution of two READs
  // (S4, S6; several streams or rails under one pair, selective repeat); completions stay in order.
  uint32_t lanes = 1;
  bool real_bytes = false;   // granules carry bytes, checksums are XXH3 of them
  uint32_t pieces_most = 4;  // a READ is executed and placed in at most so many pieces (up to 4)
  SpanRange latency{micros(2), micros(60)};
  SpanRange wide_latency{millis(10), millis(80)};
  SpanRange connect{micros(50), millis(20)};  // one way of a connect
  SpanRange registration{micros(5), millis(5)};
  SpanRange checksum{micros(1), millis(1)};
  SpanRange destroy{micros(10), millis(50)};
  SpanRange destroy_slow{millis(50), seconds(40)};
  Nanos retry_nominal =
      nanos(1'073'741'824);  // timeout 16, retry 3; drawn per pair from [1, retry_spread] x this
  uint32_t retry_spread = 4;
};

struct BandwidthConfig {
  uint64_t nic_tx = 25'000'000'000;  // bytes per second, per host
  uint64_t nic_rx = 25'000'000'000;
  uint64_t wide = 5'000'000'000;  // per pair and direction of datacenters
  // Of no account when 0. Caps are what one flow reaches however idle its links are.
  uint64_t flow_cap = 0;       // within a datacenter
  uint64_t wide_flow_cap = 0;  // between datacenters
  // A machine's own NIC, each way, for all flows of its hosts that leave the datacenter; without it
  // they take the hosts' NICs.
  uint64_t node_wide = 0;
  // Memory of the machine to or from its devices, per host and direction: what start_copy() takes.
  uint64_t pcie = 48'000'000'000;
};

struct WorldConfig {
  ReadyOrder order = ReadyOrder::kFifo;
  uint32_t pct_change_points = 3;  // kPct, within the first pct_steps steps
  uint32_t pct_steps = 4'000;
  ControlConfig control;
  DataConfig data;
  BandwidthConfig bandwidth;
  FaultRates faults;
  Nanos step_cost = nanos(100);             // what running a task to its next wait takes
  Nanos clock_offset_most = seconds(1000);  // a host's clock starts somewhere in [0, this]
  uint32_t clock_drift_ppm_most = 200;  // and drifts by up to so many parts per million, either way
};

// Where a host stands. `node` and `datacenter` are compared as text.
struct HostPlace {
  std::string name{};
  std::string datacenter = "dc0";
  std::string node{};   // empty: a machine of its own
  uint64_t nic_tx = 0;  // bytes per second; 0: as in BandwidthConfig
  uint64_t nic_rx = 0;
};

// The swarm of one seed: 20 % of seeds are quiet (no fault at all), in the others each fault is off
// with probability 1/2 and else has a log-uniform rate. `checksums`: whether F18 and F20 may be on,
// which nothing else can see.
FaultRates draw_swarm(ChoiceSource& choices, bool checksums);

}  // namespace weightlane::sim
