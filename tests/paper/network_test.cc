// Goal: the network model that the paper's figures rest on: NICs with transmit and receive apart,
// PCIe, links between datacenters, machines' own NICs, caps per flow, stragglers, and max-min fair
// shares of all of them.
// Method: each rule by a case with numbers one can do in the head; the shares of random flows over
// random links, few and many, are checked for what defines max-min fairness: every flow passes a
// link that is full and on which nobody has more. Fixed seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/bandwidth.h"
#include "sim/hash.h"

namespace weightlane::sim {
namespace {

constexpr uint64_t kGiga = 1'000'000'000;

// Rates are fixed-point: right to a thousandth.
void expect_rate(const Bandwidth& bandwidth, FlowId flow, double giga) {
  EXPECT_NEAR(static_cast<double>(bandwidth.rate_of(flow)) / 1e9, giga, giga / 1000);
}

class NetworkModel : public ::testing::Test {
 protected:
  Bandwidth make(const BandwidthConfig& with, uint32_t hosts) {
    Bandwidth bandwidth(with);
    for (uint32_t i = 0; i < hosts; ++i)
      bandwidth.add_host({i}, {.name = "h", .node = "n" + std::to_string(i / 2)});
    return bandwidth;
  }
  BandwidthConfig config{.nic_tx = 25 * kGiga, .nic_rx = 25 * kGiga, .wide = 40 * kGiga};
};

TEST_F(NetworkModel, TwoReadersOfOneSourceShareIt) {
  Bandwidth bandwidth = make(config, 3);
  const FlowId one = bandwidth.start({0}, {1}, 1);
  expect_rate(bandwidth, one, 25);
  const FlowId two = bandwidth.start({0}, {2}, 1);
  expect_rate(bandwidth, one, 12.5);
  expect_rate(bandwidth, two, 12.5);
  bandwidth.end(one);
  expect_rate(bandwidth, two, 25);
}

TEST_F(NetworkModel, BothDirectionsAtOnce) {
  Bandwidth bandwidth = make(config, 2);
  const FlowId there = bandwidth.start({0}, {1}, 1);
  const FlowId back = bandwidth.start({1}, {0}, 1);
  expect_rate(bandwidth, there, 25);
  expect_rate(bandwidth, back, 25);
}

TEST_F(NetworkModel, AChainStreamsAtFullRateThroughEveryHop) {
  Bandwidth bandwidth = make(config, 9);
  std::vector<FlowId> hops;
  for (uint32_t i = 0; i < 8; ++i) hops.push_back(bandwidth.start({i}, {i + 1}, 1));
  for (const FlowId hop : hops) expect_rate(bandwidth, hop, 25);
}

TEST_F(NetworkModel, AFlowHasACap) {
  config.flow_cap = 22 * kGiga;
  Bandwidth bandwidth = make(config, 3);
  const FlowId one = bandwidth.start({0}, {1}, 1);
  expect_rate(bandwidth, one, 22);
  const FlowId own = bandwidth.start({0}, {2}, 1, 5 * kGiga);
  expect_rate(bandwidth, own, 5);
  expect_rate(bandwidth, one, 20);
}

TEST_F(NetworkModel, AStragglerSlowsItsOwnFlowsOnly) {
  config.flow_cap = 22 * kGiga;
  Bandwidth bandwidth = make(config, 4);
  bandwidth.set_slowdown_permille({1}, 1500);
  const FlowId slow = bandwidth.start({0}, {1}, 1);
  const FlowId other = bandwidth.start({2}, {3}, 1);
  expect_rate(bandwidth, slow, 22 / 1.5);
  expect_rate(bandwidth, other, 22);
  bandwidth.set_slowdown_permille({3}, 2500);  // under way: its NIC, 10, binds
  expect_rate(bandwidth, other, 10);
}

TEST_F(NetworkModel, PcieIsApartFromTheNicAndPerDirection) {
  Bandwidth bandwidth = make(config, 2);
  const FlowId wire = bandwidth.start({0}, {1}, 1);
  const FlowId in = bandwidth.start_copy({1}, true);
  const FlowId more = bandwidth.start_copy({1}, true);
  const FlowId out = bandwidth.start_copy({1}, false);
  expect_rate(bandwidth, wire, 25);
  expect_rate(bandwidth, in, 24);
  expect_rate(bandwidth, more, 24);
  expect_rate(bandwidth, out, 48);
}

TEST_F(NetworkModel, BetweenDatacentersAMachinesOwnNicIsShared) {
  config.node_wide = 10'300'000'000;
  config.wide_flow_cap = 8 * kGiga;
  Bandwidth bandwidth(config);
  for (uint32_t i = 0; i < 4; ++i) bandwidth.add_host({i}, {.name = "near", .node = "a"});
  for (uint32_t i = 4; i < 8; ++i)
    bandwidth.add_host({i}, {.name = "far", .datacenter = "dc1", .node = "b"});
  const FlowId one = bandwidth.start({0}, {4}, 1);
  expect_rate(bandwidth, one, 8);
  const FlowId two = bandwidth.start({1}, {5}, 1);
  expect_rate(bandwidth, one, 5.15);
  expect_rate(bandwidth, two, 5.15);
  // It has nothing to do with what stays within a datacenter.
  const FlowId near = bandwidth.start({0}, {1}, 1);
  expect_rate(bandwidth, near, 25);
}

TEST_F(NetworkModel, TheLinkBetweenDatacentersBindsAllThatCross) {
  config.wide = 1 * kGiga;
  Bandwidth bandwidth(config);
  for (uint32_t i = 0; i < 4; ++i) bandwidth.add_host({i}, {.name = "near"});
  for (uint32_t i = 4; i < 8; ++i) bandwidth.add_host({i}, {.name = "far", .datacenter = "dc1"});
  std::vector<FlowId> flows;
  for (uint32_t i = 0; i < 4; ++i) flows.push_back(bandwidth.start({i}, {i + 4}, 1));
  for (const FlowId flow : flows) expect_rate(bandwidth, flow, 0.25);
  const FlowId back = bandwidth.start({4}, {0}, 1);  // the other direction is another link
  expect_rate(bandwidth, back, 1);
}

// Every flow passes a full link on which nobody has more than it; no link carries more than it can.
void expect_max_min(const Bandwidth& bandwidth,
                    const std::vector<std::pair<uint32_t, uint32_t>>& ends,
                    const std::vector<FlowId>& flows, uint32_t hosts, double nic) {
  std::vector<double> used(2 * hosts);
  std::vector<double> most(2 * hosts);
  const auto rate = [&](size_t i) {
    return static_cast<double>(bandwidth.rate_of(flows[i])) / 1e9;
  };
  for (size_t i = 0; i < flows.size(); ++i) {
    for (const uint32_t link : {ends[i].first, hosts + ends[i].second}) {
      used[link] += rate(i);
      most[link] = std::max(most[link], rate(i));
    }
  }
  for (const double load : used) EXPECT_LE(load, nic * 1.001);
  for (size_t i = 0; i < flows.size(); ++i) {
    bool bound = false;
    for (const uint32_t link : {ends[i].first, hosts + ends[i].second})
      bound = bound || (used[link] > nic * 0.995 && rate(i) > most[link] * 0.995);
    EXPECT_TRUE(bound) << "flow " << i << " at " << rate(i) << " of " << flows.size();
  }
}

TEST_F(NetworkModel, RandomFlowsGetMaxMinFairShares) {
  for (const uint32_t hosts : {4u, 12u, 80u}) {  // few links are scanned, many are sorted
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      Bandwidth bandwidth = make(config, hosts);
      std::vector<std::pair<uint32_t, uint32_t>> ends;
      std::vector<FlowId> flows;
      for (uint32_t i = 0; i < hosts * 2; ++i) {
        const uint64_t draw = mix64(seed, i);
        ends.emplace_back(draw % hosts, (draw >> 32) % hosts);
        flows.push_back(bandwidth.start({ends.back().first}, {ends.back().second}, 1));
      }
      expect_max_min(bandwidth, ends, flows, hosts, 25);
      for (uint32_t i = 0; i < hosts / 2; ++i) {
        const size_t gone = mix64(seed, 1000 + i) % flows.size();
        bandwidth.end(flows[gone]);
        flows.erase(flows.begin() + static_cast<std::ptrdiff_t>(gone));
        ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(gone));
      }
      expect_max_min(bandwidth, ends, flows, hosts, 25);
    }
  }
}

}  // namespace
}  // namespace weightlane::sim
