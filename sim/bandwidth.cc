// Rates are fixed-point bytes per nanosecond, so shares are the same on every machine. One flow
// alone is the common case, and has a short way.
#include "sim/bandwidth.h"

#include <algorithm>

#include "flow/assert.h"

namespace weightlane::sim {

int64_t Bandwidth::to_rate(uint64_t bytes_per_second) {
  WL_ASSERT(bytes_per_second < 1ull << 47);
  return std::max<int64_t>(1,
                           static_cast<int64_t>((bytes_per_second << kFraction) / 1'000'000'000));
}

uint32_t Bandwidth::datacenter(const std::string& name) {
  for (uint32_t i = 0; i < datacenters_.size(); ++i) {
    if (datacenters_[i] == name) return i;
  }
  datacenters_.push_back(name);
  return static_cast<uint32_t>(datacenters_.size() - 1);
}

void Bandwidth::add_host(HostId host, const HostPlace& place) {
  WL_ASSERT_OP(host.value, ==, hosts_.size());
  HostLinks links;
  links.datacenter = datacenter(place.datacenter);
  links.nic_tx = place.nic_tx != 0 ? place.nic_tx : config_.nic_tx;
  links.nic_rx = place.nic_rx != 0 ? place.nic_rx : config_.nic_rx;
  links.tx = static_cast<uint32_t>(links_.size());
  links.rx = links.tx + 1;
  links_.push_back({.capacity = to_rate(links.nic_tx)});
  links_.push_back({.capacity = to_rate(links.nic_rx)});
  hosts_.push_back(links);
}

void Bandwidth::set_slowdown(HostId host, uint32_t factor) {
  WL_ASSERT(factor >= 1);
  const HostLinks& links = hosts_[host.value];
  links_[links.tx].capacity = to_rate(links.nic_tx / factor);
  links_[links.rx].capacity = to_rate(links.nic_rx / factor);
  fill();
}

uint32_t Bandwidth::wide_link(uint32_t from, uint32_t to) {
  for (const Wide& wide : wide_) {
    if (wide.from == from && wide.to == to) return wide.link;
  }
  wide_.push_back({from, to, static_cast<uint32_t>(links_.size())});
  links_.push_back({.capacity = to_rate(config_.wide)});
  return wide_.back().link;
}

FlowId Bandwidth::start(HostId source, HostId reader, uint32_t slowdown) {
  const HostLinks from = hosts_[source.value];
  const HostLinks to = hosts_[reader.value];
  uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<uint32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Flow flow;
  flow.active = true;
  flow.slowdown = slowdown;
  flow.links = 2;
  flow.link[0] = from.tx;
  flow.link[1] = to.rx;
  if (from.datacenter != to.datacenter) {
    flow.link[2] = wide_link(from.datacenter, to.datacenter);
    flow.links = 3;
  }
  flows_[index] = flow;
  active_.push_back(index);
  fill();
  return {index};
}

void Bandwidth::end(FlowId flow) {
  WL_ASSERT(flow.value != 0 && flows_[flow.value].active);
  flows_[flow.value].active = false;
  active_.erase(std::find(active_.begin(), active_.end(), flow.value));
  free_.push_back(flow.value);
  fill();
}

// Progressive filling: the link with the least share per flow left fixes its flows, and so on until
// all are fixed.
void Bandwidth::fill() {
  if (active_.size() == 1) {
    Flow& flow = flows_[active_[0]];
    flow.rate = links_[flow.link[0]].capacity;
    for (uint32_t i = 1; i < flow.links; ++i) {
      flow.rate = std::min(flow.rate, links_[flow.link[i]].capacity);
    }
    return;
  }
  for (const uint32_t index : active_) {
    Flow& flow = flows_[index];
    flow.fixed = false;
    for (uint32_t i = 0; i < flow.links; ++i) {
      Link& link = links_[flow.link[i]];
      link.left = link.capacity;
      link.flows = 0;
    }
  }
  for (const uint32_t index : active_) {
    const Flow& flow = flows_[index];
    for (uint32_t i = 0; i < flow.links; ++i) ++links_[flow.link[i]].flows;
  }
  for (size_t unfixed = active_.size(); unfixed > 0;) {
    int64_t share = INT64_MAX;
    uint32_t tightest = 0;
    for (const uint32_t index : active_) {
      const Flow& flow = flows_[index];
      if (flow.fixed) continue;
      for (uint32_t i = 0; i < flow.links; ++i) {
        const Link& link = links_[flow.link[i]];
        const int64_t here = link.left / link.flows;
        if (here < share) {
          share = here;
          tightest = flow.link[i];
        }
      }
    }
    for (const uint32_t index : active_) {
      Flow& flow = flows_[index];
      const auto end = flow.link.begin() + flow.links;
      if (flow.fixed || std::find(flow.link.begin(), end, tightest) == end) continue;
      flow.fixed = true;
      flow.rate = std::max<int64_t>(1, share);
      --unfixed;
      for (uint32_t i = 0; i < flow.links; ++i) {
        links_[flow.link[i]].left -= share;
        --links_[flow.link[i]].flows;
      }
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
