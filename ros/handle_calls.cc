// The jobs of a HandleCore: what each call of a ShardHandle does, from its check of the state to
// its answer.
#include <algorithm>

#include "ros/handle_core.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

// How long close() tries to tell the server; the lease does it otherwise.
constexpr Nanos kCloseFlush = seconds(3);
// A close with a deadline that was refused asks again after so long: somebody may have got a copy.
constexpr Nanos kAskAgain = seconds(1);

}  // namespace

// ---------------------------------------------------------------- register

flow::Task<void> HandleCore::do_register(HandleCore* self, std::vector<TensorSpec> tensors,
                                         Job<Done> done) {
  if (self->state_ != HandleState::kOpen) {
    done.set(self->wrong_state("register"));
    co_return;
  }
  Result<Layout> layout = Layout::build(tensors, self->options_.timing.slice_bytes);
  if (!layout) {
    done.set(layout.error());
    co_return;
  }
  Result<Done> registered = co_await self->register_now(std::move(layout).value());
  done.set(std::move(registered));
}

flow::Task<void> HandleCore::do_register_layout(HandleCore* self, Layout layout, Job<Done> done) {
  WL_ASSERT(self->state_ == HandleState::kOpen || self->state_ == HandleState::kPoisoned);
  if (self->state_ != HandleState::kOpen) {
    done.set(self->wrong_state("register"));
    co_return;
  }
  Result<Done> registered = co_await self->register_now(std::move(layout));
  done.set(std::move(registered));
}

flow::Task<Result<Done>> HandleCore::register_now(Layout layout) {
  layout_ = std::move(layout);
  for (size_t i = 0; i < layout_->ranges().size(); ++i) {
    const net::MemoryRange range = layout_->ranges()[i];
    Result<net::RegionId> region = co_await environment_.data->register_memory(range);
    if (!region) {
      const Error why = region.error();
      Result<Done> undone = co_await deregister_now();
      WL_ASSERT(undone.ok());
      co_return why;
    }
    regions_.push_back(*region);
    registered_bytes_ += range.length;
  }
  Result<Done> served = source_.set_layout(&*layout_, regions_, options_.timing.checksums);
  if (!served) {
    const Error why = served.error();
    Result<Done> undone = co_await deregister_now();
    WL_ASSERT(undone.ok());
    co_return why;
  }
  if (environment_.observer != nullptr)
    environment_.observer->on_registered_bytes(name(), registered_bytes_);
  if (state_ == HandleState::kOpen) state_ = HandleState::kRegistered;
  co_return Done{};
}

flow::Task<Result<Done>> HandleCore::deregister_now() {
  source_.clear_layout();
  while (!regions_.empty()) {
    const net::RegionId region = regions_.back();
    regions_.pop_back();
    if (WL_BUG(kRegionLeaked) && regions_.empty()) break;
    co_await environment_.data->deregister(region);
  }
  registered_bytes_ = 0;
  layout_.reset();
  if (environment_.observer != nullptr) environment_.observer->on_registered_bytes(name(), 0);
  co_return Done{};
}

flow::Task<void> HandleCore::do_unregister(HandleCore* self, Job<Done> done) {
  co_await self->session_.settled();
  Result<Done> result = Done{};
  if (self->state_ == HandleState::kPublished)
    result = co_await self->unpublish_now();
  else if (self->state_ != HandleState::kRegistered)
    result = self->wrong_state("unregister");
  if (self->layout_.has_value() && self->state_ == HandleState::kRegistered) {
    Result<Done> undone = co_await self->deregister_now();
    WL_ASSERT(undone.ok());
    self->state_ = HandleState::kOpen;
  }
  done.set(std::move(result));
}

// ---------------------------------------------------------------- numbered calls

void HandleCore::start_call(net::CallKind kind, net::VersionSpec version, Nanos timeout) {
  call_ = {};
  call_.number = {next_call_++};
  call_.kind = kind;
  call_.started = runtime().now();
  call_.request = {call_.number, kind, version, timeout, {}};
  if (kind != net::CallKind::kUnpublish) call_.request.layout = layout_->summary();
  if (environment_.observer != nullptr)
    environment_.observer->on_call_started(name(), call_.number, kind);
  session_.post(call_.request);
}

void HandleCore::end_call(bool ok, ErrorCode code, net::Content content) {
  const Nanos elapsed = runtime().now() - call_.started;
  runtime().trace({"handle.call_ended", call_.number.value, ok ? 1u : 0u, content.version.value,
                   options_.replica});
  if (environment_.observer != nullptr)
    environment_.observer->on_call_ended(name(), call_.number, call_.kind, ok, code, content,
                                         elapsed);
  remember(ok, code, content);
  call_ = {};
}

flow::Task<void> HandleCore::wait_for_server(bool wake_for_assignment) {
  while (!session_.ended() && !call_.decided.has_value() &&
         !(wake_for_assignment && call_.assigned.has_value())) {
    const Nanos heard = std::max(session_.last_answer(), call_.started);
    const Nanos lost_at = deadline_after(heard, options_.timing.server_lost);
    if (runtime().now() >= lost_at) session_.give_up();
    if (!session_.ended()) co_await changed_.wait_until(lost_at);
  }
}

flow::Task<void> HandleCore::do_publish(HandleCore* self, VersionId version, Job<Done> done) {
  co_await self->session_.settled();
  if (std::optional<Error> loss = self->take_loss()) {
    done.set(*loss);
    co_return;
  }
  if (self->state_ != HandleState::kRegistered) {
    done.set(self->wrong_state("publish"));
    co_return;
  }
  // Valid before the server can send readers here, which may be before its answer comes.
  net::VersionSpec exact{net::VersionKind::kExact, version, 0};
  self->held_ = Held{};
  self->held_->number = {self->next_call_};
  self->held_->content = net::Content{{}, version, {}};
  self->held_->whole = true;
  self->state_ = HandleState::kPublished;
  const Stamp stamp = self->new_stamp();
  self->set_stamp(stamp, self->held_->content, self->layout_->summary().bytes);
  self->start_call(net::CallKind::kPublish, exact, kZeroNanos);
  co_await self->wait_for_server(false);
  if (self->call_.decided.has_value() && self->call_.decided->ok) {
    self->held_->content = self->call_.decided->content;
    self->source_.set_content(self->held_->content);
    if (self->environment_.observer != nullptr)
      self->environment_.observer->on_proven(self->name(), stamp, self->held_->content,
                                             self->source_.proven());
    self->source_.compute_digests();
    self->end_call(true, ErrorCode::kInvalidArgument, self->held_->content);
    done.set(Done{});
    co_return;
  }
  Error why{ErrorCode::kServerLost, {}};
  if (self->call_.decided.has_value()) {
    why = Error{self->call_.decided->code, self->call_.decided->message};
    self->held_->drained = true;  // a refused publish was never shown: nobody was sent here
    co_await self->hand_back();
  } else {
    co_await self->recover();
    if (std::optional<Error> loss = self->take_loss()) why = *loss;
  }
  self->end_call(false, why.code, {});
  done.set(why);
}

flow::Task<void> HandleCore::do_unpublish(HandleCore* self, Job<Done> done) {
  co_await self->session_.settled();
  if (std::optional<Error> loss = self->take_loss()) {
    done.set(*loss);
    co_return;
  }
  if (self->state_ != HandleState::kPublished) {
    done.set(self->wrong_state("unpublish"));
    co_return;
  }
  Result<Done> result = co_await self->unpublish_now();
  done.set(std::move(result));
}

flow::Task<Result<Done>> HandleCore::unpublish_now() {
  start_call(net::CallKind::kUnpublish, {}, kZeroNanos);
  co_await wait_for_server(false);
  if (call_.decided.has_value()) {
    const net::DecidedEvent decided = *call_.decided;
    if (!decided.kept) co_await hand_back();
    end_call(decided.ok, decided.code, {});
    if (decided.ok) co_return Done{};
    co_return Error{decided.code, decided.message};
  }
  co_await recover();
  Error why{ErrorCode::kServerLost, {}};
  if (std::optional<Error> loss = take_loss()) why = *loss;
  end_call(false, why.code, {});
  co_return why;
}

flow::Task<void> HandleCore::do_receive(HandleCore* self, net::CallKind kind,
                                        net::VersionSpec version, Nanos timeout,
                                        Job<std::optional<VersionId>> done) {
  co_await self->session_.settled();
  if (std::optional<Error> loss = self->take_loss()) {
    done.set(*loss);
    co_return;
  }
  const bool update = kind == net::CallKind::kUpdate;
  if (self->state_ != HandleState::kRegistered &&
      !(update && self->state_ == HandleState::kPublished)) {
    done.set(self->wrong_state(net::call_kind_name(kind)));
    co_return;
  }
  Result<std::optional<VersionId>> result = co_await self->receive_now(kind, version, timeout);
  done.set(std::move(result));
}

flow::Task<Result<std::optional<VersionId>>> HandleCore::receive_now(net::CallKind kind,
                                                                     net::VersionSpec version,
                                                                     Nanos timeout) {
  start_call(kind, version, timeout);
  last_source_.clear();
  reroutes_ = 0;
  stalled_ = kZeroNanos;
  std::optional<Nanos> memory_unusable_since;
  while (true) {
    co_await wait_for_server(true);
    if (call_.decided.has_value() || session_.ended()) break;
    const net::AssignedEvent assigned = *std::exchange(call_.assigned, std::nullopt);
    if (!memory_unusable_since.has_value()) memory_unusable_since = runtime().now();
    co_await take_up(assigned);
  }
  if (call_.assigned
          .has_value()) {  // decided while it waited: its source must hear that nobody comes
    const AssignmentId unused = std::exchange(call_.assigned, std::nullopt)->assignment;
    session_.post(net::ReleaseRequest{unused, net::ReleaseKind::kNeverOpened, 0, {}});
  }
  if (memory_unusable_since.has_value()) stalled_ = runtime().now() - *memory_unusable_since;
  if (!call_.decided.has_value()) {
    co_await recover();
    Error why{ErrorCode::kServerLost, {}};
    if (std::optional<Error> loss = take_loss()) why = *loss;
    end_call(false, why.code, {});
    co_return why;
  }
  const net::DecidedEvent decided = *call_.decided;
  if (decided.kept) {
    end_call(false, decided.code, {});
    co_return Error{decided.code, decided.message};
  }
  if (!decided.ok) {
    co_await hand_back();
    if (poison_.has_value()) {  // this shard's own memory is what was lost
      poison(Error{*poison_});
      end_call(false, poison_->code, {});
      co_return *poison_;
    }
    end_call(false, decided.code, {});
    co_return Error{decided.code, decided.message};
  }
  if (decided.content.id.value == 0) {  // nothing newer
    end_call(true, ErrorCode::kInvalidArgument, {});
    co_return std::optional<VersionId>{};
  }
  if (!held_.has_value() || !held_->whole || held_->content != decided.content) {
    // A server that says so of a shard that has not sealed it is mistaken.
    session_.post(net::AbortRequest{call_.number, ErrorCode::kReplicaLost, "not sealed here"});
    co_await hand_back();
    const Error lost{ErrorCode::kReplicaLost, describe() + ": decided, but not sealed here"};
    end_call(false, lost.code, {});
    co_return lost;
  }
  state_ = HandleState::kPublished;
  rewound_ = decided.rewound;
  end_call(true, ErrorCode::kInvalidArgument, decided.content);
  co_return std::optional<VersionId>{decided.content.version};
}

// One assignment, to its Release.
flow::Task<void> HandleCore::take_up(net::AssignedEvent assigned) {
  flow::Runtime& rt = runtime();
  call_.begun = true;
  if (held_.has_value() && held_->number != call_.number) {
    // An update's own old version. While its readers leave, the new source may be withdrawn: it
    // waits in call_.assigned.
    call_.assigned = assigned;
    co_await hand_back();
    if (!call_.assigned.has_value() || call_.decided.has_value()) co_return;
    assigned = *std::exchange(call_.assigned, std::nullopt);
  }
  if (session_.ended()) co_return;
  if (held_.has_value())
    ++reroutes_;
  else
    begin_receiving(assigned);
  if (receiving_.content != assigned.content && !WL_BUG(kResumeOther)) {
    rt.probe(probes::kOtherContent);
    session_.post(net::AbortRequest{call_.number, ErrorCode::kVersionUnavailable,
                                    "re-routed to another content"});
    session_.post(net::ReleaseRequest{assigned.assignment, net::ReleaseKind::kNeverOpened, 0, {}});
    co_return;
  }

  Reader reader({environment_, name(), &options_.timing, &*layout_, &regions_, &receiving_,
                 &source_, landing_, &changed_},
                assigned);
  rt.trace({"handle.reading", assigned.assignment.value, assigned.content.version.value,
            options_.shard.value, options_.replica});
  reader_ = &reader;
  ReadOutcome outcome = co_await reader.run();
  reader_ = nullptr;
  if (!reader.transport().empty())
    last_source_ = reader.source_name() + " (" + reader.transport() + ")";
  rt.trace({"handle.read", assigned.assignment.value, static_cast<uint64_t>(outcome.kind),
            receiving_.sealed_bytes, options_.replica});
  if (outcome.kind == net::ReleaseKind::kPoisoned)
    poison_ = Error{
        ErrorCode::kDestinationPoisoned,
        describe() + ": " + outcome.reason + "; its memory must not be used, restart the process"};
  if (outcome.kind == net::ReleaseKind::kComplete) held_->whole = true;
  if (outcome.corrupt)
    session_.post(net::AbortRequest{call_.number, ErrorCode::kCorrupt, outcome.reason});
  session_.post(net::ReleaseRequest{assigned.assignment, outcome.kind, receiving_.sealed_bytes,
                                    outcome.reason});
}

void HandleCore::begin_receiving(const net::AssignedEvent& assigned) {
  receiving_ = {};
  receiving_.content = assigned.content;
  if (options_.timing.checksums) receiving_.checksums.resize(layout_->slices().size());
  held_ = Held{};
  held_->number = call_.number;
  held_->content = assigned.content;
  held_->receiving = true;
  state_ = HandleState::kReceiving;
  const Stamp stamp = new_stamp();
  set_stamp(stamp, assigned.content, 0);
}

// ---------------------------------------------------------------- close

// The replica is not whole without this shard: the server hides it and sends readers elsewhere,
// then tells of the drain; but first it sees to what is retained. At the deadline it is told, not
// asked.
flow::Task<Result<Done>> HandleCore::ask_to_withdraw(Nanos deadline) {
  flow::Runtime& rt = runtime();
  while (true) {
    withdrawn_.reset();
    if (WL_BUG(kCloseUnasked)) break;
    session_.post(net::WithdrawRequest{held_->number});
    bool late = false;
    while (session_open() && !withdrawn_.has_value() && !late) {
      const bool notified = co_await changed_.wait_until(deadline);
      late = !notified && rt.now() >= deadline;
    }
    if (!session_open()) co_return Done{};
    if (!withdrawn_.has_value()) {
      rt.probe(probes::kClosedAnyway);
      break;
    }
    if (withdrawn_->ok) co_return Done{};
    if (deadline == kForever) co_return Error{ErrorCode::kRetained, withdrawn_->message};
    const Nanos again = deadline_after(rt.now(), kAskAgain);
    co_await rt.sleep_until(again < deadline ? again : deadline);
    if (!session_open()) co_return Done{};
  }
  session_.post(net::AbortRequest{held_->number, ErrorCode::kReplicaLost, "closed"});
  co_return Done{};
}

flow::Task<void> HandleCore::do_close(HandleCore* self, Nanos deadline, Job<Done> done) {
  if (self->state_ == HandleState::kClosed) {
    done.set(Done{});
    co_return;
  }
  if (self->held_.has_value() && self->session_open()) {
    Result<Done> asked = co_await self->ask_to_withdraw(deadline);
    if (!asked) {
      done.set(asked.error());
      co_return;
    }
  }
  co_await self->hand_back();
  const bool poisoned_memory =
      self->poison_.has_value() && self->poison_->code == ErrorCode::kDestinationPoisoned;
  const Error poisoned = self->poison_.value_or(Error{});
  if (self->layout_.has_value()) {
    Result<Done> undone = co_await self->deregister_now();
    WL_ASSERT(undone.ok());
  }
  const Nanos flush_by = deadline_after(self->runtime().now(), kCloseFlush);
  co_await self->session_.close(flush_by);
  self->state_ = HandleState::kClosed;
  if (poisoned_memory)
    done.set(poisoned);
  else
    done.set(Done{});
}

}  // namespace weightlane::ros
