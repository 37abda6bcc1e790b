// Reader: carries out one assignment. It connects to the source, reads the stream in slices, seals
// what it has read, and advances its own `proven` over sealed bytes only.
//
// The seal. The source's stamp s came with its answer to our connect, when it was valid. Then, in
// rounds: data READs are posted below the `proven` that the last look at the control block gave; a
// look is a READ of the block posted after data completed. A look that still shows s seals the data
// that had completed before it was posted: the stamp was s before and after, stamps are never used
// twice, so the memory had not begun to change, and the `proven` of the look before belonged to s
// as well. (Not what has completed when the look does: nothing orders the execution of two READs,
// so the look may have been executed first, and then the memory changed.) Looks and data of the
// next round overlap, so there is no bubble. (DESIGN has two looks at the start, because a READ is
// not atomic over 16 bytes; the stamp that the source's CPU gives at connect stands for the first.)
//
// A reader is stalled when READs are posted and nothing completes; one that has caught up with its
// source only looks again. Whatever ends an assignment, the queue pair is destroyed before run()
// returns, so nothing can land afterwards (R5); if that cannot be reached, the shard's memory is
// poisoned.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "flow/signal.h"
#include "net/hello.h"
#include "ros/layout.h"
#include "ros/source.h"
#include "ros/window.h"

namespace weightlane::ros {

// A receive attempt: what survives a change of source.
struct Receiving {
  net::Content content;
  size_t sealed_slices = 0;
  uint64_t sealed_bytes = 0;
  std::vector<uint64_t> checksums;  // per slice, of what landed here; empty: not asked for
  bool digests_checked = false;
};

struct ReadOutcome {
  net::ReleaseKind kind = net::ReleaseKind::kFailed;
  std::string reason;
  bool corrupt = false;  // checksums differ: another source would not help
};

class Reader {
 public:
  // All outlive the reader. `wake` is notified when completions come; whoever calls stop() notifies
  // it too.
  struct Context {
    Environment environment;
    HandleName name;
    const HandleOptions* options = nullptr;
    const Layout* layout = nullptr;
    const std::vector<net::RegionId>* regions = nullptr;
    Receiving* receiving = nullptr;
    Source* own = nullptr;  // this shard as a source for others
    net::RegionId landing;  // two words for looks at the control block, one for the digests' stamp
    flow::Signal* wake = nullptr;
  };

  Reader(Context context, net::AssignedEvent assigned);
  flow::Task<ReadOutcome> run();

  // Asks run() to end. `only_if_unopened`: unless a queue pair has been opened.
  void stop(net::ReleaseKind kind, bool only_if_unopened);
  AssignmentId assignment() const { return assigned_.assignment; }
  bool opened() const { return pair_ != nullptr; }
  const std::string& source_name() const { return assigned_.source.replica; }
  std::string transport() const { return transport_; }
  // What it waits for, for people.
  std::string describe() const;

 private:
  bool stopped() const { return stop_requested_; }
  flow::Task<Result<Done>> connect();
  Result<Done> accept_welcome(std::span<const uint8_t> payload);
  flow::Task<ReadOutcome> transfer();
  flow::Task<ReadOutcome> check_digests();
  flow::Task<Result<Done>> read_words(net::RemoteRegion from, uint64_t offset, net::RegionId into,
                                      uint64_t into_offset, uint64_t length);
  void post_slices();
  void post_look();
  bool take_completions(ReadOutcome& outcome);
  void slice_completed(size_t slice, uint64_t checksum);
  bool look_completed(ReadOutcome& outcome);
  void seal(size_t slices);
  bool finished() const;
  bool idle() const { return outstanding_ == 0; }
  ReadOutcome failed(std::string reason);

  Context context_;
  net::AssignedEvent assigned_;
  net::WelcomeMessage welcome_;
  std::unique_ptr<net::QueuePair> pair_;
  std::string transport_;
  bool stop_requested_ = false;
  net::ReleaseKind stop_kind_ = net::ReleaseKind::kAbandoned;

  size_t slices_allowed_ = 0;  // whole slices below the source's proven, by the last look
  size_t next_to_post_ = 0;
  size_t completed_ = 0;     // every slice below has completed
  std::vector<bool> ahead_;  // completed out of order, from completed_ on
  size_t look_covers_ = 0;   // slices completed when the look under way was posted
  bool look_under_way_ = false;
  bool first_look_done_ = false;
  bool broken_ = false;  // a post was refused for good
  Window window_;
  uint64_t outstanding_ = 0;  // READs
  Nanos last_progress_{0};
};

}  // namespace weightlane::ros
