// A step, and who is next in it. Timers that are due go before ready tasks, so a task that never
// rests stops neither time nor others.
#include "sim/world.h"

#include <algorithm>

#include "sim/control_plane.h"
#include "sim/data_plane.h"

namespace weightlane::sim {
namespace {

constexpr StreamId kOrderStream = stream_of(kWorldHost, Subsystem::kSchedule);
constexpr uint64_t kFairEvery = 64;              // steps
constexpr int64_t kStarvedGapLeast = 1'000'000;  // between two hold-ups, ns
constexpr int64_t kStarvedGapMost = 2'000'000'000;
constexpr int64_t kStarvedSpanLeast = 10'000;  // one hold-up
constexpr int64_t kStarvedSpanMost = 50'000'000;

}  // namespace

World::World(const WorldConfig& config, ChoiceSource& choices)
    : config_(config),
      choices_(choices),
      starve_alarm_(
          *this, [](void* self) { static_cast<World*>(self)->hold_up_starved(); }, this),
      bandwidth_(config.bandwidth) {
  control_net_ = std::make_unique<ControlNet>(*this);
  data_net_ = std::make_unique<DataNet>(*this);
  if (config_.order == ReadyOrder::kPct) {
    for (uint32_t i = 0; i < config_.pct_change_points; ++i) {
      pct_change_steps_.push_back(
          choices_.choose(kOrderStream, "pct.change_point", config_.pct_steps));
    }
    std::sort(pct_change_steps_.begin(), pct_change_steps_.end());
  }
  Host& self = add_host({.name = "world", .datacenter = "dc0", .node = ""});
  self.state_ = HostState::kUp;  // no clock skew, no main task, never crashed
}

void World::end() {
  observer_ = nullptr;
  sink_ = nullptr;
  // Tasks of the world may hold references to hosts' things, never the reverse.
  for (const auto& host : hosts_) host->end_life(CrashKind::kMemoryFirst);
}

World::~World() {
  end();
  data_net_.reset();
  control_net_.reset();
  hosts_.clear();
}

Host& World::add_host(HostPlace place) {
  const HostId id{host_count()};
  WL_ASSERT_OP(id.value, <, TimerQueue::kHostLimit);
  if (place.name.empty()) place.name = "h" + std::to_string(id.value);
  if (place.node.empty()) place.node = "node-" + place.name;
  bandwidth_.add_host(id, place);
  if (config_.order == ReadyOrder::kPct) {
    pct_priority_.push_back(choices_.choose(kOrderStream, "pct.priority", 1 << 16));
  }
  if (config_.order == ReadyOrder::kStarveOne && !starve_alarm_.armed()) {
    starve_alarm_.arm(now_ + nanos(kStarvedGapLeast));
  }
  hosts_.push_back(std::make_unique<Host>(*this, id, std::move(place)));
  return *hosts_.back();
}

bool World::step() {
  // What is due comes first, so that tasks which never rest stop neither time nor others.
  const bool due = !timers_.empty() && timers_.top_time() <= now_.count;
  if (!due && !ready_.empty()) {
    run_ready();
    return true;
  }
  if (timers_.empty()) return false;
  fire_timer();
  return true;
}

void World::run_ready() {
  flow::ReadyNode* node = pick();
  const HostId host{node->slot};
  ready_.remove(*node);
  current_host_ = host;
  ++step_count_;
  ++counts_.steps;
  event(EventKind::kStep, host, step_count_, 0, 0);
  node->coroutine.resume();
  current_host_ = kWorldHost;
  now_ += config_.step_cost;
}

void World::fire_timer() {
  const TimerQueue::Entry entry = timers_.pop();
  if (entry.at > now_.count) now_ = nanos(entry.at);
  Host& owner = *hosts_[entry.host().value];
  if (owner.paused()) {
    // Still linked, for whoever wants to disarm it.
    entry.node->linked = true;
    entry.node->slot = TimerQueue::kParked | static_cast<uint32_t>(owner.parked_timers_.size());
    owner.parked_timers_.push_back(entry);
    return;
  }
  current_host_ = owner.id();
  if (!Alarm::is_alarm(*entry.node)) {
    ++counts_.timers;
    event(EventKind::kTimer, owner.id(), entry.sequence(), 0, 0);
  }
  entry.node->on_fire(*entry.node);
  current_host_ = kWorldHost;
}

void Alarm::arm(Nanos at, HostId host) {
  disarm();
  world_.timers().arm(*this, host, at.count);
}

void Alarm::disarm_linked() { world_.disarm(*this); }

void World::disarm(flow::TimerNode& node) {
  if (node.linked && (node.slot & TimerQueue::kParked) != 0) {
    const uint32_t index = node.slot & ~TimerQueue::kParked;
    for (const auto& host : hosts_) {
      if (index >= host->parked_timers_.size()) continue;
      TimerQueue::Entry& entry = host->parked_timers_[index];
      if (entry.node != &node) continue;
      entry.node = nullptr;
      node.linked = false;
      return;
    }
    WL_ASSERT(!"a parked timer is in its host's list");
  }
  timers_.disarm(node);
}

flow::ReadyNode* World::pick() {
  const uint32_t n = ready_.size();
  // However unfair, not for ever: now and then the oldest has its turn.
  if (step_count_ % kFairEvery == 0) return ready_.front();
  switch (config_.order) {
    case ReadyOrder::kFifo:
      break;
    case ReadyOrder::kRandom:
      if (n > 1) return ready_.nth(choices_.choose(kOrderStream, "ready", n));
      break;
    case ReadyOrder::kPct:
      return pick_pct();
    case ReadyOrder::kStarveOne:
      return pick_starving();
  }
  return ready_.front();
}

flow::ReadyNode* World::pick_pct() {
  flow::ReadyNode* best = ready_.front();
  for (flow::ReadyNode* node = best->next; node != nullptr; node = node->next) {
    if (pct_priority_[node->slot] > pct_priority_[best->slot]) best = node;
  }
  while (!pct_change_steps_.empty() && pct_change_steps_.front() <= step_count_) {
    pct_change_steps_.erase(pct_change_steps_.begin());
    pct_priority_[best->slot] = --pct_lowest_;
  }
  return best;
}

HostId World::starved() {
  if (starved_ == kWorldHost && host_count() > 1) {
    starved_ = HostId{1 + choices_.choose(kOrderStream, "starve.victim", host_count() - 1)};
  }
  return starved_;
}

flow::ReadyNode* World::pick_starving() {
  const HostId victim = starved();
  for (flow::ReadyNode* node = ready_.front(); node != nullptr; node = node->next) {
    if (node->slot != victim.value) return node;
  }
  return ready_.front();
}

void World::hold_up_starved() {
  if (healed_) return;
  Host& victim = *hosts_[starved().value];
  const int64_t span =
      choices_.log_uniform(kOrderStream, "starve.span", kStarvedSpanLeast, kStarvedSpanMost);
  const int64_t gap =
      choices_.log_uniform(kOrderStream, "starve.gap", kStarvedGapLeast, kStarvedGapMost);
  if (victim.state() == HostState::kUp) victim.pause(nanos(span));
  starve_alarm_.arm(now_ + nanos(span + gap));
}

StopReason World::advance_to(Nanos time) {
  if (time > now_) now_ = time;
  return StopReason::kTime;
}

CutId World::cut(Cut cut) {
  event(EventKind::kFault, kWorldHost, cut.from, cut.to,
        (cut.control ? 1u : 0u) | (cut.data ? 2u : 0u));
  return network_.cut(cut);
}

void World::mend(CutId id) {
  if (!network_.mend(id)) return;
  event(EventKind::kFault, kWorldHost, id.value, 0, 4);
  control_net_->paths_changed();
  data_net_->paths_changed();
}

void World::heal() {
  if (healed_) return;
  healed_ = true;
  network_.mend_all();
  event(EventKind::kFault, kWorldHost, 0, 0, 8);
  for (const auto& host : hosts_) {
    host->resume();
    host->set_slowdown(1);
  }
  data_net_->heal();
  control_net_->paths_changed();
  data_net_->paths_changed();
  if (observer_ != nullptr) observer_->on_healed(now_);
}

void World::fault_happened(Fault fault, HostId host, HostId other) {
  event(EventKind::kFault, host, static_cast<uint64_t>(fault), other.value, 16);
  ++fault_hits_.at(fault, WorkOutcome::kHappened);
  if (observer_ != nullptr) observer_->on_fault(now_, fault, host, other);
}

void World::count_probe(const flow::ProbePoint& point) {
  if (point.id >= probe_hits_.size()) probe_hits_.resize(point.id + 1u);
  ++probe_hits_[point.id];
}

std::string World::waiting_report() const {
  static constexpr const char* kStates[] = {"down", "up", "paused"};
  std::string report;
  for (const auto& host : hosts_) {
    if (host->life() == 0 && host->live_tasks() == 0) continue;
    report += host->place().name + " life " + std::to_string(host->life()) + " " +
              kStates[static_cast<size_t>(host->state())] + ":";
    host->for_each_task([&report](const char* name) { report += std::string(" ") + name; });
    report += "\n";
  }
  return report;
}

}  // namespace weightlane::sim
