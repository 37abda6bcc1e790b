// Bandwidth: who gets how much of which link. Shares are max-min fair, by progressive filling, in
// integers, over the flows that are busy.
//
// Links: a host's NIC, transmit and receive apart; its PCIe lanes, each way; a machine's NIC for
// other datacenters, each way; a link per pair and direction of datacenters; and for a flow with a
// cap a link of its own. A flow passes two to six of them.
//
// A flow is one queue pair with READs under way. When one starts or ends, shares change only among
// those that are joined to it by shared links, directly or through others: these alone are filled
// anew, in flows x log(flows). A READ keeps the rate it began with, so with slices far smaller than
// a shard the error is one slice.
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
  // Its NIC becomes so many times slower, and so do the caps of flows that start from now on.
  void set_slowdown(HostId host, uint32_t factor);
  // The same for fractions: 1500 is one and a half times slower.
  void set_slowdown_permille(HostId host, uint32_t permille);

  // Bytes go from `source` to `reader`, `slowdown` times slower than the fair share would be. `cap`
  // in bytes per second, 0: as configured.
  FlowId start(HostId source, HostId reader, uint32_t slowdown, uint64_t cap = 0);
  // Between the machine's memory and the host's device, over its PCIe lanes.
  FlowId start_copy(HostId host, bool to_device, uint64_t cap = 0);
  void end(FlowId flow);
  // How long `bytes` take at the flow's present rate; at least 1 ns.
  Nanos span_of(FlowId flow, uint64_t bytes) const;
  uint64_t rate_of(FlowId flow) const;       // bytes per second, for people and tests
  uint64_t fills() const { return fills_; }  // how often shares were computed

 private:
  static constexpr uint32_t kFraction =
      16;  // rates are bytes per nanosecond, 16 bits behind the point
  static constexpr uint32_t kLinksMost = 6;
  static constexpr uint32_t kNone = ~0u;
  struct Link {
    int64_t capacity = 0;
    std::vector<uint32_t> flows{};  // that are busy
    // While filling:
    int64_t left = 0;
    uint32_t unfixed = 0;
    uint64_t fill = 0;  // the last that it took part in
  };
  struct Flow {
    bool active = false;
    bool fixed = false;
    uint32_t slowdown = 1;
    uint32_t links = 0;
    std::array<uint32_t, kLinksMost> link{};  // into links_
    uint32_t own_link = kNone;                // of its cap
    int64_t rate = 1;
    uint64_t fill = 0;
  };
  // A link's share as it was when this was noted; shares only grow within a filling.
  struct Candidate {
    int64_t share = 0;
    uint32_t link = 0;
    bool operator<(const Candidate& other) const {
      return share != other.share ? share < other.share : link < other.link;
    }
  };
  FlowId add_flow(Flow flow, uint64_t cap);
  void refill(const Flow& changed);
  void fill_alone(Flow& flow) const;
  void join(uint32_t link);
  void collect(const Flow& changed);
  void fix_flows_of(uint32_t link, int64_t share);
  void push(uint32_t link);
  uint32_t add_link(uint64_t bytes_per_second);
  uint32_t take_own_link(uint64_t cap);
  uint32_t wide_link(uint32_t from, uint32_t to);
  uint32_t datacenter(const std::string& name);
  uint32_t node(const std::string& name);
  static int64_t to_rate(uint64_t bytes_per_second);

  BandwidthConfig config_;
  struct HostLinks {
    uint32_t datacenter = 0;
    uint32_t node = kNone;
    uint32_t tx = 0;
    uint32_t rx = 0;
    uint64_t nic_tx = 0;
    uint64_t nic_rx = 0;
    uint32_t slower_permille = 1000;
    uint32_t to_device = kNone;  // when first used
    uint32_t to_host = kNone;
  };
  std::vector<HostLinks> hosts_;  // by host id
  std::vector<std::string> datacenters_;
  struct Node {
    std::string name;
    uint32_t tx = 0;
    uint32_t rx = 0;
  };
  std::vector<Node> nodes_;
  struct Wide {
    uint32_t from = 0;
    uint32_t to = 0;
    uint32_t link = 0;
  };
  std::vector<Wide> wide_;
  std::vector<Link> links_;
  std::vector<uint32_t> own_links_;  // not in use
  std::vector<Flow> flows_{1};       // 0 is none
  std::vector<uint32_t> free_;
  uint64_t fills_ = 0;
  std::vector<uint32_t> joined_links_;  // of the filling under way
  std::vector<uint32_t> joined_flows_;
  std::vector<Candidate> heap_;
};

}  // namespace weightlane::sim
