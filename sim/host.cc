// Most of this is order: what dies before what at a crash, and what waits in which list in a pause.
#include "sim/host.h"

#include "sim/control_plane.h"
#include "sim/data_plane.h"
#include "sim/world.h"

namespace weightlane::sim {

namespace {

constexpr uint32_t kDriftFraction = 40;
__extension__ using Wide = __int128;

int64_t scaled(int64_t elapsed, int64_t factor) {
  return static_cast<int64_t>((Wide{elapsed} * factor) >> kDriftFraction);
}

}  // namespace

Host::Host(World& world, HostId id, HostPlace place)
    : world_(world),
      id_(id),
      place_(std::move(place)),
      resume_alarm_(
          world, [](void* self) { static_cast<Host*>(self)->resume(); }, this),
      exit_alarm_(
          world, [](void* self) { static_cast<Host*>(self)->crash(CrashKind::kMemoryFirst); },
          this),
      memory_(std::make_unique<Memory>(world, id)),
      control_(std::make_unique<SimControlPlane>(*this)),
      data_(std::make_unique<SimDataPlane>(*this)),
      tasks_(*this) {}

Host::~Host() = default;

net::ControlPlane& Host::control() { return *control_; }
net::DataPlane& Host::data() { return *data_; }

std::string Host::address(uint32_t port) const { return place_.name + ":" + std::to_string(port); }

void Host::draw_clock() {
  ChoiceSource& choices = world_.choices();
  const StreamId stream = stream_of(id_, Subsystem::kClock);
  const WorldConfig& config = world_.config();
  clock_origin_ = world_.now();
  const auto most_ms = static_cast<uint32_t>(config.clock_offset_most.count / 1'000'000);
  const uint32_t offset_ms = choices.choose(stream, "clock.offset", most_ms + 1);
  const uint32_t ppm_most = config.clock_drift_ppm_most;
  const uint32_t drift = choices.choose(stream, "clock.drift", 2 * ppm_most + 1);
  clock_offset_ = millis(offset_ms).count;
  // 0 is no drift; then +1, -1, +2, -2 ...
  const int64_t size = (drift + 1) / 2;
  const int64_t ppm = drift % 2 == 1 ? size : -size;
  clock_drift_ = (ppm << kDriftFraction) / 1'000'000;
  const Wide one = Wide{1} << kDriftFraction;
  clock_drift_back_ = static_cast<int64_t>(clock_drift_ * one / (one + clock_drift_));
}

// local = origin + offset + elapsed x (1 + drift); in integers, never going back.
Nanos Host::to_local(Nanos world_time) const {
  const int64_t elapsed = world_time.count - clock_origin_.count;
  return nanos(clock_origin_.count + clock_offset_ + elapsed + scaled(elapsed, clock_drift_));
}

Nanos Host::to_world(Nanos local) const {
  if (local == kForever) return kForever;
  const int64_t elapsed = local.count - clock_offset_ - clock_origin_.count;
  Nanos at = clock_origin_ + nanos(elapsed - scaled(elapsed, clock_drift_back_));
  // Rounding must not let a timer fire before its time.
  while (to_local(at) < local) at += nanos(1);
  return at;
}

void Host::start(flow::Task<void> main, const char* name, bool reuse) {
  WL_ASSERT(state_ == HostState::kDown);
  ++life_;
  state_ = HostState::kUp;
  draw_clock();
  memory_->reset(reuse || life_ == 1);
  data_->start_life(reuse || life_ == 1);
  world_.event(EventKind::kFault, id_, life_, reuse ? 1 : 0, 0);
  if (reuse) world_.fault_happened(Fault::kRestartReuse, id_, kWorldHost);
  if (world_.observer() != nullptr) world_.observer()->on_started(world_.now(), id_, life_);
  tasks_.spawn(std::move(main), name);
}

void Host::crash(CrashKind kind) {
  WL_ASSERT(id_ != kWorldHost);
  if (!alive()) return;
  static constexpr Fault kFaults[] = {Fault::kCrashMemoryFirst, Fault::kCrashQueuePairFirst,
                                      Fault::kCrashMachine};
  world_.fault_happened(kFaults[static_cast<size_t>(kind)], id_, kWorldHost);
  if (world_.observer() != nullptr) world_.observer()->on_crashed(world_.now(), id_, life_);
  end_life(kind);
}

// Dead first: what destructors do then reaches nothing outside.
void Host::end_life(CrashKind kind) {
  // What a pause has parked goes back in the common list, where cancelling will look for it.
  while (!parked_ready_.empty()) {
    flow::ReadyNode& node = *parked_ready_.front();
    parked_ready_.remove(node);
    world_.ready_.push_back(node);
  }
  state_ = HostState::kDown;
  last_crash_ = kind;
  resume_alarm_.disarm();
  exit_alarm_.disarm();
  control_->end_life(kind);
  data_->end_life(kind);
  tasks_.cancel_all();
  WL_ASSERT(parked_ready_.empty());
  unpark_timers();  // messages on their way to it; they will find it gone
  data_->clear();
  memory_->reset(true);
}

void Host::exit() {
  if (alive() && !exit_alarm_.armed()) exit_alarm_.arm(world_.now());
}

void Host::pause(Nanos span) {
  if (!alive()) return;
  const Nanos until = deadline_after(world_.now(), span);
  if (state_ == HostState::kUp) {
    state_ = HostState::kPaused;
    ReadyList& ready = world_.ready_;
    // Its ready coroutines leave the common list, in order.
    for (flow::ReadyNode* node = ready.front(); node != nullptr;) {
      flow::ReadyNode* next = node->next;
      if (node->slot == id_.value) {
        ready.remove(*node);
        parked_ready_.push_back(*node);
      }
      node = next;
    }
    if (world_.observer() != nullptr) world_.observer()->on_paused(world_.now(), id_);
  }
  resume_alarm_.arm(until);
}

void Host::resume() {
  if (state_ != HostState::kPaused) return;
  state_ = HostState::kUp;
  resume_alarm_.disarm();
  while (!parked_ready_.empty()) {
    flow::ReadyNode& node = *parked_ready_.front();
    parked_ready_.remove(node);
    world_.ready_.push_back(node);
  }
  unpark_timers();
  if (world_.observer() != nullptr) world_.observer()->on_resumed(world_.now(), id_);
}

void Host::unpark_timers() {
  // With the keys they had: the earliest fires first, late as it is.
  for (const TimerQueue::Entry& entry : parked_timers_) {
    if (entry.node == nullptr) continue;
    entry.node->linked = false;
    world_.timers_.push(entry);
  }
  parked_timers_.clear();
}

void Host::set_slowdown(uint32_t factor) { world_.bandwidth().set_slowdown(id_, factor); }

Nanos Host::now() const { return to_local(world_.now()); }

uint64_t Host::random() { return world_.choices().value(stream_of(id_, Subsystem::kRandom)); }

void Host::probe(const flow::ProbePoint& point) { world_.count_probe(point); }

void Host::trace(const flow::TraceEvent& event) {
  world_.event(EventKind::kTrace, id_, event.a, event.b, event.c);
  if (world_.observer() != nullptr) world_.observer()->on_trace(world_.now(), id_, event);
}

void Host::spawn(flow::Task<void> task, const char* name) {
  if (!alive()) return;
  tasks_.spawn(std::move(task), name);
}

void Host::make_ready(flow::ReadyNode& node) {
  WL_ASSERT(!node.linked);
  node.slot = id_.value;
  (paused() ? parked_ready_ : world_.ready_).push_back(node);
}

void Host::cancel_ready(flow::ReadyNode& node) {
  WL_ASSERT(node.linked);
  (paused() ? parked_ready_ : world_.ready_).remove(node);
}

void Host::arm_timer(flow::TimerNode& node, Nanos when) {
  if (when == kForever) return;
  const Nanos at = to_world(when);
  world_.timers_.arm(node, id_, at < world_.now() ? world_.now().count : at.count);
}

void Host::disarm_timer(flow::TimerNode& node) { world_.disarm(node); }

}  // namespace weightlane::sim
