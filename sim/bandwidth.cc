// Rates are fixed-point bytes per nanosecond, so shares are the same on every machine. A flow that
// meets no other is the common case, and has a short way.
#include "sim/bandwidth.h"

#include <algorithm>

#include "flow/assert.h"

namespace weightlane::sim {
namespace {

constexpr size_t kScanned = 24;  // so few links are looked through faster than sorted

}  // namespace

int64_t Bandwidth::to_rate(uint64_t bytes_per_second) {
  WL_ASSERT(bytes_per_second < 1ull << 47);
  return std::max<int64_t>(1,
                           static_cast<int64_t>((bytes_per_second << kFraction) / 1'000'000'000));
}

// ---------------------------------------------------------------- links

uint32_t Bandwidth::add_link(uint64_t bytes_per_second) {
  links_.push_back({.capacity = to_rate(bytes_per_second)});
  return static_cast<uint32_t>(links_.size() - 1);
}

uint32_t Bandwidth::datacenter(const std::string& name) {
  for (uint32_t i = 0; i < datacenters_.size(); ++i) {
    if (datacenters_[i] == name) return i;
  }
  datacenters_.push_back(name);
  return static_cast<uint32_t>(datacenters_.size() - 1);
}

// Hosts of one machine are added one after the other, so it is found from the back.
uint32_t Bandwidth::node(const std::string& name) {
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (nodes_[i].name == name) return static_cast<uint32_t>(i);
  }
  const uint32_t tx = add_link(config_.node_wide);
  const uint32_t rx = add_link(config_.node_wide);
  nodes_.push_back({name, tx, rx});
  return static_cast<uint32_t>(nodes_.size() - 1);
}

void Bandwidth::add_host(HostId host, const HostPlace& place) {
  WL_ASSERT_OP(host.value, ==, hosts_.size());
  HostLinks links;
  links.datacenter = datacenter(place.datacenter);
  links.nic_tx = place.nic_tx != 0 ? place.nic_tx : config_.nic_tx;
  links.nic_rx = place.nic_rx != 0 ? place.nic_rx : config_.nic_rx;
  links.tx = add_link(links.nic_tx);
  links.rx = add_link(links.nic_rx);
  if (config_.node_wide != 0) links.node = node(place.node);
  hosts_.push_back(links);
}

void Bandwidth::set_slowdown(HostId host, uint32_t factor) {
  set_slowdown_permille(host, factor * 1000);
}

void Bandwidth::set_slowdown_permille(HostId host, uint32_t permille) {
  WL_ASSERT(permille >= 1000);
  HostLinks& links = hosts_[host.value];
  links.slower_permille = permille;
  links_[links.tx].capacity = to_rate(links.nic_tx * 1000 / permille);
  links_[links.rx].capacity = to_rate(links.nic_rx * 1000 / permille);
  Flow both;
  both.links = 2;
  both.link = {links.tx, links.rx};
  refill(both);
}

uint32_t Bandwidth::wide_link(uint32_t from, uint32_t to) {
  for (const Wide& wide : wide_) {
    if (wide.from == from && wide.to == to) return wide.link;
  }
  wide_.push_back({from, to, add_link(config_.wide)});
  return wide_.back().link;
}

uint32_t Bandwidth::take_own_link(uint64_t cap) {
  if (own_links_.empty()) return add_link(cap);
  const uint32_t link = own_links_.back();
  own_links_.pop_back();
  links_[link].capacity = to_rate(cap);
  return link;
}

// ---------------------------------------------------------------- flows

FlowId Bandwidth::start(HostId source, HostId reader, uint32_t slowdown, uint64_t cap) {
  const HostLinks& from = hosts_[source.value];
  const HostLinks& to = hosts_[reader.value];
  Flow flow;
  flow.slowdown = slowdown;
  const bool near = from.datacenter == to.datacenter;
  if (cap == 0) cap = near ? config_.flow_cap : config_.wide_flow_cap;
  cap = cap * 1000 / std::max(from.slower_permille, to.slower_permille);
  if (near) {
    flow.links = 2;
    flow.link = {from.tx, to.rx};
    return add_flow(flow, cap);
  }
  const bool own_nic = config_.node_wide == 0;
  flow.links = 3;
  flow.link = {own_nic ? from.tx : nodes_[from.node].tx, own_nic ? to.rx : nodes_[to.node].rx,
               wide_link(from.datacenter, to.datacenter)};
  return add_flow(flow, cap);
}

FlowId Bandwidth::start_copy(HostId host, bool to_device, uint64_t cap) {
  const uint32_t known = to_device ? hosts_[host.value].to_device : hosts_[host.value].to_host;
  const uint32_t lanes = known != kNone ? known : add_link(config_.pcie);
  (to_device ? hosts_[host.value].to_device : hosts_[host.value].to_host) = lanes;
  Flow flow;
  flow.links = 1;
  flow.link = {lanes};
  return add_flow(flow, cap);
}

FlowId Bandwidth::add_flow(Flow flow, uint64_t cap) {
  uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<uint32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  if (cap != 0) {
    flow.own_link = take_own_link(cap);
    flow.link[flow.links++] = flow.own_link;
  }
  WL_ASSERT_OP(flow.links, <=, kLinksMost);
  flow.active = true;
  flows_[index] = flow;
  for (uint32_t i = 0; i < flow.links; ++i) links_[flow.link[i]].flows.push_back(index);
  refill(flow);
  return {index};
}

void Bandwidth::end(FlowId id) {
  WL_ASSERT(id.value != 0 && flows_[id.value].active);
  const Flow flow = flows_[id.value];
  flows_[id.value].active = false;
  for (uint32_t i = 0; i < flow.links; ++i) {
    std::vector<uint32_t>& flows = links_[flow.link[i]].flows;
    *std::find(flows.begin(), flows.end(), id.value) = flows.back();
    flows.pop_back();
  }
  if (flow.own_link != kNone) own_links_.push_back(flow.own_link);
  free_.push_back(id.value);
  refill(flow);
}

// ---------------------------------------------------------------- shares

// `changed` has started or ended, or its links have another capacity.
void Bandwidth::refill(const Flow& changed) {
  collect(changed);
  if (joined_flows_.empty()) return;
  if (joined_flows_.size() == 1) return fill_alone(flows_[joined_flows_.front()]);
  for (const uint32_t index : joined_links_) {
    Link& link = links_[index];
    link.left = link.capacity;
    link.unfixed = static_cast<uint32_t>(link.flows.size());
  }
  heap_.clear();
  const bool scan = joined_links_.size() <= kScanned;
  if (!scan) {
    for (const uint32_t index : joined_links_) push(index);
  }
  // The link with the least share per flow left fixes its flows, and so on until all are fixed.
  while (true) {
    Candidate tightest{INT64_MAX, kNone};
    if (scan) {
      for (const uint32_t index : joined_links_) {
        const Link& link = links_[index];
        if (link.unfixed == 0) continue;
        tightest = std::min(tightest, Candidate{link.left / link.unfixed, index});
      }
      if (tightest.link == kNone) return;
    } else {
      if (heap_.empty()) return;
      std::pop_heap(heap_.begin(), heap_.end(),
                    [](const Candidate& a, const Candidate& b) { return b < a; });
      tightest = heap_.back();
      heap_.pop_back();
      const Link& link = links_[tightest.link];
      if (link.unfixed == 0) continue;
      if (link.left / link.unfixed != tightest.share) {
        push(tightest.link);
        continue;
      }
    }
    fix_flows_of(tightest.link, tightest.share);
  }
}

void Bandwidth::push(uint32_t link) {
  if (links_[link].unfixed == 0) return;
  heap_.push_back({links_[link].left / links_[link].unfixed, link});
  std::push_heap(heap_.begin(), heap_.end(),
                 [](const Candidate& a, const Candidate& b) { return b < a; });
}

void Bandwidth::fix_flows_of(uint32_t link, int64_t share) {
  for (const uint32_t index : links_[link].flows) {
    Flow& flow = flows_[index];
    if (flow.fixed) continue;
    flow.fixed = true;
    flow.rate = std::max<int64_t>(1, share);
    for (uint32_t i = 0; i < flow.links; ++i) {
      links_[flow.link[i]].left -= share;
      --links_[flow.link[i]].unfixed;
    }
  }
}

void Bandwidth::fill_alone(Flow& flow) const {
  flow.rate = links_[flow.link[0]].capacity;
  for (uint32_t i = 1; i < flow.links; ++i) {
    flow.rate = std::min(flow.rate, links_[flow.link[i]].capacity);
  }
}

void Bandwidth::join(uint32_t link) {
  if (links_[link].fill == fills_) return;
  links_[link].fill = fills_;
  joined_links_.push_back(link);
}

// Everything that hangs together with `changed`: its links, their flows, their links, and so on.
void Bandwidth::collect(const Flow& changed) {
  ++fills_;
  joined_links_.clear();
  joined_flows_.clear();
  for (uint32_t i = 0; i < changed.links; ++i) join(changed.link[i]);
  for (size_t next = 0; next < joined_links_.size(); ++next) {
    for (const uint32_t index : links_[joined_links_[next]].flows) {
      Flow& flow = flows_[index];
      if (flow.fill == fills_) continue;
      flow.fill = fills_;
      flow.fixed = false;
      joined_flows_.push_back(index);
      for (uint32_t i = 0; i < flow.links; ++i) join(flow.link[i]);
    }
  }
}

Nanos Bandwidth::span_of(FlowId flow, uint64_t bytes) const {
  WL_ASSERT(bytes < 1ull << 46);
  const Flow& f = flows_[flow.value];
  const auto span = static_cast<int64_t>(bytes << kFraction) / f.rate;
  return nanos(std::max<int64_t>(1, span) * f.slowdown);
}

uint64_t Bandwidth::rate_of(FlowId flow) const {
  const Flow& f = flows_[flow.value];
  return (static_cast<uint64_t>(f.rate) * 1'000'000'000 / f.slowdown) >> kFraction;
}

}  // namespace weightlane::sim
