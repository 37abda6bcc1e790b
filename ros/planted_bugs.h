// Planted bugs: mistakes in the protocol, one at a time, to see that the campaign finds them.
//
//     if (WL_BUG(kSkipSeal)) return true;  // next to the line it spoils
//
// In what ships WL_BUG(x) is the word false: the name of the bug is never seen by the compiler, the
// branch is gone before code is generated, and no object has a trace of it (a test looks). A second
// build of the same sources, with WEIGHTLANE_PLANTED_BUGS defined, is linked into
// weightlane-sim-bugs alone. There one bug at a time is switched on; none is on by default, and
// then that binary behaves as the one that ships.
//
// Use it in .cc files only: the simulator is compiled once and linked with either build.
#pragma once

#ifdef WEIGHTLANE_PLANTED_BUGS

#include <cstdint>

namespace weightlane::ros {

// sim/bugs.cc has a line of description for each.
enum class PlantedBug : uint8_t {
  kNone,
  // Real ones of this code, each with a trace in traces/.
  kUnpublishTimer,  // the rest of an unpublish is a deadline, for ever in the past
  kEvictionLate,    // what an eviction changed is settled after the request that found it
  // Others.
  kSkipSeal,            // data is accepted without looking at the stamp again
  kIgnoreStamp,         // the block is read again, the stamp not compared
  kProvenEarly,         // one's own `proven` advances before the READs completed
  kStampKept,           // memory is handed back with the stamp still valid
  kNoDrain,             // unpublish neither drains nor fences
  kSuccessUnsealed,     // success is decided when the first shard is sealed
  kPartialComplete,     // a replica that still receives counts as a copy
  kVisibleEarly,        // a version shows when its first shard is published
  kReuseBeforeDestroy,  // READs are posted into a destination before the old queue pair is
                        // destroyed
  kResumeOther,         // a re-routed reader keeps its prefix though the content is another
  kTwoReaders,          // a source is given to two readers at once
  kCycle,               // a partial replica may be fed by what it feeds
  kRepeatedApplied,     // a request that comes twice is applied twice
  kStaleSession,        // a connection that a newer one replaced is still served
  kPerShardDecision,    // `latest` is resolved by each shard for itself
  kEvictionSilent,      // readers of an evicted source are not re-routed
  kNoStall,             // a stalled transfer is never noticed
  kNoOffload,           // a retained version's last copy goes without an offload
  kSpotCounts,          // a spot replica counts as a copy
  kPartialKeeps,        // an offload that is not whole yet counts as a copy
  kOffloadPerShard,     // one shard's offload lets the whole replica go
  kOffloadDropped,      // an offload goes though it is the last copy
  kOffloadLeaks,        // an offload that nobody needs stays
  kCloseUnasked,        // close does not ask whether the version is retained
  kFailureHides,        // an update that fails before it began gives up the last copy
  kGenerationIgnored,   // after a rewind, versions of the old generation are the latest
  kSealAtCompletion,    // a look seals what had completed when it completes, not when it was posted
  kStampFromLook,  // the reader trusts the stamp that its first look shows, not the one it was told
  kReadBeyondProven,     // data is read before the look that proves it (R4)
  kProvenKept,           // a new publication leaves the old progress in the block
  kStampReused,          // a handle gives all its publications one stamp
  kConnectStale,         // a source lets readers in that want another content
  kDrainForever,         // a source waits for its readers without a deadline
  kPoisonIgnored,        // a queue pair that cannot be destroyed is forgotten (R6)
  kDigestIgnored,        // checksums are read and not compared
  kLossUntold,           // after an eviction the next call does not hear of what was lost
  kEvictedKeeps,         // an evicted shard goes on with the memory it served
  kNumberingRestarts,    // who opens again begins with call 1
  kMismatchAllowed,      // shards that ask for different versions get the one of the first
  kMissingForever,       // a group waits for its missing shard without a deadline
  kLeaseIgnored,         // silent clients are never let go
  kUnpublishShown,       // an unpublished version is not hidden
  kNextCallSpared,       // a failure that some shards did not see does not poison their next call
  kNeverForgotten,       // the server keeps every publication
  kRegionLeaked,         // unregister leaves one region registered
  kTwoSeeders,           // a version is carried into a datacenter by several at once
  kLocalReaderGoesFar,   // a reader goes to another datacenter though a copy is near
  kNewestDropped,        // the last copy of a datacenter's newest version goes for a seed
  kSeedLockKept,         // a seeder that failed keeps its place
  kReplicateSkips,       // replicate answers like update while a version is arriving
  kNegativeAtOnce,       // a server that has just started says what nobody holds
  kPartialAnnounced,     // what a shard announces is taken for whole
  kNumbersReset,         // call numbers begin again at another server
  kFitsAlways,           // an announcement is adopted whatever the others have been through
  kOutcomeIgnored,       // how a call ended under another server is not passed on
  kBegunForgotten,       // an update that has given up its old version is told "nothing newer"
  kNeverBack,            // nobody goes back to a server before the present one
  kDrainedStale,         // what another server said of its readers counts at this one
  kEarlierRead,          // who reads an earlier publication of a shard is left to meet the new one
  kFailedAdopted,        // a transfer is adopted though its call has failed here
  kCallWhileAnnouncing,  // a call begins while an announcement that lacks it is on its way
};

inline PlantedBug planted_bug = PlantedBug::kNone;

}  // namespace weightlane::ros

#define WL_BUG(bug) (::weightlane::ros::planted_bug == ::weightlane::ros::PlantedBug::bug)

#else

#define WL_BUG(bug) false

#endif
