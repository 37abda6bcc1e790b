// Each fault under way is an Ending with an alarm of its own; heal() only rings them all at once.
#include "sim/fault_injector.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/data_plane.h"
#include "sim/hash.h"
#include "sim/world.h"

namespace weightlane::sim {
namespace {

constexpr SpanRange kMigration{millis(1), millis(20)};
constexpr uint32_t kSlowestHost = 100;

}  // namespace

// A fault under way, and how it ends.
struct FaultInjector::Ending {
  Ending(FaultInjector& i, HostId h)
      : injector(i),
        host(h),
        alarm(
            i.world_,
            [](void* self) {
              auto& ending = *static_cast<Ending*>(self);
              ending.injector.finish(ending);
            },
            this) {}

  FaultInjector& injector;
  HostId host;
  std::vector<CutId> cuts;
  bool restart = false;
  bool slow = false;
  Nanos begins_for;  // kSwizzle: the host is still to be cut off, and then for so long
  Cut cut;
  Alarm alarm;
};

FaultInjector::FaultInjector(World& world, InjectorConfig config, HostDirector& director)
    : world_(world),
      config_(config),
      director_(director),
      stream_(stream_of(kWorldHost, Subsystem::kFaults)),
      tick_alarm_(world, on_tick, this) {}

FaultInjector::~FaultInjector() = default;

void FaultInjector::on_tick(void* self) { static_cast<FaultInjector*>(self)->tick(); }

Nanos FaultInjector::draw(const char* name, SpanRange range) {
  return nanos(world_.choices().log_uniform(stream_, name, range.least.count, range.most.count));
}

void FaultInjector::start() {
  running_ = true;
  const Nanos first = draw("tick", config_.tick);
  tick_alarm_.arm(world_.now() + first);
}

void FaultInjector::tick() {
  std::vector<uint32_t> weights;
  std::vector<Fault> faults;
  for (uint32_t i = 1; i < kFaultCount; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (fault_class(fault) != FaultClass::kWorld || fault == Fault::kRestartReuse) continue;
    faults.push_back(fault);
    weights.push_back(world_.config().faults.of(fault));
  }
  const uint32_t drawn = world_.choices().weighted(stream_, "world.fault", weights);
  if (drawn != 0) apply(faults[drawn - 1]);
  const Nanos next = draw("tick", config_.tick);
  tick_alarm_.arm(world_.now() + next);
}

void FaultInjector::apply(Fault fault) {
  switch (fault) {
    case Fault::kCrashMemoryFirst:
    case Fault::kCrashQueuePairFirst:
    case Fault::kCrashMachine:
      return crash(fault);
    case Fault::kPause:
      return pause();
    case Fault::kFlapShort:
    case Fault::kFlapLong:
    case Fault::kAddressChange:
    case Fault::kPathMigration:
      return flap(fault);
    case Fault::kDataPartition:
    case Fault::kControlPartition:
    case Fault::kFullPartition:
    case Fault::kOneWayPartition:
      return cut(fault);
    case Fault::kLowSpeed:
      return slow();
    case Fault::kReconnectStorm:
      return storm();
    case Fault::kSwizzle:
      return swizzle();
    default:
      WL_ASSERT(!"a fault of the world");
  }
}

Host* FaultInjector::draw_victim(const char* name, bool for_crash) {
  std::vector<HostId> candidates;
  for (uint32_t i = 1; i < world_.host_count(); ++i) {
    Host& host = world_.host({i});
    if (!host.alive() || (config_.spared & host_bit(host.id())) != 0) continue;
    if (for_crash && !director_.may_crash(host)) continue;
    candidates.push_back(host.id());
  }
  // Drawn even without candidates, so that who is alive doesn't shift the stream.
  const auto n = static_cast<uint32_t>(std::max<size_t>(1, candidates.size()));
  const uint32_t drawn = world_.choices().choose(stream_, name, n);
  return candidates.empty() ? nullptr : &world_.host(candidates[drawn]);
}

void FaultInjector::crash(Fault fault) {
  Host* victim = draw_victim("crash.host", true);
  const Nanos span = draw("crash.restart_after", config_.restart);
  const bool never =
      world_.choices().chance(stream_, "crash.never_restarts", config_.never_restarts_per_million);
  if (victim == nullptr || crashes_ >= config_.crashes_most) return;
  ++crashes_;
  CrashKind kind = CrashKind::kMemoryFirst;
  if (fault == Fault::kCrashQueuePairFirst) kind = CrashKind::kQueuePairFirst;
  if (fault == Fault::kCrashMachine) kind = CrashKind::kMachine;
  const HostId id = victim->id();
  victim->crash(kind);
  if (never) return;
  auto ending = std::make_unique<Ending>(*this, id);
  ending->restart = true;
  end_after(std::move(ending), span);
}

void FaultInjector::pause() {
  Host* victim = draw_victim("pause.host", false);
  const Nanos span = draw("pause.span", config_.pause);
  if (victim == nullptr) return;
  world_.fault_happened(Fault::kPause, victim->id(), kWorldHost);
  victim->pause(span);
}

void FaultInjector::flap(Fault fault) {
  Host* victim = draw_victim("flap.host", false);
  SpanRange range = config_.flap_short;
  if (fault == Fault::kFlapLong) range = config_.flap_long;
  if (fault == Fault::kPathMigration) range = kMigration;
  const Nanos span = draw("flap.span", range);
  const bool both = world_.choices().choose(stream_, "flap.both_planes", 2) != 0;
  if (victim == nullptr) return;
  const HostId id = victim->id();
  world_.fault_happened(fault, id, kWorldHost);
  auto ending = std::make_unique<Ending>(*this, id);
  const bool control = both && fault != Fault::kPathMigration;
  ending->cuts.push_back(
      world_.cut({.control = control, .data = true, .from = host_bit(id), .to = ~host_bit(id)}));
  ending->cuts.push_back(
      world_.cut({.control = control, .data = true, .from = ~host_bit(id), .to = host_bit(id)}));
  if (fault == Fault::kAddressChange) world_.data_net().lose_addresses(id);
  if (fault == Fault::kPathMigration) world_.data_net().wake_readers(id);
  end_after(std::move(ending), span);
}

void FaultInjector::cut(Fault fault) {
  const uint32_t hosts = world_.host_count() - 1;
  const Nanos span = draw("cut.span", config_.partition);
  const uint32_t shape = world_.choices().choose(stream_, "cut.shape", 2);
  const uint32_t one = world_.choices().choose(stream_, "cut.host", std::max(1u, hosts));
  const uint32_t high = world_.choices().choose(stream_, "cut.side_high", 1u << 31);
  const uint32_t low = world_.choices().choose(stream_, "cut.side_low", 1u << 31);
  const uint32_t planes = world_.choices().choose(stream_, "cut.planes", 3);
  if (hosts < 2) return;
  uint64_t side = host_bit({one + 1});
  if (shape == 1) side = (uint64_t{high} << 32 | low) << 1;
  Cut cut{.control = true, .data = true, .from = side, .to = ~side};
  if (fault == Fault::kDataPartition) cut.control = false;
  if (fault == Fault::kControlPartition) cut.data = false;
  if (fault == Fault::kOneWayPartition) {
    cut.control = planes != 1;
    cut.data = planes != 0;
  }
  world_.fault_happened(fault, {one + 1}, kWorldHost);
  auto ending = std::make_unique<Ending>(*this, kWorldHost);
  ending->cuts.push_back(world_.cut(cut));
  if (fault != Fault::kOneWayPartition) {
    std::swap(cut.from, cut.to);
    ending->cuts.push_back(world_.cut(cut));
  }
  end_after(std::move(ending), span);
}

void FaultInjector::slow() {
  Host* victim = draw_victim("slow.host", false);
  const Nanos span = draw("slow.span", config_.low_speed);
  const int64_t factor = world_.choices().log_uniform(stream_, "slow.factor", 2, kSlowestHost);
  if (victim == nullptr) return;
  world_.fault_happened(Fault::kLowSpeed, victim->id(), kWorldHost);
  victim->set_slowdown(static_cast<uint32_t>(factor));
  auto ending = std::make_unique<Ending>(*this, victim->id());
  ending->slow = true;
  end_after(std::move(ending), span);
}

void FaultInjector::storm() {
  Host* victim = draw_victim("storm.host", false);
  const Nanos span = draw("storm.span", config_.storm);
  if (victim == nullptr) return;
  world_.fault_happened(Fault::kReconnectStorm, victim->id(), kWorldHost);
  world_.data_net().storm(victim->id(), world_.now() + span);
}

// Swizzled clogging: a random half of the hosts is cut off one by one, and restored in another
// order, so that every mixture of who sees whom comes to pass.
void FaultInjector::swizzle() {
  const uint32_t hosts = world_.host_count() - 1;
  const Nanos span = draw("swizzle.span", config_.swizzle);
  const uint32_t high = world_.choices().choose(stream_, "swizzle.side_high", 1u << 31);
  const uint32_t low = world_.choices().choose(stream_, "swizzle.side_low", 1u << 31);
  const uint32_t planes = world_.choices().choose(stream_, "swizzle.planes", 3);
  const uint64_t order = world_.choices().value(stream_);
  const uint64_t side = uint64_t{high} << 32 | low;
  world_.fault_happened(Fault::kSwizzle, kWorldHost, kWorldHost);
  const Nanos slot = span / static_cast<int64_t>(hosts * 2 + 1);
  for (uint32_t h = 1; h <= hosts; ++h) {
    if ((side >> (h - 1) & 1) == 0) continue;
    auto ending = std::make_unique<Ending>(*this, kWorldHost);
    const int64_t begin = static_cast<int64_t>(mix64(order, h) % hosts);
    const int64_t end = hosts + static_cast<int64_t>(mix64(order, h + 1000) % hosts);
    ending->begins_for = slot * (end - begin) + nanos(1);
    ending->cut = {
        .control = planes != 1, .data = planes != 2, .from = host_bit({h}), .to = ~host_bit({h})};
    end_after(std::move(ending), slot * begin + nanos(1));
  }
}

void FaultInjector::end_after(std::unique_ptr<Ending> ending, Nanos span) {
  ending->alarm.arm(world_.now() + span);
  endings_.push_back(std::move(ending));
}

void FaultInjector::finish(Ending& ending) {
  if (ending.begins_for != kZeroNanos) {
    const Nanos span = std::exchange(ending.begins_for, kZeroNanos);
    Cut cut = ending.cut;
    ending.cuts.push_back(world_.cut(cut));
    std::swap(cut.from, cut.to);
    ending.cuts.push_back(world_.cut(cut));
    ending.alarm.arm(world_.now() + span);
    return;
  }
  const auto found = std::find_if(endings_.begin(), endings_.end(),
                                  [&ending](const auto& e) { return e.get() == &ending; });
  const std::unique_ptr<Ending> over = std::move(*found);
  endings_.erase(found);
  for (const CutId id : over->cuts) world_.mend(id);
  if (over->slow) world_.host(over->host).set_slowdown(1);
  if (over->restart) restart(over->host);
}

void FaultInjector::restart(HostId id) {
  Host& host = world_.host(id);
  const bool on = world_.config().faults.of(Fault::kRestartReuse) != 0;
  const uint32_t drawn = world_.choices().choose(stream_, "restart.reuse", 2);
  if (host.alive()) return;
  director_.restart(host, on && drawn != 0);
}

void FaultInjector::heal(bool restart_crashed) {
  running_ = false;
  tick_alarm_.disarm();
  std::vector<std::unique_ptr<Ending>> endings;
  endings.swap(endings_);
  world_.heal();
  for (const auto& ending : endings) {
    if (ending->restart && restart_crashed) restart(ending->host);
  }
}

}  // namespace weightlane::sim
