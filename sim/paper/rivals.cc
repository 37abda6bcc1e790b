// A transfer goes chunk by chunk, each at the rate that its flow has when it begins, as READs do.
#include "sim/paper/rivals.h"

#include <string>

#include "flow/assert.h"

namespace weightlane::sim::paper {
namespace {

WorldConfig world_config(const Machine& machine) {
  WorldConfig world;
  world.bandwidth.nic_tx = machine.nic;
  world.bandwidth.nic_rx = machine.nic;
  world.bandwidth.pcie = machine.pcie;
  world.bandwidth.wide = machine.wide_link;
  world.bandwidth.wide_flow_cap = machine.wide_flow;
  world.bandwidth.node_wide = machine.node_wide;
  world.step_cost = kZeroNanos;
  world.clock_offset_most = kZeroNanos;
  world.clock_drift_ppm_most = 0;
  return world;
}

}  // namespace

Rivals::Rivals(const Machine& machine, uint64_t bytes, uint32_t chunks)
    : machine_(machine),
      bytes_(bytes),
      chunks_(chunks),
      choices_(1, ChoiceMode::kReplay),
      world_(std::make_unique<World>(world_config(machine), choices_)) {}

Rivals::~Rivals() { world_->end(); }

flow::Task<void> Rivals::idle(Host* host) { co_await host->sleep_until(kForever); }

HostId Rivals::add_gpu(const std::string& datacenter) {
  HostPlace place;
  place.datacenter = datacenter;
  place.node = datacenter + "-" + std::to_string(gpus_++ / machine_.gpus);
  Host& host = world_->add_host(place);
  host.start(idle(&host), "gpu");
  return host.id();
}

void Rivals::slow_down(HostId gpu, uint32_t permille) {
  world_->bandwidth().set_slowdown_permille(gpu, permille);
}

Rivals::Stage& Rivals::add_stage(HostId gpu) {
  stages_.push_back(std::make_unique<Stage>(world_->host(gpu)));
  return *stages_.back();
}

void Rivals::begin(HostId from, HostId to, uint64_t cap, Stage* upstream) {
  Stage& mine = add_stage(to);
  ++busy_;
  world_->host(to).spawn(move(this, from, to, cap, upstream, &mine), "move");
}

flow::Task<void> Rivals::move(Rivals* self, HostId from, HostId to, uint64_t cap, Stage* upstream,
                              Stage* mine) {
  Host& host = self->world_->host(to);
  Bandwidth& bandwidth = self->world_->bandwidth();
  FlowId flow;
  for (uint32_t chunk = 0; chunk < self->chunks_; ++chunk) {
    while (upstream != nullptr && upstream->done <= chunk) {
      if (flow.value != 0) bandwidth.end(flow);
      flow = {};
      co_await upstream->changed.wait();
    }
    if (flow.value == 0) flow = bandwidth.start(from, to, 1, cap);
    const Nanos span = bandwidth.span_of(flow, self->bytes_ / self->chunks_);
    co_await host.sleep_for(span);
    ++mine->done;
    mine->changed.notify_all();
  }
  bandwidth.end(flow);
  --self->busy_;
}

double Rivals::finish(Nanos began) {
  const StopReason why =
      world_->run_until(began + seconds(36'000), 4'000'000'000, [this] { return busy_ == 0; });
  WL_ASSERT(why == StopReason::kPredicate);
  // The barrier, or the driver's word that the round has ended.
  return to_seconds(world_->now() - began + machine_.message * 2);
}

double Rivals::broadcast(const std::vector<std::vector<HostId>>& communicators) {
  const Nanos began = world_->now();
  for (const std::vector<HostId>& members : communicators) {
    Stage* upstream = nullptr;
    for (size_t i = 1; i < members.size(); ++i) {
      begin(members[i - 1], members[i], machine_.broadcast, upstream);
      upstream = stages_.back().get();
    }
  }
  return finish(began);
}

double Rivals::round(const std::vector<Pair>& pairs) {
  const Nanos began = world_->now();
  for (const Pair& pair : pairs) {
    const bool near =
        world_->host(pair.from).place().datacenter == world_->host(pair.to).place().datacenter;
    begin(pair.from, pair.to, near ? machine_.point_to_point : machine_.wide_flow, nullptr);
  }
  return finish(began);
}

Nanos Rivals::span_at(uint64_t rate) const {
  return nanos(static_cast<int64_t>(bytes_ / (rate / 1'000'000) * 1'000));
}

flow::Task<void> Rivals::through_store(Rivals* self, HostId owner, HostId reader) {
  Host& host = self->world_->host(reader);
  Bandwidth& bandwidth = self->world_->bandwidth();
  const FlowId out = bandwidth.start_copy(owner, false);
  const Nanos to_host = bandwidth.span_of(out, self->bytes_);
  co_await host.sleep_for(to_host + self->span_at(self->machine_.store_put));
  bandwidth.end(out);
  const FlowId wire = bandwidth.start(owner, reader, 1, self->machine_.store_pull);
  const Nanos pulled = bandwidth.span_of(wire, self->bytes_);
  co_await host.sleep_for(pulled);
  bandwidth.end(wire);
  const FlowId in = bandwidth.start_copy(reader, true);
  const Nanos to_device = bandwidth.span_of(in, self->bytes_);
  co_await host.sleep_for(to_device + self->span_at(self->machine_.store_get));
  bandwidth.end(in);
  --self->busy_;
}

double Rivals::object_store(HostId owner, HostId reader) {
  const Nanos began = world_->now();
  ++busy_;
  world_->host(reader).spawn(through_store(this, owner, reader), "store");
  return finish(began);
}

}  // namespace weightlane::sim::paper
