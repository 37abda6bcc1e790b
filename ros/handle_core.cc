// The frame of a handle: opening, the worker and its jobs, the server's events, giving memory back,
// and what follows an eviction. What each call does is in handle_calls.cc.
#include "ros/handle_core.h"

#include "ros/offload.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

constexpr Nanos kLookAtReaders =
    millis(20);                        // without a server: how often the source counts its readers
constexpr uint32_t kLandingWords = 3;  // stamp and proven of a source, and its digests' stamp

std::string handle_text(const OpenOptions& options) {
  return options.model + "/" + options.replica + "/" + std::to_string(options.shard.value);
}

}  // namespace

HandleCore::HandleCore(Environment environment, OpenOptions options)
    : environment_(environment),
      options_(std::move(options)),
      changed_(*environment.runtime),
      source_(environment, handle_text(options_)),
      session_(environment, options_.servers, options_.timing, this),
      tasks_(*environment.runtime) {}

HandleCore::~HandleCore() {
  tasks_.cancel_all();
  jobs_.clear();
  if (landing_.value != 0) environment_.data->free_words(landing_);
}

std::string HandleCore::describe() const { return handle_text(options_); }

net::OpenRequest HandleCore::open_request() const {
  net::OpenRequest open;
  open.model = options_.model;
  open.replica = options_.replica;
  open.shard = options_.shard;
  open.num_shards = options_.num_shards;
  open.node = options_.node;
  open.endpoint = source_.endpoint();
  open.spot = options_.spot;
  open.retain = options_.retain;
  open.on_offload_failure = options_.on_offload_failure;
  open.offload = options_.offload;
  open.datacenter = options_.datacenter;
  return open;
}

flow::Task<Result<Done>> HandleCore::open(Nanos deadline) {
  if (options_.servers.empty())
    co_return Error{ErrorCode::kInvalidArgument, "no reference server's address is given"};
  if (Result<Done> started = source_.start(); !started) co_return started.error();
  Result<net::RegionId> landing = environment_.data->allocate_words(kLandingWords);
  if (!landing) co_return landing.error();
  landing_ = *landing;
  Result<net::OpenedResponse> opened = co_await session_.open(open_request(), deadline);
  if (!opened) co_return opened.error();
  next_call_ = opened->next_call.value;
  this->opened(*opened, Opening::kFirst);
  state_ = HandleState::kOpen;
  tasks_.spawn(work(this), "handle.work");
  co_return Done{};
}

flow::Task<void> HandleCore::work(HandleCore* self) {
  while (true) {
    if (self->session_.ended() && self->state_ != HandleState::kPoisoned &&
        self->state_ != HandleState::kClosed) {
      co_await self->recover();
    } else if (self->surrender_) {
      co_await self->surrender();
    } else if (!self->jobs_.empty()) {
      flow::Task<void> job = std::move(self->jobs_.front());
      self->jobs_.pop_front();
      co_await std::move(job);
    } else {
      co_await self->changed_.wait();
    }
  }
}

std::optional<VersionId> HandleCore::holds() const {
  if (state_ != HandleState::kPublished || !held_.has_value()) return std::nullopt;
  return held_->content.version;
}

Progress HandleCore::progress() const {
  Progress progress;
  progress.total_bytes = layout_.has_value() ? layout_->summary().bytes : 0;
  progress.sealed_bytes = sealed_bytes();
  if (reader_ != nullptr)
    progress.source = reader_->source_name() + " (" + reader_->transport() + ")";
  else if (state_ == HandleState::kPublished)
    progress.source = last_source_;
  progress.reroutes = reroutes_;
  progress.stalled = stalled_;
  return progress;
}

std::string HandleCore::waits_for() const {
  if (call_.number.value == 0) return {};
  const int64_t ms = (runtime().now() - call_.started).count / 1'000'000;
  std::string text = describe() + ": " + net::call_kind_name(call_.kind) + " " +
                     std::to_string(call_.number.value) + " for " + std::to_string(ms) + " ms, ";
  if (!session_open()) return text + "waits for a reference server";
  if (reader_ != nullptr) return text + reader_->describe();
  if (call_.decided.has_value() || call_.assigned.has_value())
    return text + "waits for the readers of what it held";
  return text + "waits for the reference server's word";
}

// ---------------------------------------------------------------- what the server says

void HandleCore::on_event(const net::Event& event) {
  std::visit([this](const auto& body) { on(body); }, event.body);
  changed_.notify_all();
}

void HandleCore::on(const net::AssignedEvent& event) {
  if (event.number == call_.number && !call_.decided.has_value()) {
    call_.assigned = event;
  } else {
    runtime().probe(probes::kAssignedLate);
    session_.post(net::ReleaseRequest{event.assignment, net::ReleaseKind::kNeverOpened, 0, {}});
  }
}

void HandleCore::on(const net::DrainedEvent& event) {
  if (held_.has_value() && held_->number == event.number) held_->drained = true;
}

void HandleCore::on(const net::DecidedEvent& event) {
  if (event.number != call_.number) return;
  call_.decided = event;
  if (!event.ok) stop_reader(net::ReleaseKind::kAbandoned, false);
}

void HandleCore::on(const net::YieldEvent& event) {
  if (call_.assigned.has_value() && call_.assigned->assignment == event.assignment) {
    runtime().probe(probes::kYieldedUntaken);
    call_.assigned.reset();
    session_.post(net::ReleaseRequest{event.assignment, net::ReleaseKind::kNeverOpened, 0, {}});
  } else if (reader_ != nullptr && reader_->assignment() == event.assignment) {
    stop_reader(net::ReleaseKind::kNeverOpened, true);
  }
}

void HandleCore::on(const net::AbandonEvent& event) {
  if (call_.assigned.has_value() && call_.assigned->assignment == event.assignment) {
    runtime().probe(probes::kAbandonedUntaken);
    call_.assigned.reset();
    session_.post(net::ReleaseRequest{event.assignment, net::ReleaseKind::kNeverOpened, 0, {}});
  } else if (reader_ != nullptr && reader_->assignment() == event.assignment) {
    stop_reader(net::ReleaseKind::kAbandoned, false);
  }
}

void HandleCore::on(const net::OffloadEvent& event) {
  tasks_.spawn(offload(this, event), "handle.offload");
}

void HandleCore::on(const net::DropEvent& event) {
  unneeded_ = true;
  if (call_.number.value != 0)  // it is still being filled
    session_.post(net::AbortRequest{call_.number, ErrorCode::kClosed, event.reason});
}

void HandleCore::on(const net::WithdrawnEvent& event) { withdrawn_ = event; }

void HandleCore::on_rejected(const net::RequestBody& body, const net::Failure& failure) {
  const auto* call = std::get_if<net::GroupCallRequest>(&body);
  if (call == nullptr || call->number != call_.number || call_.decided.has_value()) return;
  call_.decided = net::DecidedEvent{call->number, false, {}, failure.code, failure.message};
  changed_.notify_all();
}

void HandleCore::on_session_ended() {
  if (session_.state() == ServerSession::State::kServerLost && environment_.observer != nullptr)
    environment_.observer->on_server_lost(name());
  stop_reader(net::ReleaseKind::kAbandoned, false);
  changed_.notify_all();
}

void HandleCore::stop_reader(net::ReleaseKind kind, bool only_if_unopened) {
  if (reader_ != nullptr) reader_->stop(kind, only_if_unopened);
}

// ---------------------------------------------------------------- memory

Stamp HandleCore::new_stamp() {
  if (WL_BUG(kStampReused)) return {session_.incarnation().value | 1};
  return {runtime().random() | 1};
}

void HandleCore::set_stamp(Stamp stamp, net::Content content, uint64_t proven) {
  if (environment_.observer != nullptr) environment_.observer->on_stamp(name(), stamp, content);
  if (stamp.value == 0)
    source_.withdraw();
  else
    source_.show(stamp, content, proven);
}

// The server tells when the readers have left. Those that it does not know of, because another
// server sent them, or because it knows nothing of what is held here, can only be seen.
bool HandleCore::drains() const {
  const bool told = session_open() && held_->known;
  if (told && !held_->drained) return true;
  return (!told || held_->moved) && source_.connected_readers() > 0;
}

// Returns when the memory is the application's: no READ executed from now on can be accepted by
// anyone.
flow::Task<void> HandleCore::hand_back() {
  if (!held_.has_value()) co_return;
  flow::Runtime& rt = runtime();
  held_->leaving = true;
  const Nanos deadline = WL_BUG(kDrainForever) ? kForever : deadline_after(rt.now(), drain_);
  if (!WL_BUG(kNoDrain)) {
    while (drains()) {
      Nanos until = deadline;
      const bool told = session_open() && held_->known && !held_->drained;
      if (!told) {
        rt.probe(session_open() ? probes::kForeignReaders : probes::kDrainedAlone);
        const Nanos look = rt.now() + kLookAtReaders;
        if (look < until) until = look;
      }
      const bool notified = co_await changed_.wait_until(until);
      if (!notified && rt.now() >= deadline) break;
    }
    if (source_.connected_readers() > 0 && drains()) {
      rt.probe(probes::kFenced);
      if (environment_.observer != nullptr) environment_.observer->on_fenced(name());
    }
  }
  set_stamp({}, {}, 0);
  rt.trace({"handle.handed_back", held_->number.value, held_->content.version.value,
            options_.shard.value, options_.replica});
  held_.reset();
  co_await source_.leave_memory();
  changed_.notify_all();
  if (state_ == HandleState::kPublished || state_ == HandleState::kReceiving)
    state_ = HandleState::kRegistered;
}

flow::Task<void> HandleCore::offload(HandleCore* self, net::OffloadEvent event) {
  if (self->environment_.offloads == nullptr || !self->layout_.has_value()) {
    self->session_.post(net::OffloadFailedRequest{
        event.token,
        self->describe() +
            (self->layout_.has_value() ? " keeps no offloads" : " has no tensors registered")});
    co_return;
  }
  OpenOptions open = self->options_;
  open.replica = event.replica;
  open.retain = {};
  open.offload = event.token;
  flow::Future<Result<Done>> kept =
      self->environment_.offloads->keep({std::move(open), *self->layout_, event.content});
  Result<Result<Done>> outcome = co_await kept;
  if (outcome.ok() && !outcome->ok())
    self->session_.post(net::OffloadFailedRequest{event.token, outcome->error().message});
}

flow::Task<void> HandleCore::until_unneeded() {
  while (!unneeded_ && state_ == HandleState::kPublished) co_await changed_.wait();
}

void HandleCore::let_go() {
  unneeded_ = true;
  changed_.notify_all();
}

void HandleCore::poison(Error why) {
  poison_ = std::move(why);
  state_ = HandleState::kPoisoned;
}

// No server is left to talk to: the memory is taken back, and only close() remains.
flow::Task<void> HandleCore::recover() {
  const bool superseded = session_.state() == ServerSession::State::kSuperseded;
  const std::string why = session_.why_ended();
  runtime().probe(superseded ? probes::kSuperseded : probes::kReopenFailed);
  co_await hand_back();
  if (superseded) {
    poison(Error{ErrorCode::kSuperseded,
                 describe() + ": another process has opened this shard meanwhile"});
  } else {
    poison(Error{ErrorCode::kServerLost,
                 describe() + ": " + why + "; close this handle and open again"});
  }
}

std::optional<Error> HandleCore::take_loss() {
  if (poison_.has_value()) return poison_;
  return std::exchange(loss_, std::nullopt);
}

Error HandleCore::wrong_state(const char* call) const {
  if (state_ == HandleState::kPoisoned && poison_.has_value()) return *poison_;
  std::string text = std::string(call) + ": " + describe() + " is " + handle_state_name(state_);
  if (held_.has_value() && state_ == HandleState::kPublished)
    text += " (version " + std::to_string(held_->content.version.value) + ")";
  return {ErrorCode::kWrongState, std::move(text)};
}

// ---------------------------------------------------------------- jobs

flow::Future<Result<Done>> HandleCore::register_tensors(std::vector<TensorSpec> tensors) {
  Job<Done> done(runtime());
  flow::Future<Result<Done>> future = done.future();
  enqueue(do_register(this, std::move(tensors), std::move(done)));
  return future;
}

flow::Future<Result<Done>> HandleCore::register_layout(Layout layout) {
  Job<Done> done(runtime());
  flow::Future<Result<Done>> future = done.future();
  enqueue(do_register_layout(this, std::move(layout), std::move(done)));
  return future;
}

flow::Future<Result<Done>> HandleCore::unregister_tensors() {
  Job<Done> done(runtime());
  flow::Future<Result<Done>> future = done.future();
  enqueue(do_unregister(this, std::move(done)));
  return future;
}

flow::Future<Result<Done>> HandleCore::publish(VersionId version) {
  Job<Done> done(runtime());
  flow::Future<Result<Done>> future = done.future();
  enqueue(do_publish(this, version, std::move(done)));
  return future;
}

flow::Future<Result<Done>> HandleCore::unpublish() {
  Job<Done> done(runtime());
  flow::Future<Result<Done>> future = done.future();
  enqueue(do_unpublish(this, std::move(done)));
  return future;
}

flow::Future<Result<std::optional<VersionId>>> HandleCore::receive(net::CallKind kind,
                                                                   net::VersionSpec version,
                                                                   Nanos timeout) {
  Job<std::optional<VersionId>> done(runtime());
  flow::Future<Result<std::optional<VersionId>>> future = done.future();
  enqueue(do_receive(this, kind, version, timeout, std::move(done)));
  return future;
}

void HandleCore::give_up(std::string why) {
  const bool receives =
      call_.kind == net::CallKind::kReplicate || call_.kind == net::CallKind::kUpdate;
  if (call_.number.value == 0 || !receives || call_.decided.has_value()) return;
  call_.given_up = why;  // told again where it has not been heard
  session_.post(net::AbortRequest{call_.number, ErrorCode::kReplicaLost, std::move(why)});
}

flow::Future<Result<Done>> HandleCore::close(Nanos deadline) {
  Job<Done> done(runtime());
  flow::Future<Result<Done>> future = done.future();
  enqueue(do_close(this, deadline, std::move(done)));
  return future;
}

}  // namespace weightlane::ros
