// FaultInjector: the faults that befall the world as a whole, in phase 1 of a run.
//
// Ticks at drawn times and draws one of the world's faults (FaultClass::kWorld) by the rates of the
// config: crashes (with a restart later, or never), pauses, partitions, flaps, slow hosts. Every
// fault ends by itself after a drawn time, or at heal(), which ends phase 1.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/config.h"
#include "sim/host.h"
#include "sim/timer_queue.h"

namespace weightlane::sim {

class World;

struct InjectorConfig {
  SpanRange tick{millis(1), seconds(2)};
  SpanRange restart{millis(10), seconds(30)};  // from crash to restart
  SpanRange pause{millis(10), seconds(15)};
  SpanRange flap_short{millis(1), millis(500)};
  SpanRange flap_long{seconds(2), seconds(12)};
  SpanRange partition{millis(100), seconds(20)};
  SpanRange low_speed{millis(100), seconds(20)};
  SpanRange storm{millis(1), seconds(2)};
  SpanRange swizzle{millis(50), seconds(15)};  // from the first host cut off to the last restored
  uint32_t crashes_most = 8;
  uint32_t never_restarts_per_million = 100'000;
  uint64_t spared = 0;  // mask of host_bit: neither crashed nor paused by the injector
};

// The campaign's side.
class HostDirector {
 public:
  virtual ~HostDirector() = default;
  // Starts what the host shall run now: calls host.start(main, name, reuse), or leaves it down.
  virtual void restart(Host& host, bool reuse) = 0;
  // Whether this host may be crashed now (`spared` is asked first).
  virtual bool may_crash(Host&) { return true; }
};

class FaultInjector {
 public:
  // `director` and `world` outlive it.
  FaultInjector(World& world, InjectorConfig config, HostDirector& director);
  ~FaultInjector();

  void start();
  // Ends phase 1 with World::heal(): no more faults; pending restarts happen now when
  // `restart_crashed`, else those hosts are lost for good.
  void heal(bool restart_crashed);
  uint32_t crashes() const { return crashes_; }

 private:
  struct Ending;  // a fault under way
  void tick();
  void apply(Fault fault);
  void crash(Fault fault);
  void pause();
  void cut(Fault fault);
  void flap(Fault fault);
  void slow();
  void storm();
  void swizzle();
  Host* draw_victim(const char* name, bool for_crash);
  void restart(HostId id);
  void end_after(std::unique_ptr<Ending> ending, Nanos span);
  Nanos draw(const char* name, SpanRange range);
  void finish(Ending& ending);
  static void on_tick(void* self);

  World& world_;
  InjectorConfig config_;
  HostDirector& director_;
  StreamId stream_;
  bool running_ = false;
  uint32_t crashes_ = 0;
  Alarm tick_alarm_;
  std::vector<std::unique_ptr<Ending>> endings_;
};

}  // namespace weightlane::sim
