// What a worker does, step by step: the script of its replica, its own bad habits, and the memory
// that it uses the moment it is its own.
#include <algorithm>

#include "flow/combinators.h"
#include "sim/hash.h"
#include "sim/workload.h"

namespace weightlane::sim {
namespace {

// A draw that all shards of a replica share, for their call of this number.
uint64_t shared_draw(const Plan& plan, uint32_t replica, CallNumber number, uint64_t salt) {
  return mix64(mix64(plan.seed, replica * 16 + salt), number.value);
}

}  // namespace

// ---------------------------------------------------------------- what to do next

bool Workload::chance(const Worker& worker, const char* name, uint32_t per_mille) {
  if (per_mille == 0) return false;
  return world_->choices().chance(worker.stream, name, per_mille * 1000);
}

Nanos Workload::drawn_span(const Worker& worker, const char* name, Nanos most) {
  return {world_->choices().between(worker.stream, name, most.count / 16, most.count)};
}

// The first shard that comes to a publish decides its version: the next one, or what the other
// trainers published last, or now and then a number of which everybody has had enough already.
VersionId Workload::version_for(const Worker& worker, CallNumber number) {
  const uint64_t group = worker.lineage;
  VersionId own_last;
  for (const NumberedVersion& known : versions_) {
    if (known.replica != worker.replica) continue;
    if (known.group == group && known.number == number) return known.version;
    own_last = known.version;
  }
  VersionId version{highest_version_};
  const bool again = own_last.value != 0 && shared_draw(*plan_, worker.replica, number, 1) % 6 == 0;
  if (again) {
    version = own_last;
  } else if (own_last.value == highest_version_) {
    version.value = ++highest_version_;
  }
  versions_.push_back({worker.replica, group, number, version});
  return version;
}

Workload::Step Workload::next_step(Worker& worker, const ros::ShardHandle& handle) {
  const CallNumber number = handle.next_call();
  worker.lineage = handle.lineage();
  const bool holds = handle.holds().has_value();
  if (worker.role != Role::kFresh) {
    // A call that another shard of the replica is in must be made by all.
    const bool behind = checkers_->largest_call(worker.replica) >= number.value;
    if (stage_ == Stage::kSettle && worker.role == Role::kRollout && !holds) {
      const uint64_t group = worker.lineage;
      bool asked = false;
      for (const NumberedVersion& last : last_asked_) {
        asked = asked ||
                (last.replica == worker.replica && last.group == group && last.number == number);
      }
      if (!asked && !behind && asks_at_last(worker)) {
        last_asked_.push_back({worker.replica, group, number, {}});
        asked = true;
      }
      if (asked) {
        ++worker.last_tries;
        return {StepKind::kReplicate, {}, {}, false};
      }
    }
    if (stage_ != Stage::kRun && !behind && (holds || worker.role == Role::kRollout)) return {};
    if (holds && worker.finished && !behind) return {};
  }
  switch (worker.role) {
    case Role::kTrainer:
      return trainer_step(worker, number, holds);
    case Role::kRollout:
      return rollout_step(worker, number, holds);
    case Role::kFresh:
      break;
  }
  worker.fresh_done = holds;
  if (holds) return {};
  return {StepKind::kReplicate, {}, {}, false};
}

bool Workload::asks_at_last(const Worker& worker) const {
  if (worker.last_tries >= 2 || !someone_holds()) return false;
  for (const auto& other : workers_) {
    if (other->replica != worker.replica) continue;
    // Asking without a whole replica only waits for the missing member.
    if (other->lost || !other->host->alive() || other->odd_layout) return false;
  }
  return true;
}

Workload::Step Workload::trainer_step(Worker& worker, CallNumber number, bool holds) {
  if (holds) return {StepKind::kUnpublish, {}, {}, false};
  return {StepKind::kPublish, version_for(worker, number), {}, false};
}

Workload::Step Workload::rollout_step(Worker& worker, CallNumber number, bool holds) {
  const Habits& habits = plan_->habits;
  const uint64_t leave = shared_draw(*plan_, worker.replica, number, 2);
  if (holds) {
    if (leave % 1000 < habits.leave_version)
      return {StepKind::kUnpublish, {}, {}, leave / 1000 % 2 == 0};
    return {StepKind::kUpdate, {}, {}, false};
  }
  if (worker.kept) return {StepKind::kPublishAgain, worker.last, {}, false};
  Step step{StepKind::kReplicate, {}, {}, false};
  const uint64_t want = shared_draw(*plan_, worker.replica, number, 3);
  if (want % 1000 < habits.want_exact && highest_version_ > 0) {
    step.wanted.kind = net::VersionKind::kExact;
    step.wanted.exact = {1 + number.value % highest_version_};
  } else if (want / 1000 % 1000 < habits.want_back) {
    step.wanted.back = 1 + want / 1'000'000 % 2;
  }
  return step;
}

// ---------------------------------------------------------------- one life

flow::Task<void> Workload::rest(Workload*, Worker* worker, Nanos span) {
  co_await worker->stage_changed->wait_until(deadline_after(worker->host->now(), span));
}

flow::Task<void> Workload::run_worker(Workload* self, Worker* worker) {
  flow::Signal changed(*worker->host);
  worker->stage_changed = &changed;
  self->lay_out_memory(*worker);
  const ros::ServerOptions& server = self->plan_->server;
  const Nanos open_span = server.lease + server.heartbeat * 3 + self->plan_->handle.connect;
  while (self->stage_ != Stage::kClose) {
    worker->resting = Resting::kBusy;
    self->checkers_->call_began(worker->id, "open", open_span + self->bound_);
    const Nanos deadline = deadline_after(worker->host->now(), open_span);
    auto opened = co_await ros::ShardHandle::open(self->environment(*worker),
                                                  self->open_options(*worker), deadline);
    self->checkers_->call_ended(worker->id);
    if (!opened.ok()) {
      const Nanos pause = self->drawn_span(*worker, "work.reopen", self->plan_->habits.think);
      co_await rest(self, worker, pause);
      continue;
    }
    std::unique_ptr<ros::ShardHandle> handle = std::move(opened).value();
    worker->handle = handle.get();
    co_await run_handle(self, worker, handle.get());
    worker->handle = nullptr;
    const bool spot = (self->plan_->spot >> worker->replica & 1) != 0;
    const bool noticed = self->chance(*worker, "work.notice", spot ? 500 : 100);
    co_await close_handle(self, worker, handle.get(), noticed);
    if (noticed) co_await hand_over(self, worker);
  }
  worker->resting = Resting::kClosed;
  co_await changed.wait();
}

flow::Task<void> Workload::run_handle(Workload* self, Worker* worker, ros::ShardHandle* handle) {
  const Habits& habits = self->plan_->habits;
  worker->odd_layout = worker->role == Role::kRollout && self->stage_ == Stage::kRun &&
                       self->chance(*worker, "work.other_layout", habits.other_layout);
  const Result<Done> registered = co_await handle->register_tensors(self->tensors(*worker));
  if (!registered.ok()) {
    const Nanos pause = self->drawn_span(*worker, "work.register_again", habits.think);
    co_await rest(self, worker, pause);
    co_return;
  }
  uint32_t failures = 0;
  while (self->stage_ != Stage::kClose && handle->state() != ros::HandleState::kPoisoned) {
    if (self->stage_ == Stage::kRun) {
      const bool trains = worker->role == Role::kTrainer;
      const Nanos most = !trains ? habits.think : handle->holds() ? habits.hold : habits.train;
      const Nanos pause = self->drawn_span(*worker, "work.think", most);
      co_await rest(self, worker, pause);
      const bool leave = co_await misbehave(self, worker, handle);
      if (leave) co_return;
      if (self->stage_ == Stage::kClose) co_return;
    }
    const Step step = self->next_step(*worker, *handle);
    if (step.kind == StepKind::kRest) {
      if (self->stage_ != Stage::kRun) worker->resting = Resting::kSettled;
      co_await rest(self, worker, self->stage_ == Stage::kRun ? habits.hold : kForever);
      if (worker->resting == Resting::kSettled) worker->resting = Resting::kBusy;
      continue;
    }
    worker->resting = Resting::kBusy;
    co_await make_call(self, worker, handle, step);
    // An odd layout is no use; and what fails again and again is opened anew.
    failures = handle->holds().has_value() || step.kind == StepKind::kUnpublish ? 0 : failures + 1;
    if (worker->odd_layout || (failures > 20 && worker->role == Role::kRollout)) co_return;
  }
}

flow::Task<void> Workload::close_handle(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                        bool noticed) {
  Result<Done> closed = Error{ErrorCode::kRetained, {}};
  if (!noticed) {
    self->checkers_->call_began(worker->id, "close", self->bound_);
    closed = co_await handle->close();
    self->checkers_->call_ended(worker->id);
  }
  if (!closed.ok() && closed.error().code == ErrorCode::kRetained) {
    // It goes anyway, but not at once.
    const Nanos span = self->drawn_span(*worker, "work.notice_span", seconds(4));
    self->checkers_->notice_given(worker->id);
    self->checkers_->call_began(worker->id, "close", self->bound_ + span);
    closed = co_await handle->close(deadline_after(worker->host->now(), span));
    self->checkers_->call_ended(worker->id);
  }
  self->checkers_->handle_gone(worker->id);
  if (closed.ok()) {
    self->scribble(*worker);
    co_return;
  }
  // Poisoned: this memory must never be used again, so the worker goes on in other memory.
  worker->kept = false;
  self->lay_out_memory(*worker);
}

// ---------------------------------------------------------------- calls

flow::Task<void> Workload::make_call(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                     Step step) {
  const Habits& habits = self->plan_->habits;
  if (self->stage_ == Stage::kRun && worker->role != Role::kFresh) {
    const bool silent = self->chance(*worker, "work.silent", habits.silent);
    if (silent) co_await rest(self, worker, self->plan_->server.missing_member * 5 / 4);
    const bool odd = self->chance(*worker, "work.mismatch", habits.mismatch);
    if (odd && step.kind == StepKind::kReplicate) {
      step.wanted = {net::VersionKind::kExact, {self->highest_version_ + 100}, 0};
    } else if (odd && step.kind == StepKind::kUpdate) {
      step = {StepKind::kUnpublish, {}, {}, false};
    }
  }
  if (self->stage_ == Stage::kClose) co_return;
  if (self->stage_ == Stage::kSettle) self->nudge(worker->replica);
  switch (step.kind) {
    case StepKind::kPublish:
    case StepKind::kPublishAgain:
      co_await publish(self, worker, handle, step);
      break;
    case StepKind::kUnpublish:
      co_await unpublish(self, worker, handle, step);
      break;
    case StepKind::kReplicate:
    case StepKind::kUpdate:
      co_await receive(self, worker, handle, step);
      break;
    case StepKind::kRest:
      break;
  }
}

flow::Task<void> Workload::publish(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                   Step step) {
  PublicationId publication;
  if (step.kind == StepKind::kPublish) {
    publication = self->publication_for(step.version);
    self->write_all(*worker, make_tag(publication, worker->shard, 0));
  }
  worker->kept = false;
  self->checkers_->will_publish(worker->id, publication, step.version);
  self->checkers_->call_began(worker->id, "publish", self->bound_);
  const Result<Done> published = co_await handle->publish(step.version);
  self->checkers_->call_ended(worker->id);
  if (!published.ok()) {
    if (handle->state() == ros::HandleState::kRegistered) self->scribble(*worker);
    co_return;
  }
  worker->last = step.version;
  if (worker->role != Role::kTrainer) co_return;
  ++worker->published;
  if (worker->published < self->plan_->habits.rounds || worker->finished) co_return;
  worker->finished = true;
  self->note_trainers();
}

flow::Task<void> Workload::unpublish(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                     Step step) {
  const VersionId held = handle->holds().value_or(VersionId{});
  self->checkers_->call_began(worker->id, "unpublish", self->hand_back_bound_);
  const Result<Done> handed_back = co_await handle->unpublish();
  self->checkers_->call_ended(worker->id);
  if (handle->state() == ros::HandleState::kPoisoned) co_return;
  if (handed_back.ok() && step.keep) {
    worker->kept = true;
    worker->last = held;
    co_return;
  }
  if (!handle->holds().has_value()) self->scribble(*worker);
}

// True: the call has succeeded and says that it holds a version.
flow::Task<bool> Workload::receive_once(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                        Step step, Nanos patience) {
  if (step.kind == StepKind::kReplicate) {
    const Result<VersionId> version = co_await handle->replicate(step.wanted, patience);
    if (version.ok() && step.wanted.kind == net::VersionKind::kExact)
      self->checkers_->asked_and_got(worker->id, step.wanted.exact, *version);
    co_return version.ok() && handle->holds() == *version;
  }
  const Result<std::optional<VersionId>> version = co_await handle->update(step.wanted, patience);
  co_return version.ok() && (!version->has_value() || handle->holds() == **version);
}

flow::Task<void> Workload::receive(Workload* self, Worker* worker, ros::ShardHandle* handle,
                                   Step step) {
  const bool fresh = worker->role == Role::kFresh;
  const Nanos patience = fresh ? self->bound_ : self->plan_->habits.patience;
  const Nanos bound = self->bound_ + patience + self->plan_->server.missing_member;
  const bool update = step.kind == StepKind::kUpdate;
  worker->kept = false;
  worker->wants_latest = step.wanted == net::VersionSpec{};
  worker->latest_since = self->world_->now();
  const Generation generation = self->checkers_->retention().generation();
  const uint64_t epoch = self->checkers_->epoch();
  self->checkers_->call_began(worker->id, update ? "update" : "replicate", bound);
  const bool drops = self->stage_ == Stage::kRun && !fresh &&
                     self->chance(*worker, "work.drop_call", self->plan_->habits.drop_call);
  if (drops) {
    const Nanos span = self->drawn_span(*worker, "work.drop_after", millis(200));
    const Nanos deadline = deadline_after(worker->host->now(), span);
    co_await flow::with_timeout(*worker->host, deadline,
                                receive_once(self, worker, handle, step, patience));
    // Only detached: the memory is not ours before the call has ended. The next call waits for it;
    // this one changes nothing, because the tensors are registered.
    const Result<Done> queued = co_await handle->register_tensors({});
    if (queued.ok()) self->checkers_->wrong_state_allowed(worker->id, "ok");
  } else {
    const bool succeeded = co_await receive_once(self, worker, handle, step, patience);
    if (succeeded) self->checkers_->receive_succeeded(worker->id);
    if (succeeded && !update && worker->wants_latest)
      self->checkers_->latest_received(worker->id, generation, epoch);
  }
  worker->wants_latest = false;
  self->checkers_->call_ended(worker->id);
  const ros::HandleState state = handle->state();
  if (state == ros::HandleState::kRegistered) self->scribble(*worker);
  if (state == ros::HandleState::kPublished) worker->last = handle->holds().value_or(VersionId{});
}

flow::Task<void> Workload::list_once(Workload* self, Worker* worker) {
  const Nanos deadline = deadline_after(worker->host->now(), self->plan_->handle.rpc_attempt);
  self->checkers_->call_began(worker->id, "list", self->plan_->handle.rpc_attempt + seconds(2));
  const auto listed = co_await ros::list_replicas(self->environment(*worker),
                                                  self->servers_.front().address, "", deadline);
  self->checkers_->call_ended(worker->id);
  (void)listed;  // the server may be away: any answer is a good one
}

flow::Task<void> Workload::wait_once(Workload* self, Worker* worker) {
  const Nanos patience = self->plan_->handle.rpc_attempt;
  self->checkers_->call_began(worker->id, "wait", patience + seconds(2));
  const Result<net::Content> there = co_await ros::wait_for_version(
      self->environment(*worker), self->servers_.front().address, kModel, {}, patience);
  self->checkers_->call_ended(worker->id);
  (void)there;  // any answer is a good one, in time
}

flow::Task<void> Workload::hand_over(Workload* self, Worker* worker) {
  const Nanos span = self->drawn_span(*worker, "work.hand_over", seconds(4));
  self->checkers_->call_began(worker->id, "hand over", span + self->bound_);
  co_await worker->offloads->close(deadline_after(worker->host->now(), span));
  self->checkers_->call_ended(worker->id);
  const uint64_t left = self->checkers_->retention().bytes(worker->host->id());
  if (left != 0 && !self->checkers_->retention().poisoned(worker->host->id()))
    self->checkers_->violate("P11", worker->host->place().name + " has handed over, and keeps " +
                                        std::to_string(left) + " bytes");
}

// A trainer goes back: what it publishes next has a lower number.
flow::Task<void> Workload::rewind_once(Workload* self, Worker* worker) {
  const Generation expected = self->checkers_->retention().generation();
  const Nanos patience = self->plan_->handle.rpc_attempt;
  self->checkers_->call_began(worker->id, "rewind", patience + seconds(2));
  const Result<Generation> next = co_await ros::rewind_model(
      self->environment(*worker), self->servers_.front().address, kModel, expected, patience);
  self->checkers_->call_ended(worker->id);
  if (!next.ok()) co_return;
  if (*next != Generation{expected.value + 1})
    self->checkers_->violate("P10", "a rewind of generation " + std::to_string(expected.value) +
                                        " gave generation " + std::to_string(next->value));
  self->highest_version_ -= std::min<uint64_t>(self->highest_version_ / 2, 2);
}

flow::Task<bool> Workload::misbehave(Workload* self, Worker* worker, ros::ShardHandle* handle) {
  const Habits& habits = self->plan_->habits;
  if (self->stage_ != Stage::kRun) co_return false;
  const bool lists = self->chance(*worker, "work.list", habits.list);
  if (lists) co_await list_once(self, worker);
  const bool waits = self->chance(*worker, "work.wait", habits.wait);
  if (waits) co_await wait_once(self, worker);
  const bool rewinds = worker->role == Role::kTrainer && worker->shard == 0 &&
                       self->chance(*worker, "work.rewind", habits.rewind);
  if (rewinds) co_await rewind_once(self, worker);
  const bool wrong = self->chance(*worker, "work.wrong_state", habits.wrong_state);
  if (wrong) {
    const std::optional<VersionId> held = handle->holds();
    const Result<Done> refused =
        held.has_value() ? co_await handle->publish({1}) : co_await handle->unpublish();
    if (!refused.ok()) self->checkers_->told_of_loss(worker->id);
    // A loss that nobody has been told of yet is told first.
    const bool told = !refused.ok() && (refused.error().code == ErrorCode::kWrongState ||
                                        refused.error().code == ErrorCode::kReplicaLost ||
                                        handle->state() == ros::HandleState::kPoisoned);
    if (!told) {
      self->checkers_->wrong_state_allowed(
          worker->id, refused.ok() ? "ok" : error_code_name(refused.error().code));
    }
    if (held.has_value() && !handle->holds().has_value()) self->scribble(*worker);
  }
  if (worker->role == Role::kTrainer) co_return false;
  const bool registers = self->chance(*worker, "work.unregister", habits.unregister);
  if (registers && handle->state() == ros::HandleState::kRegistered) {
    const Result<Done> gone = co_await handle->unregister_tensors();
    if (!gone.ok()) co_return true;
    self->scribble(*worker);
    const Result<Done> back = co_await handle->register_tensors(self->tensors(*worker));
    if (!back.ok()) co_return true;
  }
  const bool spot = (self->plan_->spot >> worker->replica & 1) != 0;
  const bool noticed = spot && self->chance(*worker, "work.preempted", habits.notice);
  const bool closes = self->chance(*worker, "work.close", habits.close);
  co_return noticed || closes;
}

}  // namespace weightlane::sim
