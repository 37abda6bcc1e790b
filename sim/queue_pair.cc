// The life of a queue pair: posting, completing in order, breaking, flushing, destroying. What
// happens to one READ on its way is in read_work.cc.
#include "sim/queue_pair.h"

#include <algorithm>

#include "sim/data_plane.h"
#include "sim/world.h"

namespace weightlane::sim {
namespace {

constexpr SpanRange kWakeLate{micros(1), millis(50)};
constexpr SpanRange kFenceHolds{micros(10), seconds(10)};

}  // namespace

QueuePairState::QueuePairState(DataNet& n, QueuePairId number, HostId r, HostId s)
    : net(n),
      id(number),
      reader(r),
      reader_life(n.world().host(r).life()),
      source(s),
      source_life(n.world().host(s).life()),
      flush_alarm(
          n.world(), [](void* self) { static_cast<QueuePairState*>(self)->flush(); }, this),
      close_alarm(
          n.world(), [](void* self) { static_cast<QueuePairState*>(self)->source_hears(); }, this),
      wake_alarm(
          n.world(),
          [](void* self) {
            auto& state = *static_cast<QueuePairState*>(self);
            if (state.wake != nullptr) state.wake->notify_all();
          },
          this) {
  const DataConfig& config = n.world().config().data;
  const int64_t nominal = config.retry_nominal.count;
  const uint32_t quarters = (config.retry_spread - 1) * 4 + 1;
  const uint32_t draw = n.world().choices().choose(stream(), "pair.retry", quarters);
  retry = nanos(nominal + nominal * draw / 4);
}

World& QueuePairState::world() const { return net.world(); }
StreamId QueuePairState::stream() const { return stream_of(reader, Subsystem::kData); }

// ---------------------------------------------------------------- posting and completing

net::PostResult QueuePairState::post(const net::ReadWork& read) {
  if (phase != PairPhase::kReady) return net::PostResult::kBroken;
  if (works.size() >= world().config().data.max_outstanding_reads) {
    return net::PostResult::kQueueFull;
  }
  // Only with READs under way: an empty queue that says it is full would never wake anybody.
  if (!works.empty() && world().fault(stream(), Fault::kSendQueueFull)) {
    world().fault_happened(Fault::kSendQueueFull, reader, source);
    return net::PostResult::kQueueFull;
  }
  Work& work = net.allocate_work();
  work.reset(*this, read);
  const bool turn = lane_free();
  works.push_back(&work);
  world().event(EventKind::kReadPosted, reader, id.value, read.work_id, read.length);
  if (turn) begin(work);
  return net::PostResult::kPosted;
}

void QueuePairState::finish(Work& work) {
  work.phase = WorkPhase::kFinished;
  work.status = work.status_at_end;
  const bool success = work.status == net::CompletionStatus::kSuccess;
  if (hung || success) transmission_ends(work);
  if (!hung) complete_in_order();
}

void QueuePairState::complete_in_order() {
  if (phase == PairPhase::kBroken) return;  // until the flush
  while (!works.empty() && works.front()->phase == WorkPhase::kFinished) {
    Work& work = *works.front();
    const net::CompletionStatus status = work.status;
    works.pop_front();
    complete(work, status);
    if (status != net::CompletionStatus::kSuccess) {
      set_broken();
      if (phase == PairPhase::kBroken) break;
    }
  }
  if (works.empty()) stop_flow();
  if (phase == PairPhase::kOrphaned && works.empty() && late.empty()) die(true);
}

// The work leaves the queue. It is the net's again, unless it is still landing (F20).
void QueuePairState::complete(Work& work, net::CompletionStatus status) {
  count_outcome(work, true, status);
  const bool deliver = phase == PairPhase::kReady || phase == PairPhase::kBroken;
  if (deliver) {
    net::Completion completion{.work_id = work.read.work_id, .status = status};
    if (work.read.want_checksum && status == net::CompletionStatus::kSuccess) {
      completion.checksum = checksum_of(work);
    }
    const bool was_empty = completions.empty();
    completions.push_back(completion);
    ++world().mutable_counts().completions;
    world().event(EventKind::kCompletion, reader, id.value, work.read.work_id,
                  static_cast<uint64_t>(status));
    if (world().observer() != nullptr) {
      world().observer()->on_completion(world().now(), reader, id, completion);
    }
    if (was_empty) tell_reader();
  }
  if (work.actions_begin < work.actions_end && status == net::CompletionStatus::kSuccess) {
    work.completed = true;
    late.push_back(&work);
  } else {
    net.release_work(work);
  }
}

// F25: an event that comes late; until then only a reader that looks by itself sees the completion.
void QueuePairState::tell_reader() {
  if (wake == nullptr) return;
  if (world().config().faults.of(Fault::kWakeLate) != 0 &&
      world().fault(stream(), Fault::kWakeLate)) {
    world().fault_happened(Fault::kWakeLate, reader, source);
    const Nanos span = net.draw(reader, "wake.late", kWakeLate);
    wake_alarm.arm(world().now() + span);
    return;
  }
  wake->notify_all();
}

void QueuePairState::set_broken() {
  if (phase != PairPhase::kReady) return;
  phase = PairPhase::kBroken;
  world().event(EventKind::kQueuePair, reader, id.value,
                static_cast<uint64_t>(QueuePairEvent::kBroken), 0);
  // What follows is flushed soon; until then it may go on being executed and placed.
  const uint32_t later = world().choices().choose(stream(), "flush.later", 2);
  if (later == 0) {
    flush();
    return;
  }
  const Nanos span = net.draw(reader, "flush.delay", kFlushDelay);
  flush_alarm.arm(world().now() + span);
}

void QueuePairState::flush() {
  while (!works.empty() && phase == PairPhase::kBroken) {
    Work& work = *works.front();
    works.pop_front();
    work.actions_begin = work.actions_end;
    if (work.fault == Fault::kNone) work.fault = Fault::kFlushed;
    complete(work, net::CompletionStatus::kFlushed);
  }
  stop_flow();
  if (wake != nullptr) wake->notify_all();
}

void QueuePairState::stop_flow() {
  if (flow.value == 0) return;
  world().bandwidth().end(flow);
  flow = {};
}

void QueuePairState::count_outcome(const Work& work, bool completed,
                                   net::CompletionStatus status) const {
  const uint32_t part = work.executed_part();
  const auto count = [this, &work](WorkOutcome outcome, Fault otherwise) {
    const Fault fault = work.fault != Fault::kNone ? work.fault : otherwise;
    if (fault != Fault::kNone) world().probe_outcome(fault, outcome);
    if (work.changed) world().probe_outcome(Fault::kChangedUnderRead, outcome);
    if (work.torn) world().probe_outcome(Fault::kTorn, outcome);
  };
  if (completed && status == net::CompletionStatus::kSuccess)
    return count(WorkOutcome::kFullySuccess, Fault::kNone);
  WorkOutcome first = WorkOutcome::kNotNothing;
  if (completed) {
    first = status == net::CompletionStatus::kFlushed ? WorkOutcome::kNotFlushed
                                                      : WorkOutcome::kNotError;
  }
  count(static_cast<WorkOutcome>(static_cast<uint32_t>(first) + part), Fault::kDestroyed);
}

// ---------------------------------------------------------------- the ends

void QueuePairState::drop_works() {
  for (Work* work : works) {
    count_outcome(*work, false, work->status);
    net.release_work(*work);
  }
  works.clear();
  for (Work* work : late) net.release_work(*work);
  late.clear();
  flush_alarm.disarm();
  stop_flow();
}

void QueuePairState::die(bool tell_source) {
  if (phase == PairPhase::kDead) return;
  phase = PairPhase::kDead;
  wake = nullptr;
  drop_works();
  completions.clear();
  if (attempt != nullptr) attempt->pair = nullptr;
  attempt = nullptr;
  world().event(EventKind::kQueuePair, reader, id.value,
                static_cast<uint64_t>(QueuePairEvent::kDestroyed), 0);
  if (world().observer() != nullptr) world().observer()->on_queue_pair_destroyed(world().now(), id);
  const bool lost = world().fault(stream(), Fault::kCloseLost);
  const bool cut = world().network().blocked(Plane::kData, reader, source);
  if (passive != nullptr && tell_source && lost) {
    world().fault_happened(Fault::kCloseLost, reader, source);
  }
  if (passive != nullptr && tell_source && !lost && !cut) {
    const Nanos span = net.draw(reader, "close.notice", world().config().data.connect);
    close_alarm.arm(world().now() + span, source);
    if (active == nullptr) return;
  }
  if (active == nullptr && !close_alarm.armed()) net.remove(*this);
}

void QueuePairState::source_hears() {
  if (passive != nullptr) {
    world().event(EventKind::kQueuePair, source, id.value,
                  static_cast<uint64_t>(QueuePairEvent::kClosed), 0);
    passive->closed_ = true;
  }
  if (phase == PairPhase::kDead && active == nullptr) net.remove(*this);
}

void QueuePairState::fence() {
  fenced = true;
  passive = nullptr;
  world().event(EventKind::kQueuePair, source, id.value,
                static_cast<uint64_t>(QueuePairEvent::kFenced), 0);
  if (world().observer() != nullptr) world().observer()->on_passive_dropped(world().now(), id);
  if (!works.empty() && world().host(source).alive())
    world().probe_outcome(Fault::kLeftUnderReads, WorkOutcome::kHappened);
  // READs that the source's NIC is working on may still get through; without fences, all that were
  // posted.
  const bool stops = world().config().data.fences;
  // A plane without fences has only told the reader; what it posts until it hears still works.
  if (!stops) fence_holds = world().now() + net.draw(source, "fence.holds", kFenceHolds);
  for (Work* work : works) {
    if (!work->begun && stops) continue;
    work->outlives_fence = world().choices().choose(stream(), "fence.outlived", 2) != 0;
  }
  if (phase == PairPhase::kDead && active == nullptr) {
    close_alarm.disarm();
    net.remove(*this);
  }
}

SimQueuePair::~SimQueuePair() {
  if (state_ == nullptr) return;
  QueuePairState& state = *state_;
  state.active = nullptr;
  state.wake = nullptr;
  if (state.phase == PairPhase::kPoisoned) return;  // lands as long as the world lasts
  if (state.works.empty() && state.late.empty()) {
    state.die(true);
  } else if (state.phase != PairPhase::kDead) {
    // Its caller broke R6 or was cancelled: the NIC goes on all the same.
    state.phase = PairPhase::kOrphaned;
    state.flush_alarm.disarm();
  }
}

net::Capabilities SimQueuePair::capabilities() const {
  if (state_ == nullptr) return {};
  const DataConfig& config = state_->net.world().config().data;
  return {.fences = config.fences,
          .max_read_bytes = config.max_read_bytes,
          .max_outstanding_reads = config.max_outstanding_reads};
}

net::PostResult SimQueuePair::post_read(const net::ReadWork& work) {
  return state_ == nullptr ? net::PostResult::kBroken : state_->post(work);
}

std::optional<net::Completion> SimQueuePair::poll() {
  if (state_ == nullptr || state_->completions.empty()) return std::nullopt;
  if (state_->phase != PairPhase::kReady && state_->phase != PairPhase::kBroken) {
    return std::nullopt;
  }
  const net::Completion completion = state_->completions.front();
  state_->completions.pop_front();
  return completion;
}

Error SimQueuePair::poisoned() {
  return {ErrorCode::kDestinationPoisoned, "the queue pair could not be destroyed in time"};
}

flow::Task<Result<Done>> SimQueuePair::destroy(Nanos deadline) {
  if (state_ == nullptr) co_return Done{};
  QueuePairState& state = *state_;
  World& world = state.net.world();
  Host& host = world.host(state.reader);
  if (state.phase == PairPhase::kPoisoned) co_return poisoned();
  state.phase = PairPhase::kDestroying;
  state.wake = nullptr;
  state.completions.clear();
  state.flush_alarm.disarm();
  world.event(EventKind::kQueuePair, state.reader, state.id.value,
              static_cast<uint64_t>(QueuePairEvent::kDestroying), 0);
  const StreamId stream = stream_of(state.reader, Subsystem::kData);
  const bool slow = world.fault(stream, Fault::kDestroySlow);
  const bool fails = world.fault(stream, Fault::kDestroyFails);
  if (slow) world.fault_happened(Fault::kDestroySlow, state.reader, state.source);
  const DataConfig& config = world.config().data;
  const Nanos span =
      state.net.draw(state.reader, "destroy", slow ? config.destroy_slow : config.destroy);
  const Nanos end = deadline_after(host.now(), span);
  const bool in_time = !fails && end <= deadline;
  co_await host.sleep_until(in_time ? end : deadline);
  if (state_ == nullptr) co_return Done{};
  if (!in_time) {
    world.fault_happened(Fault::kDestroyFails, state.reader, state.source);
    state.phase = PairPhase::kPoisoned;
    co_return poisoned();
  }
  state_ = nullptr;
  state.active = nullptr;
  state.die(true);
  co_return Done{};
}

SimPassiveQueuePair::SimPassiveQueuePair(QueuePairState& state, SimDataPlane& plane)
    : state_(&state), plane_(plane), number_(plane.add_passive()) {
  state.passive = this;
  state.passive_number = number_;
}

SimPassiveQueuePair::~SimPassiveQueuePair() {
  plane_.drop_passive(number_);
  if (state_ != nullptr) state_->fence();
}

net::RemoteRegion SimPassiveQueuePair::describe(net::RegionId region) {
  return plane_.describe(region);
}

}  // namespace weightlane::sim
