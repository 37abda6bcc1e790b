// Queue pairs and the READs on them.
//
// READs of a pair are carried out one after the other, or up to DataConfig::lanes of them at once,
// so that a look may be executed before data that was posted earlier. A READ is cut into up to four
// pieces; each is executed at the source at a drawn time between post and the end of its
// transmission, and placed at the destination at a drawn time between that and the completion, in
// any order (S4, S6). Completions come in the order of posting. What goes wrong:
//
//   path cut        the READ waits; open again before the retry time: executed anew (S7), else
//   RETRY_EXC peer gone       REM_ACCESS at once or RETRY_EXC after the retry time, by the kind of
//   crash (F10) other life      the same number and key there: success with other bytes (F11) fence
//   READs begun before it may get through, the others fail key gone        REM_ACCESS, perhaps
//   after a part was executed (F16) work faults     drawn per READ, see Fault
//
// The first error breaks the pair: what follows is flushed in order, though it may have been
// executed and placed, until the very moment of its flush. destroy() takes its drawn time, and
// until it ends READs go on landing.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "net/data_plane.h"
#include "sim/bandwidth.h"
#include "sim/fault_list.h"
#include "sim/memory.h"
#include "sim/observer.h"
#include "sim/timer_queue.h"

namespace weightlane::sim {

class World;
class DataNet;
class SimQueuePair;
class SimPassiveQueuePair;
class SimDataPlane;
struct ConnectAttempt;
struct QueuePairState;
struct Region;

constexpr uint32_t kPiecesMost = 4;
constexpr SpanRange kFlushDelay{nanos(100), millis(1)};

enum class QueuePairEvent : uint8_t { kOpened, kBroken, kDestroying, kDestroyed, kFenced, kClosed };

// A part of a READ: granules or words.
struct Piece {
  uint32_t first = 0;  // unit within the READ
  uint32_t count = 0;
  uint8_t executed = 0;  // how often
  bool landed = false;
};

// What a READ does next.
enum class ActionKind : uint8_t { kExecute, kLand, kFinish };
struct Action {
  int64_t at = 0;
  ActionKind kind = ActionKind::kExecute;
  uint8_t piece = 0;
  bool ends_transmission = false;  // the next READ may begin
};

enum class WorkPhase : uint8_t {
  kQueued,
  kRunning,   // its actions are scheduled
  kWaiting,   // for a path, or for the retry time to pass
  kFinished,  // waits for its turn to complete
};

struct Work {
  explicit Work(World& world);
  static void on_alarm(void* self);
  void reset(QueuePairState& owner, const net::ReadWork& r);
  // 0 not, 1 partly, 2 fully executed.
  uint32_t executed_part() const;

  QueuePairState* pair = nullptr;
  net::ReadWork read;
  Nanos posted;
  WorkPhase phase = WorkPhase::kQueued;
  bool begun = false;  // before a fence: may outlive it
  bool outlives_fence = false;
  bool transmitted = false;
  bool completed = false;      // and still landing (F20)
  bool wrong_pages = false;    // F18
  bool changed = false;        // F31: executed after a write that came after its post
  bool torn = false;           // F15: and in part before
  Fault fault = Fault::kNone;  // what it suffered
  net::CompletionStatus status = net::CompletionStatus::kSuccess;
  net::CompletionStatus status_at_end = net::CompletionStatus::kSuccess;
  Nanos give_up;       // kWaiting: when the NIC stops retrying
  uint32_t units = 0;  // granules or words
  uint32_t pieces = 0;
  std::array<Piece, kPiecesMost> piece{};
  std::array<Action, 4 * kPiecesMost + 1> actions{};
  uint32_t actions_begin = 0;
  uint32_t actions_end = 0;
  std::vector<uint64_t> values;  // executed, by unit
  std::vector<GranuleBytes> real;
  Alarm alarm;
};

enum class PairPhase : uint8_t {
  kConnecting,  // accepted, the answer is on its way
  kReady,
  kBroken,  // flushing or flushed
  kDestroying,
  kPoisoned,  // could not be destroyed: lands for ever
  kOrphaned,  // dropped without destroy by a live process: goes on until its READs are over
  kDead,
};

// One queue pair, as the network sees it; outlives both ends.
struct QueuePairState {
  QueuePairState(DataNet& net, QueuePairId id, HostId reader, HostId source);

  // The reader's verbs.
  net::PostResult post(const net::ReadWork& read);
  bool accepts() const { return phase == PairPhase::kReady; }
  // Nothing lands any more; the source hears of it, perhaps.
  void die(bool tell_source);
  // Every READ under way ends here, without a completion.
  void drop_works();
  // The source's end was dropped.
  void fence();
  // A cut path is open again.
  void path_changed();
  // F32: what is under way ends with a local error, or the pair breaks while idle.
  void local_error();

  // READs.
  void begin(Work& work);
  void run_actions(Work& work);

  DataNet& net;
  QueuePairId id;
  HostId reader;
  uint32_t reader_life;
  HostId source;
  uint32_t source_life;
  uint32_t passive_number = 0;  // at the source
  PairPhase phase = PairPhase::kConnecting;
  bool fenced = false;
  Nanos fence_holds;          // a plane without fences: until then READs still get through
  bool path_lost = false;     // F5
  bool landed_ahead = false;  // F21: has been counted
  bool hung = false;          // no completion comes any more (F22, F28)
  bool fatal = false;         // F28: every READ ends with FATAL
  uint32_t slowdown = 1;      // F7
  Nanos retry;                // drawn: how long the NIC retries
  SimQueuePair* active = nullptr;
  SimPassiveQueuePair* passive = nullptr;
  ConnectAttempt* attempt = nullptr;  // until the reader has taken the pair
  flow::Signal* wake = nullptr;
  FlowId flow;
  Nanos link_free;          // several lanes share the link: when the last bulk transmission ends
  std::deque<Work*> works;  // posted and not completed, in order
  std::vector<Work*> late;  // F20: completed, and still landing
  std::deque<net::Completion> completions;
  Alarm flush_alarm;
  Alarm close_alarm;  // the source hears that the reader has gone
  Alarm wake_alarm;   // F25

 private:
  friend struct Work;
  enum class Path : uint8_t { kOpen, kReplyCut, kCut, kFenced, kGone, kRefused };
  Path look(const Work& work) const;
  void source_hears();

  // read_work.cc
  net::CompletionStatus check_locally(Work& work) const;
  void draw_pieces(Work& work);
  Nanos draw_schedule(Work& work, Nanos extra);  // when it will complete
  void start_actions(Work& work);
  void ensure_flow(const Work& work);
  void transmission_ends(Work& work);
  bool lane_free() const;
  void late_landed(Work& work);
  void obstructed(Work& work, Path path);
  void wait_for_path(Work& work, Fault why);
  void retry_now(Work& work);
  void next_retry(Work& work);
  void again(Work& work);
  void fail(Work& work, net::CompletionStatus status, Fault why, Nanos at);
  void suffer(Work& work, Fault fault);
  void bend_schedule(Work& work, Fault fault, Nanos completion);
  static void cut_short(Work& work, uint32_t executed, uint32_t landed);
  static void end_at(Work& work, Nanos at);
  bool execute(Work& work, Piece& piece);
  bool execute_units(Work& work, Piece& piece);
  bool land(Work& work, Piece& piece);
  uint64_t wrong_page(const Region& region, uint64_t granule) const;
  void report_executed(const Work& work, const Region& from, uint64_t at, uint64_t value) const;
  uint64_t checksum_of(const Work& work) const;

  // queue_pair.cc
  void finish(Work& work);
  void complete_in_order();
  void complete(Work& work, net::CompletionStatus status);
  void tell_reader();
  void set_broken();
  void flush();
  void stop_flow();
  void count_outcome(const Work& work, bool completed, net::CompletionStatus status) const;
  World& world() const;
  StreamId stream() const;
};

// The reader's handle.
class SimQueuePair final : public net::QueuePair {
 public:
  explicit SimQueuePair(QueuePairState& state) : state_(&state) {}
  ~SimQueuePair() override;
  net::Capabilities capabilities() const override;
  std::string_view transport() const override { return "sim"; }
  net::PostResult post_read(const net::ReadWork& work) override;
  std::optional<net::Completion> poll() override;
  flow::Task<Result<Done>> destroy(Nanos deadline) override;
  QueuePairId id() const { return id_; }

 private:
  friend struct QueuePairState;
  friend class DataNet;
  static Error poisoned();
  QueuePairState* state_;  // null once destroyed
  QueuePairId id_;
};

// The source's handle.
class SimPassiveQueuePair final : public net::PassiveQueuePair {
 public:
  SimPassiveQueuePair(QueuePairState& state, SimDataPlane& plane);
  ~SimPassiveQueuePair() override;
  net::RemoteRegion describe(net::RegionId region) override;
  bool closed() const override { return closed_; }
  std::string_view transport() const override { return "sim"; }

 private:
  friend struct QueuePairState;
  friend class DataNet;
  QueuePairState* state_;  // null once the pair is gone
  SimDataPlane& plane_;
  uint32_t number_;
  bool closed_ = false;
};

}  // namespace weightlane::sim
