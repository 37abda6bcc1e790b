// A small simulated cluster for scenario tests: a reference server and shards of replicas, each on
// a host of its own unless said otherwise, all checkers on. Tests write the application.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ros/offload.h"
#include "ros/server.h"
#include "ros/shard_handle.h"
#include "sim/checkers.h"
#include "sim/data_plane.h"
#include "sim/host_memory.h"
#include "sim/plan.h"
#include "sim/world.h"

namespace weightlane::sim {

class Cluster;

// One shard as a test drives it. Its process's memory and handle go with the process.
struct Member {
  Cluster* cluster = nullptr;
  WorkerId worker;
  std::string replica;
  uint32_t index = 0;  // of the replica
  uint32_t shard = 0;
  Host* host = nullptr;
  TensorRow row;                                        // one tensor
  std::unique_ptr<ros::ShardHandle>* handle = nullptr;  // in the frame of its life; null: not open
  std::optional<ErrorCode> error;                       // of the last call
  std::string message;                                  // of that error
  std::optional<VersionId> got;  // by the last replicate or update that succeeded
  uint32_t finished = 0;         // scripts run to the end
};

class Cluster final {
 public:
  // What a process does once its handle is open and its tensors are registered.
  using Script = flow::Task<void> (*)(Member* member);

  explicit Cluster(Plan plan, uint64_t seed = 1)
      : plan_(std::move(plan)),
        choices_(seed),
        world_(plan_.world, choices_),
        checkers_(world_, plan_) {
    HostPlace place;
    place.name = "server";
    server_ = &world_.add_host(place);
    checkers_.add_server(server_->id(), server_->address(7000));
    server_->start(serve(this), "server");
  }
  ~Cluster() {
    for (uint32_t h = 1; h < world_.host_count(); ++h)
      world_.host({h}).crash(CrashKind::kMemoryFirst);
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // A plan for tests: no fault, one tensor of so many granules in every shard, FIFO.
  static Plan quiet_plan(uint32_t shards, uint32_t granules) {
    Plan plan;
    plan.shards = shards;
    plan.tensors = 1;
    plan.granules[0] = granules;
    plan.handle.slice_bytes = plan.world.data.granule_bytes;
    plan.handle.window_bytes = 4 * plan.world.data.granule_bytes;
    plan.handle.window_start_bytes = plan.handle.window_bytes;
    plan.world.bandwidth.nic_tx = plan.world.bandwidth.nic_rx =
        64u << 20;  // a granule takes a millisecond
    return plan;
  }

  // A replica whose shards run `script`; from `host` on, or on new hosts.
  std::vector<Member*> add_replica(const std::string& name, Script script, Host* shared = nullptr) {
    const auto index = static_cast<uint32_t>(replicas_++);
    std::vector<Member*> members;
    for (uint32_t shard = 0; shard < plan_.shards; ++shard) {
      Host* host = shared;
      if (host == nullptr) {
        HostPlace place;
        place.name = name + "-" + std::to_string(shard);
        host = &world_.add_host(place);
      }
      auto member = std::make_unique<Member>();
      member->cluster = this;
      member->worker = checkers_.add_worker(host->id(), index, shard, name);
      member->replica = name;
      member->index = index;
      member->shard = shard;
      member->host = host;
      members.push_back(member.get());
      members_.push_back(std::move(member));
      start(members.back(), script);
    }
    return members;
  }
  // Begins a life, or adds to one that is under way.
  void start(Member* member, Script script, bool reuse = false) {
    if (member->host->alive()) {
      member->host->spawn(live(member, script), "member");
    } else {
      member->host->start(live(member, script), "member", reuse);
    }
  }

  // Writes tensors that belong to one publication, and publishes them.
  static flow::Task<void> publish(Member* member, VersionId version) {
    Cluster* self = member->cluster;
    const PublicationId publication = self->checkers_.new_publication();
    self->write(member, make_tag(publication, member->shard, 0));
    self->checkers_.will_publish(member->worker, publication, version);
    const Result<Done> result = co_await (*member->handle)->publish(version);
    note(member, result);
  }
  static flow::Task<void> unpublish(Member* member) {
    const Result<Done> result = co_await (*member->handle)->unpublish();
    note(member, result);
    if (!(*member->handle)->holds()) member->cluster->write(member, kScribble);
  }
  static flow::Task<void> close(Member* member, Nanos deadline = kForever) {
    const Result<Done> result = co_await (*member->handle)->close(deadline);
    note(member, result);
    if (result.ok()) member->cluster->write(member, kScribble);
  }
  static flow::Task<void> replicate(Member* member, net::VersionSpec version, Nanos timeout) {
    const Result<VersionId> result = co_await (*member->handle)->replicate(version, timeout);
    note(member, result);
    if (result.ok()) member->got = *result;
  }

  // Runs until `done`; false: it took longer than `span` of virtual time.
  bool run(Nanos span, const std::function<bool()>& done) {
    return world_.run_until(world_.now() + span, 50'000'000, done) == StopReason::kPredicate;
  }
  bool run_until_finished(const std::vector<Member*>& members, Nanos span) {
    return run(span, [&members] {
      for (const Member* member : members) {
        if (member->finished == 0) return false;
      }
      return true;
    });
  }

  World& world() { return world_; }
  Checkers& checkers() { return checkers_; }
  Host& server() { return *server_; }
  Plan& plan() { return plan_; }
  std::string violation() const {
    return checkers_.violation()
               ? checkers_.violation()->promise + ": " + checkers_.violation()->text
               : "";
  }
  uint64_t hits(const flow::ProbePoint& probe) {
    const std::vector<uint32_t>& hits = world_.probe_hits();
    return probe.id < hits.size() ? hits[probe.id] : 0;
  }

 private:
  template <typename T>
  static void note(Member* member, const Result<T>& result) {
    member->error.reset();
    if (!result.ok()) member->error = result.error().code;
    if (!result.ok()) member->message = result.error().message;
  }
  void write(Member* member, uint64_t bits) {
    std::vector<uint64_t> tags(member->row.count);
    for (uint64_t i = 0; i < tags.size(); ++i) tags[i] = bits | i;
    member->host->memory().write(member->row.address, tags);
  }
  static flow::Task<void> serve(Cluster* self) {
    auto server =
        ros::Server::start(self->server_, &self->server_->control(), self->server_->address(7000),
                           self->plan_.server, self->checkers_.watch_server(0));
    WL_ASSERT(server.ok());
    self->checkers_.server_started(0, &(*server)->directory());
    co_await self->server_->sleep_until(kForever);
  }
  static flow::Task<void> live(Member* member, Script script) {
    Cluster* self = member->cluster;
    Host* host = member->host;
    const uint64_t granule = host->memory().granule_bytes();
    member->row = {0, 0, self->plan_.shard_granules(member->shard)};
    member->row.address = host->memory().allocate(member->row.count * granule);
    self->checkers_.memory_laid_out(member->worker, {member->row}, member->row.count);
    ros::OpenOptions options;
    options.model = kModel;
    options.replica = member->replica;
    options.shard = {member->shard};
    options.num_shards = self->plan_.shards;
    options.node = host->place().name;
    options.servers = {self->server_->address(7000)};
    options.timing = self->plan_.handle;
    options.spot = self->plan_.is_spot(member->index);
    if (member->replica.front() == 't') options.retain.latest = self->plan_.retain_latest;
    if (self->plan_.offload_drop != 0) options.on_offload_failure = net::OffloadFailure::kDrop;
    SimHostMemory memory(host);
    ros::OffloadOptions limits;
    limits.limit_bytes = self->plan_.offload_limit;
    ros::OffloadStore offloads(
        {host, &host->control(), &host->data(), self->checkers_.retention().watch(host->id())},
        &memory, limits);
    ros::Environment environment{host, &host->control(), &host->data(),
                                 self->checkers_.watch(member->worker), &offloads};
    auto opened = co_await ros::ShardHandle::open(environment, options,
                                                  deadline_after(host->now(), seconds(60)));
    WL_ASSERT(opened.ok());
    std::unique_ptr<ros::ShardHandle> handle = std::move(opened).value();
    std::vector<ros::TensorSpec> tensors(1);
    tensors[0] = {"w",
                  "U8",
                  {member->row.count * granule},
                  {member->row.address, member->row.count * granule, net::Device::kHost, 0}};
    const Result<Done> registered = co_await handle->register_tensors(std::move(tensors));
    WL_ASSERT(registered.ok());
    member->handle = &handle;
    co_await script(member);
    ++member->finished;
    co_await host->sleep_until(kForever);
  }

  Plan plan_;
  ChoiceSource choices_;
  World world_;
  Checkers checkers_;
  Host* server_ = nullptr;
  uint32_t replicas_ = 0;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace weightlane::sim
