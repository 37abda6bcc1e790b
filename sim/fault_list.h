// Every fault that one-sided verbs can come with (F1-F32), as an enum value with a name, a rate and
// probes.
//
// What a fault does is written where it happens (queue_pair.cc, read_work.cc, control_plane.cc,
// fault_injector.cc). Natural faults are not drawn: they follow from others, and a probe says that
// they came to pass. Some faults are of machinery that this design does not have; they stand here
// as what they would do to us:
//
//   F21  no flag in memory is ever polled; data that lands in another order than posted (S4) is
//        what relaxed ordering comes to when only completions count
//   F26  a READ has one piece of local memory, never a list; what is left is a READ that the
//        provider refuses as our mistake: any of the four local statuses, nothing executed
//   F30  a failed receive leaves old and new mixed in the application's tensors: the call fails,
//   the
//        stamp is gone, and the workload scribbles over all of it
//   F31  there are no credits; returned too early they let a source change memory under READs in
//        flight, and that is counted here: executed after a write that came after their post
//   F32  a local error takes all of a host's queue pairs at once, and new ones are short for a
//   while
//
// Re-registration (half of F17 and F19) never happens: regions are registered once; a stale key and
// a failed registration do. F18 and F20 come only with checksums on, for nothing else can see them.
//
// Work faults are drawn once per READ, control faults once per message, world faults once per tick
// of the injector.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weightlane::sim {

// X(enumerator, "name for people", class). Order is part of the trace format: append only.
#define WL_SIM_FAULTS(X)                                               \
  X(kAckLost, "F1 acknowledgement lost", kWork)                        \
  X(kRequestLost, "F2 request lost", kWork)                            \
  X(kDuplicate, "F3 duplicate executed", kWork)                        \
  X(kSlowPair, "F7 slow pair", kWork)                                  \
  X(kGoodputNil, "F9 no goodput", kWork)                               \
  X(kBadStatus, "F10 error of any status", kWork)                      \
  X(kCqOverrun, "F22 completion queue overrun", kWork)                 \
  X(kFirmwareHang, "F28 firmware hang", kWork)                         \
  X(kFirmwareFatal, "F28 all fatal", kWork)                            \
  X(kWrongPages, "F18 wrong pages", kWork)                             \
  X(kNotVisible, "F20 not visible at completion", kWork)               \
  X(kSendQueueFull, "F23 send queue full", kPlane)                     \
  X(kNoQueuePair, "F24 out of queue pairs", kPlane)                    \
  X(kSpuriousWake, "F25 spurious wake", kPlane)                        \
  X(kHelloLost, "connect request lost", kPlane)                        \
  X(kWelcomeLost, "connect reply lost", kPlane)                        \
  X(kCloseLost, "close notice lost", kPlane)                           \
  X(kDestroySlow, "F27 slow destroy", kPlane)                          \
  X(kDestroyFails, "destroy fails", kPlane)                            \
  X(kStaleKey, "F17 stale key", kPlane)                                \
  X(kKeyReused, "S12 key value reused", kPlane)                        \
  X(kRegistrationFails, "F19 registration fails", kPlane)              \
  X(kMessageLost, "control message lost", kControl)                    \
  X(kReplyLost, "control reply lost", kControl)                        \
  X(kConnectionBreaks, "control connection breaks", kControl)          \
  X(kConnectHangs, "control connect hangs", kControl)                  \
  X(kCrashMemoryFirst, "F10 crash, memory first", kWorld)              \
  X(kCrashQueuePairFirst, "F10 crash, queue pairs first", kWorld)      \
  X(kCrashMachine, "F10 machine gone", kWorld)                         \
  X(kRestartReuse, "F11 restart reuses names", kWorld)                 \
  X(kPause, "F12 process paused", kWorld)                              \
  X(kFlapShort, "F4 short flap", kWorld)                               \
  X(kFlapLong, "F4 long flap", kWorld)                                 \
  X(kAddressChange, "F5 address change", kWorld)                       \
  X(kPathMigration, "F8 path migration", kWorld)                       \
  X(kDataPartition, "F6 data plane cut", kWorld)                       \
  X(kControlPartition, "F6 control plane cut", kWorld)                 \
  X(kFullPartition, "both planes cut", kWorld)                         \
  X(kOneWayPartition, "F6 one-way cut", kWorld)                        \
  X(kLowSpeed, "F29 host at low speed", kWorld)                        \
  X(kFence, "fence by the source", kNatural)                           \
  X(kDeregistered, "F16 deregistered under a READ", kNatural)          \
  X(kPeerGone, "F10 peer gone", kNatural)                              \
  X(kPathDown, "path down", kNatural)                                  \
  X(kFlushed, "S2 flushed after an error", kNatural)                   \
  X(kDestroyed, "destroyed by its owner", kNatural)                    \
  X(kLocalMistake, "local error", kNatural)                            \
  X(kPostMistake, "F26 refused as a local mistake", kWork)             \
  X(kWakeLate, "F25 completion event late", kPlane)                    \
  X(kReconnectStorm, "F32 reconnect storm", kWorld)                    \
  X(kSwizzle, "hosts cut off one by one", kWorld)                      \
  X(kLeftUnderReads, "F13 left while READs are in flight", kNatural)   \
  X(kHolderWaits, "F14 reader died, its source holds on", kNatural)    \
  X(kTorn, "F15 torn across a mutation", kNatural)                     \
  X(kLandedAhead, "F21 landed out of order", kNatural)                 \
  X(kMixedAfterFailure, "F30 failed after bytes had landed", kNatural) \
  X(kChangedUnderRead, "F31 memory changed under a READ", kNatural)

enum class FaultClass : uint8_t { kNone, kWork, kPlane, kControl, kWorld, kNatural };

enum class Fault : uint8_t {
  kNone,
#define WL_SIM_FAULT_VALUE(name, text, kind) name,
  WL_SIM_FAULTS(WL_SIM_FAULT_VALUE)
#undef WL_SIM_FAULT_VALUE
};
#define WL_SIM_FAULT_COUNT(name, text, kind) +1
constexpr uint32_t kFaultCount = 1 WL_SIM_FAULTS(WL_SIM_FAULT_COUNT);
#undef WL_SIM_FAULT_COUNT

const char* fault_name(Fault fault);
FaultClass fault_class(Fault fault);

// Per million opportunities; 0 = off. Work faults share one draw, so their sum must stay below a
// million.
class FaultRates {
 public:
  constexpr uint32_t of(Fault fault) const { return per_million_[static_cast<size_t>(fault)]; }
  constexpr void set(Fault fault, uint32_t per_million) {
    per_million_[static_cast<size_t>(fault)] = per_million;
  }
  constexpr bool operator==(const FaultRates&) const = default;

 private:
  std::array<uint32_t, kFaultCount> per_million_{};
};

// How one READ ended: how much of it was executed, and what its reader was told.
enum class WorkOutcome : uint8_t {
  kFullySuccess,
  kNotError,
  kPartlyError,
  kFullyError,
  kNotFlushed,
  kPartlyFlushed,
  kFullyFlushed,
  kNotNothing,  // no completion until destroy
  kPartlyNothing,
  kFullyNothing,
  kHappened,  // faults that are not of one READ
};
constexpr uint32_t kWorkOutcomes = 11;

}  // namespace weightlane::sim
