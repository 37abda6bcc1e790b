// Everything that a worker owns lives in its task's frame, so that a crash takes it away. Orders
// are given from outside, between two steps of the world.
#include "sim/paper/fleet.h"

#include <algorithm>

#include "flow/assert.h"

namespace weightlane::sim::paper {
namespace {

constexpr Nanos kPatience = seconds(3600);  // of calls, and of whoever runs the world
constexpr uint64_t kManySteps = 4'000'000'000;

SpanRange exactly(Nanos span) { return {span, span}; }

WorldConfig world_config(const FleetConfig& config) {
  const Machine& machine = config.machine;
  WorldConfig world;
  world.control.delay = exactly(machine.message);
  world.control.wide_delay = exactly(millis(15));
  world.data.granule_bytes = (config.shard_bytes + config.slices - 1) / config.slices;
  world.data.max_read_bytes = world.data.granule_bytes;
  world.data.pieces_most = 1;
  world.data.latency = exactly(machine.read_latency);
  world.data.wide_latency = exactly(millis(15));
  world.data.connect = exactly(machine.connect);
  world.data.registration = exactly(millis(5));
  world.data.destroy = exactly(micros(100));
  world.data.retry_nominal = machine.nic_retry;
  world.data.retry_spread = 1;
  world.bandwidth.nic_tx = machine.nic;
  world.bandwidth.nic_rx = machine.nic;
  world.bandwidth.pcie = machine.pcie;
  world.bandwidth.wide = machine.wide_link;
  world.bandwidth.flow_cap = machine.ours;
  world.bandwidth.wide_flow_cap = machine.wide_flow;
  world.bandwidth.node_wide = machine.node_wide;
  world.step_cost = kZeroNanos;  // many processors, not one
  world.clock_offset_most = kZeroNanos;
  world.clock_drift_ppm_most = 0;
  return world;
}

}  // namespace

Fleet::Fleet(const FleetConfig& config)
    : config_(config),
      choices_(1, ChoiceMode::kReplay),
      world_(std::make_unique<World>(world_config(config), choices_)) {
  const uint64_t slice = world_->config().data.granule_bytes;
  config_.handle.slice_bytes = slice;
  config_.handle.window_bytes = 2 * slice;
  config_.handle.window_start_bytes = 2 * slice;
  server_ = &world_->add_host({.name = "server", .node = "server"});
  address_ = server_->address(7000);
  ++busy_;
  server_->start(serve(this), "server");
}

Fleet::~Fleet() { world_->end(); }

uint64_t Fleet::granules() const {
  const uint64_t granule = world_->config().data.granule_bytes;
  return (config_.shard_bytes + granule - 1) / granule;
}

uint32_t Fleet::add_replica(const std::string& name, const ReplicaPlace& place) {
  const auto replica = static_cast<uint32_t>(replicas_.size());
  replicas_.emplace_back();
  if (place.own_machine || place.datacenter != last_datacenter_) room_ = 0;
  last_datacenter_ = place.datacenter;
  for (uint32_t shard = 0; shard < config_.shards; ++shard) {
    if (room_ == 0) {
      ++machines_;
      room_ = config_.machine.gpus;
    }
    --room_;
    auto worker = std::make_unique<FleetWorker>();
    worker->replica = replica;
    worker->shard = shard;
    worker->name = name;
    HostPlace where;
    where.name = name + "-" + std::to_string(shard);
    where.datacenter = place.datacenter;
    where.node = "machine-" + std::to_string(machines_);
    worker->host = &world_->add_host(where);
    replicas_.back().push_back(worker.get());
    workers_.push_back(std::move(worker));
  }
  return replica;
}

void Fleet::open() {
  for (; opened_ < workers_.size(); ++opened_) {
    FleetWorker* worker = workers_[opened_].get();
    ++busy_;
    worker->host->start(live(this, worker), "worker");
  }
  settle();
}

void Fleet::order(uint32_t replica, Order order) {
  for (FleetWorker* worker : replicas_[replica]) {
    ++busy_;
    worker->orders.push_back(order);
    worker->ordered->notify_all();
  }
}

void Fleet::settle() {
  if (busy_ == 0) return;
  const StopReason why =
      world_->run_until(world_->now() + kPatience, kManySteps, [this] { return busy_ == 0; });
  WL_ASSERT(why == StopReason::kPredicate);
}

void Fleet::run_for(Nanos span) {
  const StopReason why = world_->run_until(world_->now() + span, kManySteps);
  WL_ASSERT(why == StopReason::kTime);
}

void Fleet::slow_down(uint32_t replica, uint32_t shard, uint32_t permille) {
  world_->bandwidth().set_slowdown_permille(replicas_[replica][shard]->host->id(), permille);
}

void Fleet::crash(uint32_t replica) {
  for (FleetWorker* worker : replicas_[replica]) {
    worker->host->crash(CrashKind::kMachine);
    busy_ -= worker->orders.size();
    worker->orders.clear();
    worker->ordered = nullptr;
    worker->ok = false;
  }
}

double Fleet::mean(uint32_t replica) const { return total(replica) / config_.shards; }

double Fleet::total(uint32_t replica) const {
  double sum = 0;
  for (const FleetWorker* worker : replicas_[replica])
    sum += to_seconds(worker->ended - worker->began);
  return sum;
}

double Fleet::longest(uint32_t replica) const {
  Nanos most;
  for (const FleetWorker* worker : replicas_[replica])
    most = std::max(most, worker->ended - worker->began);
  return to_seconds(most);
}

bool Fleet::all_ok(uint32_t replica) const {
  return std::all_of(replicas_[replica].begin(), replicas_[replica].end(),
                     [](const FleetWorker* worker) { return worker->ok; });
}

// ---------------------------------------------------------------- memory

uint64_t Fleet::tag(const FleetWorker& worker, uint64_t version, uint64_t granule) const {
  return version << 40 | uint64_t{worker.shard} << 20 | granule;
}

void Fleet::write(const FleetWorker& worker, uint64_t version) {
  std::vector<uint64_t> tags(granules());
  for (uint64_t i = 0; i < tags.size(); ++i) tags[i] = tag(worker, version, i);
  worker.host->memory().write(worker.memory, tags);
}

void Fleet::verify(const FleetWorker& worker) const {
  const uint64_t granule = world_->config().data.granule_bytes;
  for (uint64_t i = 0; i < granules(); ++i) {
    const uint64_t found = worker.host->memory().read(worker.memory + i * granule);
    WL_ASSERT_OP(found, ==, tag(worker, worker.version, i));
  }
}

// ---------------------------------------------------------------- processes

flow::Task<void> Fleet::serve(Fleet* self) {
  auto server = ros::Server::start(self->server_, &self->server_->control(), self->address_,
                                   self->config_.server, nullptr);
  WL_ASSERT(server.ok());
  self->directory_ = &(*server)->directory();
  --self->busy_;
  co_await self->server_->sleep_until(kForever);
}

ros::OpenOptions Fleet::open_options(const FleetWorker& worker) const {
  ros::OpenOptions options;
  options.model = "model";
  options.replica = worker.name;
  options.shard = {worker.shard};
  options.num_shards = config_.shards;
  options.node = worker.host->place().node;
  options.servers = {address_};
  options.timing = config_.handle;
  return options;
}

flow::Task<void> Fleet::live(Fleet* self, FleetWorker* worker) {
  Host* host = worker->host;
  flow::Signal ordered(*host);
  ros::Environment environment{host, &host->control(), &host->data(), nullptr};
  auto opened = co_await ros::ShardHandle::open(environment, self->open_options(*worker),
                                                deadline_after(host->now(), kPatience));
  WL_ASSERT(opened.ok());
  const std::unique_ptr<ros::ShardHandle> handle = std::move(opened).value();
  worker->memory = host->memory().allocate(self->config_.shard_bytes);
  std::vector<ros::TensorSpec> tensors(1);
  tensors[0] = {"weights",
                "U8",
                {self->config_.shard_bytes},
                {worker->memory, self->config_.shard_bytes, net::Device::kCuda, 0}};
  const Result<Done> registered = co_await handle->register_tensors(std::move(tensors));
  WL_ASSERT(registered.ok());
  worker->ordered = &ordered;
  worker->open = true;
  --self->busy_;
  while (true) {
    if (worker->orders.empty()) {
      co_await ordered.wait();
      continue;
    }
    const Order order = worker->orders.front();
    co_await carry_out(self, worker, handle.get(), order);
    worker->orders.pop_front();
    --self->busy_;
  }
}

flow::Task<void> Fleet::carry_out(Fleet* self, FleetWorker* worker, ros::ShardHandle* handle,
                                  Order order) {
  worker->began = worker->host->now();
  switch (order.verb) {
    case Verb::kPublish: {
      self->write(*worker, order.version);
      const Result<Done> done = co_await handle->publish({order.version});
      worker->ok = done.ok();
      break;
    }
    case Verb::kUnpublish: {
      const Result<Done> done = co_await handle->unpublish();
      worker->ok = done.ok();
      break;
    }
    case Verb::kReplicate: {
      const Result<VersionId> got = co_await handle->replicate({}, kPatience);
      worker->ok = got.ok();
      break;
    }
    case Verb::kUpdate: {
      const auto got = co_await handle->update({}, kPatience);
      worker->ok = got.ok();
      break;
    }
  }
  worker->ended = worker->host->now();
  worker->version = handle->holds().value_or(VersionId{}).value;
  if (worker->version != 0) self->verify(*worker);
}

}  // namespace weightlane::sim::paper
