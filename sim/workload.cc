// Hosts, lives and memory of the application. What workers do is in workload_steps.cc.
#include "sim/workload.h"

#include <algorithm>

#include "sim/host_memory.h"

namespace weightlane::sim {
namespace {

constexpr uint32_t kServerPort = 7000;
constexpr Nanos kSlack = seconds(5);  // message delays, retries with back-off, slow registrations

HostPlace named(std::string name) {
  HostPlace place;
  place.name = std::move(name);
  return place;
}

// Tells the checkers which directory is the real one, for as long as it is.
class ServerLife {
 public:
  ServerLife(Checkers* checkers, uint32_t index, const ros::Directory* directory)
      : checkers_(checkers), index_(index) {
    checkers_->server_started(index, directory);
  }
  ~ServerLife() { checkers_->server_stopped(index_); }
  ServerLife(const ServerLife&) = delete;
  ServerLife& operator=(const ServerLife&) = delete;

 private:
  Checkers* checkers_;
  uint32_t index_;
};

}  // namespace

Workload::Workload(World* world, Checkers* checkers, const Plan* plan)
    : world_(world), checkers_(checkers), plan_(plan) {
  const ros::ServerOptions& server = plan->server;
  const ros::HandleOptions& handle = plan->handle;
  uint64_t bytes = 0;
  for (uint32_t shard = 0; shard < plan->shards; ++shard) {
    bytes = std::max(bytes, plan->shard_granules(shard) * world->config().data.granule_bytes);
  }
  // P6: lease + drain + stall + twice the transfer, where a transfer may wait for every other
  // replica's, and what a stalled queue pair takes to be destroyed.
  const uint64_t share = plan->shards_per_host * (plan->replicas() + 1);
  const BandwidthConfig& links = world->config().bandwidth;
  const uint64_t slowest =
      plan->datacenters > 1 ? std::min(links.nic_tx, links.wide / plan->shards) : links.nic_tx;
  const uint64_t rate = std::max<uint64_t>(1, slowest / 1'000'000);  // bytes per microsecond
  const Nanos transfer = micros(static_cast<int64_t>(bytes * share / rate));
  const Nanos retry = world->config().data.retry_nominal * world->config().data.retry_spread;
  bound_ = server.lease + server.drain + handle.stall + transfer * 2 + handle.quarantine + retry +
           handle.connect + handle.server_lost + handle.rpc_attempt + kSlack;
  // Until the server's answer or its loss, and then the drain.
  hand_back_bound_ = server.drain + handle.server_lost + handle.rpc_attempt * 2 + kSlack;
  if (!plan->retains()) return;
  bound_ += server.offload;
  hand_back_bound_ += server.offload;
}

void Workload::start() {
  for (uint32_t i = 0; i < plan_->servers; ++i) {
    const HostId host =
        world_->add_host(named(i == 0 ? "server" : "server" + std::to_string(i))).id();
    servers_.push_back({host, world_->host(host).address(kServerPort)});
    checkers_->add_server(host, servers_.back().address);
  }
  for (uint32_t i = 0; i < plan_->servers; ++i) start_server(i);
  workers_.reserve((plan_->replicas() + 1) * plan_->shards);
  for (uint32_t i = 0; i < plan_->trainers; ++i)
    add_replica(Role::kTrainer, i, "t" + std::to_string(i));
  for (uint32_t i = 0; i < plan_->rollouts; ++i) {
    add_replica(Role::kRollout, plan_->trainers + i, "r" + std::to_string(i));
  }
  note_trainers();
  for (const auto& worker : workers_) {
    if (!worker->host->alive()) start_host(*worker->host, false);
  }
}

void Workload::start_fresh() {
  const size_t before = workers_.size();
  add_replica(Role::kFresh, plan_->replicas(), "f0");
  for (size_t i = before; i < workers_.size(); ++i) {
    if (!workers_[i]->host->alive()) start_host(*workers_[i]->host, false);
  }
}

void Workload::add_replica(Role role, uint32_t replica, const std::string& name) {
  Host* host = nullptr;
  for (uint32_t shard = 0; shard < plan_->shards; ++shard) {
    if (shard % plan_->shards_per_host == 0) {
      HostPlace place = named(name + "-" + std::to_string(shard));
      place.datacenter = "dc" + std::to_string(plan_->datacenter_of(replica));
      // Some replicas share machines, so that "same node" means something.
      if (replica % 3 == 2) place.node = "node" + std::to_string(shard) + place.datacenter;
      host = &world_->add_host(place);
    }
    auto worker = std::make_unique<Worker>();
    worker->id = checkers_->add_worker(host->id(), replica, shard, name);
    worker->role = role;
    worker->replica = replica;
    worker->shard = shard;
    worker->host = host;
    worker->stream =
        stream_of(host->id(), shard % 2 == 0 ? Subsystem::kWorkload : Subsystem::kProgram);
    workers_.push_back(std::move(worker));
  }
}

void Workload::start_server(uint32_t index) {
  Host& host = world_->host(servers_[index].host);
  if (!host.alive()) host.start(run_server(this, index), "server");
}

void Workload::crash_server(uint32_t index) {
  world_->host(servers_[index].host).crash(CrashKind::kMemoryFirst);
}

bool Workload::is_server(HostId host) const {
  return std::any_of(servers_.begin(), servers_.end(),
                     [host](const Server& server) { return server.host == host; });
}

Nanos Workload::meeting_bound() const {
  const ros::HandleOptions& handle = plan_->handle;
  // Round the list, to notice that an earlier one is back, to open there though a dead process or
  // an opening of long ago has the place; twice, because a replica may be sent back in two parts.
  const Nanos round = (handle.server_silent + handle.rpc_attempt + handle.connect) *
                      static_cast<int64_t>(servers_.size());
  return (round + plan_->server.heartbeat * 4 + plan_->server.lease) * 2 + kSlack;
}

std::string Workload::apart() const {
  const ros::Directory* first = nullptr;
  for (uint32_t i = 0; i < servers_.size(); ++i) {
    const ros::Directory* directory = checkers_->directory(i);
    if (directory == nullptr) continue;
    if (first == nullptr) {
      first = directory;
    } else if (directory->clients() != 0) {
      return std::to_string(directory->clients()) + " shards are still at " + servers_[i].address;
    }
  }
  if (first == nullptr) return "no server is left";
  for (const auto& worker : workers_) {
    if (worker->lost || !worker->host->alive() || worker->handle == nullptr) continue;
    const ros::HandleState state = worker->handle->state();
    if (state == ros::HandleState::kPoisoned || state == ros::HandleState::kClosed) continue;
    const auto group = first->groups().find({kModel, checkers_->replica_name(worker->replica)});
    const bool known =
        group != first->groups().end() && group->second.members[worker->shard] != nullptr;
    if (!known)
      return checkers_->describe_worker(worker->id) + " is not at the first server that is left";
  }
  return {};
}

void Workload::start_host(Host& host, bool reuse) {
  for (const auto& worker : workers_) {
    if (worker->host != &host) continue;
    worker->resting = Resting::kBusy;
    worker->stage_changed = nullptr;
    worker->handle = nullptr;
    worker->odd_layout = false;
    worker->kept = false;
    worker->wants_latest = false;
  }
  host.start(run_host(this, &host), "host", reuse);
}

void Workload::restart(Host& host, bool reuse) {
  if (is_server(host.id())) return;  // not the injector's
  for (const auto& worker : workers_) {
    if (worker->host == &host && worker->lost) return;
  }
  start_host(host, reuse);
}

bool Workload::may_crash(Host& host) { return !is_server(host.id()); }

void Workload::lose(HostId host) {
  for (const auto& worker : workers_) {
    if (worker->host->id() == host) worker->lost = true;
  }
  note_trainers();
}

void Workload::enter(Stage stage) {
  stage_ = stage;
  for (const auto& worker : workers_) {
    if (stage == Stage::kClose && worker->resting != Resting::kClosed)
      worker->resting = Resting::kBusy;
    if (worker->host->alive() && worker->stage_changed != nullptr)
      worker->stage_changed->notify_all();
  }
}

uint32_t Workload::busy() const {
  uint32_t count = 0;
  for (const auto& worker : workers_) {
    if (!worker->lost && worker->host->alive() && worker->resting == Resting::kBusy) ++count;
  }
  return count;
}

std::string Workload::busy_report() const {
  std::string text;
  for (const auto& worker : workers_) {
    if (worker->lost || !worker->host->alive() || worker->resting != Resting::kBusy) continue;
    text += (text.empty() ? "" : ", ") + checkers_->describe_worker(worker->id);
  }
  return text;
}

std::string Workload::waiting_for_latest(Nanos before) const {
  std::string text;
  for (const auto& worker : workers_) {
    if (worker->lost || !worker->host->alive() || !worker->wants_latest) continue;
    if (worker->latest_since >= before || !checkers_->in_call(worker->id)) continue;
    text += (text.empty() ? "" : ", ") + checkers_->describe_worker(worker->id);
  }
  return text;
}

bool Workload::fresh_succeeded() const {
  bool any = false;
  for (const auto& worker : workers_) {
    if (worker->role != Role::kFresh) continue;
    any = true;
    if (!worker->fresh_done) return false;
  }
  return any;
}

bool Workload::someone_holds() const {
  const ros::Directory* directory = checkers_->directory();
  if (directory == nullptr) return false;
  const Generation generation = checkers_->retention().generation();  // of what can be the latest
  for (const auto& [name, group] : directory->groups()) {
    bool whole = false;
    for (const auto& [number, publication] : group.publications)
      whole = whole || (publication->serves_whole() &&
                        publication->content->content.generation == generation);
    for (const auto& worker : workers_) {
      // An offload stands and falls with the processes of the replica in whose name it begins.
      const std::string& replica = checkers_->replica_name(worker->replica);
      if (replica != group.replica.substr(0, group.replica.find('~'))) continue;
      whole = whole && !worker->lost && worker->host->state() == HostState::kUp;
    }
    if (whole) return true;
  }
  return false;
}

void Workload::nudge(uint32_t replica) {
  for (const auto& worker : workers_) {
    if (worker->replica != replica || !worker->host->alive() || worker->stage_changed == nullptr)
      continue;
    worker->stage_changed->notify_all();
  }
}

// Called whenever a trainer's standing changes: when none has anything left to publish, the others
// get a little time to follow.
void Workload::note_trainers() {
  const uint32_t before = trainers_left_;
  trainers_left_ = 0;
  for (const auto& worker : workers_) {
    if (worker->role == Role::kTrainer && !worker->lost && !worker->finished) ++trainers_left_;
  }
  if (before != 0 && trainers_left_ == 0)
    followed_at_ = world_->now() + plan_->habits.think * 4 + plan_->habits.hold;
}

// ---------------------------------------------------------------- lives

flow::Task<void> Workload::run_server(Workload* self, uint32_t index) {
  Host* host = &self->world_->host(self->servers_[index].host);
  Result<std::unique_ptr<ros::Server>> server =
      ros::Server::start(host, &host->control(), self->servers_[index].address, self->plan_->server,
                         self->checkers_->watch_server(index));
  WL_ASSERT(server.ok());
  ServerLife life(self->checkers_, index, &(*server)->directory());
  co_await host->sleep_until(kForever);
}

flow::Task<void> Workload::run_host(Workload* self, Host* host) {
  SimHostMemory memory(host);
  ros::OffloadOptions options;
  options.limit_bytes = self->plan_->offload_limit;
  options.transfer = self->plan_->server.offload;
  ros::OffloadStore offloads(
      {host, &host->control(), &host->data(), self->checkers_->retention().watch(host->id())},
      &memory, options);
  for (const auto& worker : self->workers_) {
    if (worker->host != host) continue;
    worker->offloads = &offloads;
    host->spawn(run_worker(self, worker.get()), "worker");
  }
  co_await host->sleep_until(kForever);
}

ros::Environment Workload::environment(const Worker& worker) const {
  return {worker.host, &worker.host->control(), &worker.host->data(), checkers_->watch(worker.id),
          worker.offloads};
}

ros::OpenOptions Workload::open_options(const Worker& worker) const {
  ros::OpenOptions options;
  options.model = kModel;
  options.replica = checkers_->replica_name(worker.replica);
  options.shard = {worker.shard};
  options.num_shards = plan_->shards;
  options.node =
      worker.host->place().node.empty() ? worker.host->place().name : worker.host->place().node;
  options.datacenter = worker.host->place().datacenter;
  for (const Server& server : servers_) options.servers.push_back(server.address);
  options.timing = plan_->handle;
  options.spot = plan_->is_spot(worker.replica);
  if (worker.role == Role::kTrainer) options.retain.latest = plan_->retain_latest;
  if (options.replica == "r0" && plan_->retain_exact != 0)
    options.retain.versions = {{plan_->retain_exact}};
  if (plan_->offload_drop != 0) options.on_offload_failure = net::OffloadFailure::kDrop;
  return options;
}

// ---------------------------------------------------------------- memory

// Even shards have their tensors side by side in one range, odd ones a range for each.
void Workload::lay_out_memory(Worker& worker) {
  Memory& memory = worker.host->memory();
  const uint64_t granule = memory.granule_bytes();
  worker.rows.assign(plan_->tensors, TensorRow{});
  const bool together = worker.shard % 2 == 0;
  uint64_t next = together ? memory.allocate(plan_->shard_granules(worker.shard) * granule) : 0;
  for (uint32_t t = 0; t < plan_->tensors; ++t) {
    TensorRow& row = worker.rows[t];
    row.count = plan_->tensor_granules(worker.shard, t);
    row.address = together ? next : memory.allocate(row.count * granule);
    next += row.count * granule;
  }
  // The canonical stream: tensors under 2 MiB first, then the rest.
  uint64_t place = 0;
  for (const bool small : {true, false}) {
    for (TensorRow& row : worker.rows) {
      if ((row.count * granule < (2u << 20)) != small) continue;
      row.first = place;
      place += row.count;
    }
  }
  checkers_->memory_laid_out(worker.id, worker.rows, place);
}

std::vector<ros::TensorSpec> Workload::tensors(const Worker& worker) const {
  const uint64_t granule = worker.host->memory().granule_bytes();
  std::vector<ros::TensorSpec> specs(worker.rows.size());
  for (size_t t = 0; t < specs.size(); ++t) {
    const TensorRow& row = worker.rows[t];
    ros::TensorSpec& spec = specs[t];
    spec.name = (worker.odd_layout ? "odd" : "w") + std::to_string(t);
    spec.dtype = "U8";
    spec.shape = {row.count * granule};
    spec.memory = {row.address, row.count * granule, net::Device::kHost, 0};
  }
  return specs;
}

void Workload::write_all(Worker& worker, uint64_t publication_bits) {
  Memory& memory = worker.host->memory();
  std::vector<uint64_t> tags;
  for (const TensorRow& row : worker.rows) {
    tags.resize(row.count);
    for (uint64_t i = 0; i < row.count; ++i) tags[i] = publication_bits | (row.first + i);
    memory.write(row.address, tags);
  }
}

// Its own again: nothing in it is anybody's weights any more.
void Workload::scribble(Worker& worker) {
  worker.kept = false;
  ++scribbles_;
  write_all(worker, kScribble | (scribbles_ & 0xff) << 32);
  // Half of a write, as a reader might see it.
  const TensorRow& row = worker.rows.front();
  worker.host->memory().write_torn(row.address, kScribble);
}

PublicationId Workload::publication_for(VersionId version) {
  if (plan_->habits.own_tags) return checkers_->new_publication();
  for (const auto& [known, publication] : publications_) {
    if (known == version) return publication;
  }
  publications_.emplace_back(version, checkers_->new_publication());
  return publications_.back().second;
}

}  // namespace weightlane::sim
