// Bandwidth: who gets how much of which link. NICs (transmit and receive apart) and the links
// between datacenters are shared max-min fairly by progressive filling, over the flows that are
// busy; in integers.
//
// A flow is one queue pair with READs under way. Shares are computed anew when a flow starts or
// ends; a READ keeps the rate it began with, so with slices far smaller than a shard the error is
// one slice.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "flow/time.h"
#include "sim/config.h"

namespace weightlane::sim {

using FlowId = StrongId<struct FlowTag, uint32_t>;  // 0 = none

class Bandwidth {
 public:
  explicit Bandwidth(const BandwidthConfig& config) : config_(config) {}

  void add_host(HostId host, const HostPlace& place);
  void set_slowdown(HostId host, uint32_t factor);

  // Bytes go from `source` to `reader`, `slowdown` times slower than the fair share would be.
  FlowId start(HostId source, HostId reader, uint32_t slowdown);
  void end(FlowId flow);
  // How long `bytes` take at the flow's present rate; at least 1 ns.
  Nanos span_of(FlowId flow, uint64_t bytes) const;
  uint64_t rate_of(FlowId flow) const;  // bytes per second, for people and tests

 private:
  static constexpr uint32_t kFraction =
      16;  // rates are bytes per nanosecond, 16 bits behind the point
  struct Link {
    int64_t capacity = 0;
    int64_t left = 0;    // while filling
    uint32_t flows = 0;  // not yet fixed, while filling
  };
  struct Flow {
    bool active = false;
    bool fixed = false;
    uint32_t slowdown = 1;
    uint32_t links = 0;
    std::array<uint32_t, 3> link{};  // into links_
    int64_t rate = 1;
  };
  void fill();
  uint32_t wide_link(uint32_t from, uint32_t to);
  uint32_t datacenter(const std::string& name);
  static int64_t to_rate(uint64_t bytes_per_second);

  BandwidthConfig config_;
  struct HostLinks {
    uint32_t datacenter = 0;
    uint32_t tx = 0;
    uint32_t rx = 0;
    uint64_t nic_tx = 0;
    uint64_t nic_rx = 0;
  };
  std::vector<HostLinks> hosts_;  // by host id
  std::vector<std::string> datacenters_;
  struct Wide {
    uint32_t from = 0;
    uint32_t to = 0;
    uint32_t link = 0;
  };
  std::vector<Wide> wide_;
  std::vector<Link> links_;
  std::vector<Flow> flows_{1};  // 0 is none
  std::vector<uint32_t> free_;
  std::vector<uint32_t> active_;  // in order of starting
};

}  // namespace weightlane::sim
