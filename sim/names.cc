// Names of the simulator's enumerations, the probes made of them, and the swarm that draws fault
// rates.
#include "sim/config.h"
#include "sim/events.h"
#include "sim/fault_list.h"
#include "sim/probes.h"

namespace weightlane::sim {

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
#define WL_SIM_FAULT_NAME(name, text, kind) \
  case Fault::name:                         \
    return text;
      WL_SIM_FAULTS(WL_SIM_FAULT_NAME)
#undef WL_SIM_FAULT_NAME
  }
  return "unknown";
}

FaultClass fault_class(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return FaultClass::kNone;
#define WL_SIM_FAULT_CLASS(name, text, kind) \
  case Fault::name:                          \
    return FaultClass::kind;
      WL_SIM_FAULTS(WL_SIM_FAULT_CLASS)
#undef WL_SIM_FAULT_CLASS
  }
  return FaultClass::kNone;
}

const char* ready_order_name(ReadyOrder order) {
  switch (order) {
    case ReadyOrder::kFifo:
      return "fifo";
    case ReadyOrder::kRandom:
      return "random";
    case ReadyOrder::kPct:
      return "pct";
    case ReadyOrder::kStarveOne:
      return "starve-one";
  }
  return "unknown";
}

const char* event_kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kStep:
      return "step";
    case EventKind::kTimer:
      return "timer";
    case EventKind::kRequest:
      return "request";
    case EventKind::kResponse:
      return "response";
    case EventKind::kConnection:
      return "connection";
    case EventKind::kReadPosted:
      return "read.posted";
    case EventKind::kReadExecuted:
      return "read.executed";
    case EventKind::kReadLanded:
      return "read.landed";
    case EventKind::kCompletion:
      return "completion";
    case EventKind::kQueuePair:
      return "queue_pair";
    case EventKind::kMemory:
      return "memory";
    case EventKind::kFault:
      return "fault";
    case EventKind::kTrace:
      return "trace";
    case EventKind::kMark:
      return "mark";
  }
  return "unknown";
}

const char* work_outcome_name(WorkOutcome outcome) {
  switch (outcome) {
    case WorkOutcome::kFullySuccess:
      return "fully executed, success";
    case WorkOutcome::kNotError:
      return "not executed, error";
    case WorkOutcome::kPartlyError:
      return "partly executed, error";
    case WorkOutcome::kFullyError:
      return "fully executed, error";
    case WorkOutcome::kNotFlushed:
      return "not executed, flushed";
    case WorkOutcome::kPartlyFlushed:
      return "partly executed, flushed";
    case WorkOutcome::kFullyFlushed:
      return "fully executed, flushed";
    case WorkOutcome::kNotNothing:
      return "not executed, no completion";
    case WorkOutcome::kPartlyNothing:
      return "partly executed, no completion";
    case WorkOutcome::kFullyNothing:
      return "fully executed, no completion";
    case WorkOutcome::kHappened:
      return "happened";
  }
  return "unknown";
}

namespace {

constexpr uint32_t bit(WorkOutcome outcome) { return 1u << static_cast<uint32_t>(outcome); }
constexpr uint32_t kSuccess = bit(WorkOutcome::kFullySuccess);
constexpr uint32_t kErrors =
    bit(WorkOutcome::kNotError) | bit(WorkOutcome::kPartlyError) | bit(WorkOutcome::kFullyError);
constexpr uint32_t kFlushes = bit(WorkOutcome::kNotFlushed) | bit(WorkOutcome::kPartlyFlushed) |
                              bit(WorkOutcome::kFullyFlushed);
constexpr uint32_t kNothings = bit(WorkOutcome::kNotNothing) | bit(WorkOutcome::kPartlyNothing) |
                               bit(WorkOutcome::kFullyNothing);

constexpr uint32_t kNots =
    bit(WorkOutcome::kNotError) | bit(WorkOutcome::kNotFlushed) | bit(WorkOutcome::kNotNothing);

// Which outcomes a fault can have; a READ whose pair is destroyed meanwhile counts under the fault
// it suffered.
uint32_t possible(Fault fault) {
  switch (fault) {
    // Executed in full; a pair that breaks or is destroyed before that says less.
    case Fault::kAckLost:
      return bit(WorkOutcome::kFullyError) | kFlushes | kNothings;
    case Fault::kRequestLost:
      return bit(WorkOutcome::kNotError) | bit(WorkOutcome::kNotFlushed) |
             bit(WorkOutcome::kNotNothing);
    case Fault::kDuplicate:
    case Fault::kSlowPair:
    case Fault::kNotVisible:
    case Fault::kWrongPages:
    case Fault::kGoodputNil:
      return kSuccess | kFlushes | kNothings;
    case Fault::kBadStatus:
    case Fault::kFirmwareFatal:
      return kErrors | kFlushes | kNothings;
    case Fault::kCqOverrun:
    case Fault::kFirmwareHang:
      return kFlushes | kNothings;
    // A READ finds its way barred before its last piece; a duplicate of it after that too.
    case Fault::kFence:
    case Fault::kPeerGone:
      return kErrors | kFlushes | kNothings;
    case Fault::kPathDown:
      return kSuccess | kErrors | kFlushes | kNothings;
    case Fault::kTorn:
    case Fault::kChangedUnderRead:
      return (kSuccess | kErrors | kFlushes | kNothings) & ~kNots;
    case Fault::kDeregistered:
      return kErrors | kFlushes | kNothings;
    case Fault::kFlushed:
      return kFlushes;
    case Fault::kRestartReuse:  // the other life's bytes, at their worst with success
      return bit(WorkOutcome::kHappened) | kSuccess | kErrors | kFlushes | kNothings;
    case Fault::kReconnectStorm:
      return bit(WorkOutcome::kHappened) | kErrors | kFlushes | kNothings;
    case Fault::kPostMistake:
      return bit(WorkOutcome::kNotError) | bit(WorkOutcome::kNotFlushed) |
             bit(WorkOutcome::kNotNothing);
    case Fault::kDestroyed:
      return kNothings;
    // Only a mistake of ros/ ends so: a READ into memory that it has given back, or beyond it.
    case Fault::kLocalMistake:
      return 0;
    case Fault::kNone:
      return 0;
    default:
      return bit(WorkOutcome::kHappened);
  }
}

// fault x outcome as one literal each.
#define WL_SIM_PROBE_ROW(name, text, kind)  \
  {text ": fully executed, success",        \
   text ": not executed, error",            \
   text ": partly executed, error",         \
   text ": fully executed, error",          \
   text ": not executed, flushed",          \
   text ": partly executed, flushed",       \
   text ": fully executed, flushed",        \
   text ": not executed, no completion",    \
   text ": partly executed, no completion", \
   text ": fully executed, no completion",  \
   text},
constexpr const char* kProbeNames[kFaultCount][kWorkOutcomes] = {{},
                                                                 WL_SIM_FAULTS(WL_SIM_PROBE_ROW)};
#undef WL_SIM_PROBE_ROW

}  // namespace

flow::ProbePoint fault_probe(Fault fault, WorkOutcome outcome) {
  if ((possible(fault) & bit(outcome)) == 0) return {};
  const auto row = static_cast<size_t>(fault);
  const auto column = static_cast<size_t>(outcome);
  return {.id = static_cast<uint16_t>(kFirstSimProbe + row * kWorkOutcomes + column),
          .name = kProbeNames[row][column],
          .rare = outcome != WorkOutcome::kHappened || fault == Fault::kRestartReuse};
}

std::vector<flow::ProbePoint> fault_probes() {
  std::vector<flow::ProbePoint> all;
  for (uint32_t fault = 1; fault < kFaultCount; ++fault) {
    for (uint32_t outcome = 0; outcome < kWorkOutcomes; ++outcome) {
      const auto point = fault_probe(static_cast<Fault>(fault), static_cast<WorkOutcome>(outcome));
      if (point.id != 0) all.push_back(point);
    }
  }
  return all;
}

FaultRates draw_swarm(ChoiceSource& choices, bool checksums) {
  const StreamId stream = stream_of(kWorldHost, Subsystem::kConfig);
  FaultRates rates;
  // 1 = faults are on, so that the dull outcome is a quiet seed.
  const bool noisy = choices.chance(stream, "swarm.noisy", 800'000);
  for (uint32_t i = 1; i < kFaultCount; ++i) {
    const auto fault = static_cast<Fault>(i);
    // Drawn whether used or not: one fault's switch does not move the others' draws.
    const bool on = choices.chance(stream, fault_name(fault), 500'000);
    int64_t most = 20'000;
    switch (fault_class(fault)) {
      case FaultClass::kWork:
        most = 20'000;
        break;
      case FaultClass::kPlane:
        most = 100'000;
        break;
      case FaultClass::kControl:
        most = 50'000;
        break;
      case FaultClass::kWorld:
        most = 50'000;
        break;  // of the injector's ticks
      case FaultClass::kNone:
      case FaultClass::kNatural:
        break;
    }
    if (fault == Fault::kDestroyFails) most = 5'000;  // a poisoned destination ends its process
    const int64_t rate = choices.log_uniform(stream, "swarm.rate", 100, most);
    const bool natural = fault_class(fault) == FaultClass::kNatural;
    const bool unseen = fault == Fault::kWrongPages || fault == Fault::kNotVisible;
    if (!noisy || !on || natural || (unseen && !checksums)) continue;
    rates.set(fault, static_cast<uint32_t>(rate));
  }
  return rates;
}

}  // namespace weightlane::sim
