// The places in ros/ that a campaign must have seen. One table; ids 256 and up are this layer's.
#pragma once

#include <array>

#include "flow/runtime.h"

namespace weightlane::ros::probes {

#define WL_ROS_PROBES(X)                                             \
  X(kOpenRepeated, "ros.open.repeated", false)                       \
  X(kOpenOccupied, "ros.open.occupied", false)                       \
  X(kOpenBuried, "ros.open.after_eviction", true)                    \
  X(kStaleSession, "ros.request.stale_session", true)                \
  X(kUnknownClient, "ros.request.unknown_incarnation", false)        \
  X(kRepeated, "ros.request.repeated", false)                        \
  X(kEvicted, "ros.client.evicted", false)                           \
  X(kClosed, "ros.client.closed", false)                             \
  X(kTimeGap, "ros.server.time_gap", true)                           \
  X(kCallMismatch, "ros.call.mismatch", false)                       \
  X(kCallPoisoned, "ros.call.poisoned", false)                       \
  X(kMissingMember, "ros.call.missing_member", true)                 \
  X(kCallTimeout, "ros.call.timeout", false)                         \
  X(kLayoutMismatch, "ros.call.layout_mismatch", false)              \
  X(kFallenBehind, "ros.call.fallen_behind", true)                   \
  X(kContentJoined, "ros.publish.joined_content", false)             \
  X(kContentRenewed, "ros.publish.renewed_content", true)            \
  X(kUpdateNothing, "ros.update.nothing", false)                     \
  X(kUpdateDecided, "ros.update.decided", false)                     \
  X(kQueued, "ros.replicate.queued", false)                          \
  X(kSeedBegun, "ros.seed.begun", false)                             \
  X(kSeedSkipped, "ros.seed.skipped", false)                         \
  X(kSeedKept, "ros.seed.kept_last_copy", false)                     \
  X(kSeedLeftToOthers, "ros.seed.left_to_others", false)             \
  X(kSeedOverdue, "ros.seed.overdue", true)                          \
  X(kFromPartial, "ros.assign.from_partial", false)                  \
  X(kRerouted, "ros.assign.rerouted", false)                         \
  X(kRetriedSame, "ros.assign.retried_same_source", false)           \
  X(kMixedSources, "ros.assign.mixed_sources", true)                 \
  X(kYielded, "ros.drain.yield", false)                              \
  X(kAbandoned, "ros.assign.abandoned", false)                       \
  X(kUnavailable, "ros.replicate.unavailable", false)                \
  X(kCommitted, "ros.replicate.committed", false)                    \
  X(kAbortedCommitted, "ros.abort.after_commit", true)               \
  X(kDrainWaited, "ros.drain.waited", false)                         \
  X(kFenced, "ros.source.fenced", false)                             \
  X(kConnectRefused, "ros.source.refused", false)                    \
  X(kSealed, "ros.read.sealed", false)                               \
  X(kSealBroken, "ros.read.seal_broken", false)                      \
  X(kStalled, "ros.read.stalled", false)                             \
  X(kCaughtUp, "ros.read.caught_up", false)                          \
  X(kReadFailed, "ros.read.failed", false)                           \
  X(kResumed, "ros.read.resumed_prefix", false)                      \
  X(kQuarantined, "ros.read.quarantined", false)                     \
  X(kPoisoned, "ros.read.destination_poisoned", true)                \
  X(kQueueFull, "ros.read.queue_full", true)                         \
  X(kNeverOpened, "ros.read.never_opened", false)                    \
  X(kDigestWaited, "ros.read.digest_waited", true)                   \
  X(kDigestMismatch, "ros.read.digest_mismatch", true)               \
  X(kReconnected, "ros.session.reconnected", false)                  \
  X(kOutcomeUnknown, "ros.session.outcome_unknown", false)           \
  X(kServerLost, "ros.session.server_lost", false)                   \
  X(kReopened, "ros.handle.reopened", false)                         \
  X(kOffloadDirected, "ros.retention.directed", false)               \
  X(kOffloadJoined, "ros.retention.joined", false)                   \
  X(kOffloadStale, "ros.retention.stale_token", true)                \
  X(kOffloaded, "ros.retention.offloaded", false)                    \
  X(kOffloadFailed, "ros.retention.failed", false)                   \
  X(kOffloadLimit, "ros.retention.limit", true)                      \
  X(kOffloadLate, "ros.retention.late", true)                        \
  X(kOffloadBroken, "ros.retention.broken", true)                    \
  X(kOffloadReleased, "ros.retention.released", false)               \
  X(kOffloadUnwanted, "ros.retention.unwanted", true)                \
  X(kHeirChosen, "ros.retention.heir", true)                         \
  X(kWithdrawRefused, "ros.retention.refused", false)                \
  X(kRetentionDropped, "ros.retention.dropped", true)                \
  X(kKeptOnFailure, "ros.retention.kept_on_failure", true)           \
  X(kClosedAnyway, "ros.close.at_deadline", true)                    \
  X(kRewound, "ros.rewind", false)                                   \
  X(kRewindRefused, "ros.rewind.refused", false)                     \
  X(kWaited, "ros.wait.held", false)                                 \
  X(kReopenFailed, "ros.handle.reopen_failed", true)                 \
  X(kSuperseded, "ros.handle.superseded", true)                      \
  X(kAssignedLate, "ros.handle.assigned_too_late", false)            \
  X(kYieldedUntaken, "ros.handle.yield_before_it_began", false)      \
  X(kAbandonedUntaken, "ros.handle.abandoned_before_it_began", true) \
  X(kOtherContent, "ros.handle.rerouted_to_other_content", true)     \
  X(kDrainedAlone, "ros.handle.drained_without_server", true)        \
  X(kPairBroke, "ros.read.queue_pair_broke", true)                   \
  X(kDigestsLost, "ros.read.digests_unreadable", true)               \
  X(kDigestsGone, "ros.read.digests_after_the_stamp", true)          \
  X(kStaleAnswer, "ros.session.stale_answer", true)                  \
  X(kPollReplaced, "ros.server.poll_replaced", false)                \
  X(kOffloadAnnounced, "ros.retention.announced", true)              \
  X(kServerChanged, "ros.session.server_changed", false)             \
  X(kMovedBack, "ros.session.moved_back", false)                     \
  X(kTooYoungToKnow, "ros.server.too_young_to_know", false)          \
  X(kAnnounced, "ros.announce.adopted", false)                       \
  X(kAnnouncedInPlace, "ros.announce.in_place", false)               \
  X(kAnnounceRefused, "ros.announce.refused", false)                 \
  X(kAnnouncedPartial, "ros.announce.partial", false)                \
  X(kAnnouncedReading, "ros.announce.reading_known", false)          \
  X(kAnnouncedOutcome, "ros.announce.outcome_told", false)           \
  X(kForeignDone, "ros.announce.done_of_another_server", false)      \
  X(kTransferResumed, "ros.announce.transfer_resumed", false)        \
  X(kForeignReaders, "ros.handle.drains_foreign_readers", false)

enum : uint16_t {
  kFirstRosProbe = 256,
#define WL_PROBE_ID(symbol, name, rare) symbol##Id,
  WL_ROS_PROBES(WL_PROBE_ID)
#undef WL_PROBE_ID
};

#define WL_PROBE_POINT(symbol, name, rare) \
  inline constexpr flow::ProbePoint symbol{symbol##Id, name, rare};
WL_ROS_PROBES(WL_PROBE_POINT)
#undef WL_PROBE_POINT

inline constexpr std::array kAll = {
#define WL_PROBE_LISTED(symbol, name, rare) symbol,
    WL_ROS_PROBES(WL_PROBE_LISTED)
#undef WL_PROBE_LISTED
};
#undef WL_ROS_PROBES

}  // namespace weightlane::ros::probes
