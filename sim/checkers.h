// Checkers: the promises, looked after in every step of every run.
//
// They see the world (WorldObserver), every shard handle (HandleObserver) and the reference server
// (ServerObserver), and keep their own idea of what is true:
//
//   P1  whenever a shard's control block says (stamp, proven), the granules below `proven` carry
//       tags of publications of exactly that content, each in its place. Looked at whenever
//       `proven` grows, when a call succeeds, and once more before the stamp goes.
//   P2  memory that was handed back is scribbled over at once by the workload, with tags that
//   belong
//       to no publication: a READ of them that is accepted shows up as P1. A call that hands back
//       ends with the stamp at 0, within its bound.
//   P3  the n-th replicate or update of all shards has one outcome; success comes after the last
//       shard is sealed; after a failure no stamp stands.
//   P4  what becomes visible was published by every shard, or sealed by every shard.
//   P6  every call ends within its bound, counted without the time its process was paused.
//   P7  with pipelining a replica feeds one reader replica at most; "reads from" has no cycle and
//       ends in a whole copy.
//   P8  what crosses into a datacenter, and when it must not: wide_checker.h.
//   P9  a server that has just started says of no version that nobody holds it; what a shard is
//   said
//       to hold it has held, whatever servers come between. (That all meet again: Schedule::meet.)
//   P10 a repeated request leaves the directory as it was.
//
// The first violation stops the world. Nothing here changes the run: no draw, no event.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ros/directory.h"
#include "ros/observer.h"
#include "sim/observer.h"
#include "sim/plan.h"
#include "sim/retention_checker.h"
#include "sim/wide_checker.h"
#include "sim/world.h"

namespace weightlane::sim {

struct Violation {
  std::string promise;  // "P1"
  std::string text;
  Nanos at;
  uint32_t site = 0;  // line of the check that fired: what `shrink` keeps the same
};

// Receives the story of a run, a line per state transition; see sim/story.h.
class StoryTeller {
 public:
  virtual ~StoryTeller() = default;
  virtual void line(Nanos at, const std::string& who, const std::string& what,
                    const std::string& detail) = 0;
};

constexpr const char* kModel = "m";  // every replica of a run is of this model

std::string describe(net::Content content);  // "v3 (0b1ba140)"
std::string seconds_text(Nanos span);        // "1.234 s"

// Index of one worker: one shard of one replica, through all lives of its process.
using WorkerId = StrongId<struct WorkerTag, uint32_t>;

// Tags of granules: which publication, which shard, which place in the canonical stream.
using PublicationId = StrongId<struct PublicationTag, uint32_t>;  // 0: none
constexpr uint64_t kScribble = uint64_t{0xffffff} << 40;
constexpr uint64_t make_tag(PublicationId publication, uint32_t shard, uint64_t place) {
  return uint64_t{publication.value} << 40 | uint64_t{shard} << 32 | place;
}

// A row of granules in the memory of a worker, at its place in the canonical stream.
struct TensorRow {
  uint64_t address = 0;
  uint64_t first = 0;  // place of its first granule
  uint64_t count = 0;
};

class Checkers final : public WorldObserver {
 public:
  // Both outlive it. Observes the world until it is destroyed.
  Checkers(World& world, const Plan& plan);
  ~Checkers() override;

  void tell(StoryTeller* story) { story_ = story; }
  const std::optional<Violation>& violation() const { return violation_; }
  void violate(const char* promise, const std::string& text, uint32_t site = __builtin_LINE());

  // ---- The cluster, as the workload builds it.
  WorkerId add_worker(HostId host, uint32_t replica, uint32_t shard, std::string name);
  ros::HandleObserver* watch(WorkerId worker);
  // The servers, in the order of every list.
  void add_server(HostId host, std::string address);
  ros::ServerObserver* watch_server(uint32_t server);
  void server_started(uint32_t server, const ros::Directory* directory);
  void server_stopped(uint32_t server) { servers_[server].directory = nullptr; }

  // ---- What the workload does.
  void memory_laid_out(WorkerId worker, std::vector<TensorRow> rows, uint64_t granules);
  PublicationId new_publication();
  // The tensors of `worker` carry this publication, or (0) what it received before.
  void will_publish(WorkerId worker, PublicationId publication, VersionId version);
  void handle_gone(WorkerId worker);
  // A call of the workload that must end within `bound`, not counting pauses of its process.
  void call_began(WorkerId worker, const char* what, Nanos bound);
  void call_ended(WorkerId worker);
  // A replicate of one version by its number has succeeded.
  void asked_and_got(WorkerId worker, VersionId asked, VersionId got);
  // A call outside the script has answered with an error.
  void told_of_loss(WorkerId worker) { views_[worker.value].untold = false; }
  // The caller was told that it succeeded: the last call of this worker must say so too.
  void receive_succeeded(WorkerId worker) {
    const View& view = views_[worker.value];
    if (!view.last_ok)
      violate("P3", view.name + ": the caller was told of a success that nobody decided");
  }
  void wrong_state_allowed(WorkerId worker, const char* answer) {
    violate("P3", views_[worker.value].name + ": a call that its state forbids was answered with " +
                      answer);
  }
  // The latest version was asked for when the server was at `generation` (in `epoch`).
  void latest_received(WorkerId worker, Generation generation, uint64_t epoch);
  // The machine of this worker's process will be taken away: what it gives up now, it loses.
  void notice_given(WorkerId worker) { views_[worker.value].noticed = true; }
  // Those that are late by now, if any: a violation of P6 (hand-backs: P2).
  void check_bounds();

  RetentionChecker& retention() { return retention_; }
  const RetentionChecker& retention() const { return retention_; }
  // Whether a tag is that of `content` at this place of a shard; false positives: none.
  bool tag_is_of(uint32_t shard, net::Content content, uint64_t tag, uint64_t place);
  bool reads_lie() const { return reads_lie_; }
  // This shard is in close(), and nothing forces it.
  bool closes_at_leisure(std::string_view replica, uint32_t shard);
  uint64_t epoch() const { return server_starts_; }
  // There was one server from the beginning to now: nothing was forgotten by anybody.
  bool one_server() const { return servers_.size() == 1 && server_starts_ == 1; }
  uint64_t transfers() const { return transfers_; }
  uint64_t largest_call(uint32_t replica) const { return replicas_[replica].largest_call; }
  bool in_call(WorkerId worker) const { return views_[worker.value].in_call; }
  // Null: that server is down. Without a number: of the first one that is not.
  const ros::Directory* directory(uint32_t server) const { return servers_[server].directory; }
  const ros::Directory* directory() const;
  // What the servers still know, when every handle is closed; empty: nothing.
  std::string remembered() const;
  const std::string& replica_name(uint32_t replica) const { return replicas_[replica].name; }
  std::string describe_worker(WorkerId worker) const;

  // ---- WorldObserver
  void on_crashed(Nanos at, HostId host, uint32_t life) override;
  void on_word_stored(Nanos at, HostId host, net::RegionId region, uint32_t index,
                      uint64_t value) override;
  void on_started(Nanos at, HostId host, uint32_t life) override;
  void on_paused(Nanos at, HostId host) override;
  void on_resumed(Nanos at, HostId host) override;
  void on_fault(Nanos at, Fault fault, HostId host, HostId other) override;
  void on_healed(Nanos at) override;
  void on_trace(Nanos at, HostId host, const flow::TraceEvent& event) override;
  const std::vector<std::string>& faults_seen() const { return faults_seen_; }
  void record_faults(bool on) { record_faults_ = on; }

 private:
  class Watch;
  class ServerWatch;
  struct Server {
    std::string address;
    const ros::Directory* directory = nullptr;
    Nanos started;
    std::shared_ptr<ros::ServerObserver> watch;
  };
  // One shard as it was last seen. What a crash can't undo stays until the next life overwrites it.
  struct View {
    std::string name;
    HostId host;
    uint32_t replica = 0;
    uint32_t shard = 0;
    std::vector<TensorRow> rows;
    uint64_t granules = 0;
    Stamp stamp;
    net::RegionId control;  // whose word 0 was given this stamp
    net::Content content;
    uint64_t proven = 0;    // granules
    bool received = false;  // what `content` names came by READs, not from the application
    bool in_call = false;
    bool server_lost = false;
    bool untold = false;  // what it held was taken back outside a call, and no call has said so
    bool noticed = false;
    bool away = false;   // from one server, and not yet at the next
    bool moved = false;  // to another server, in this call
    Nanos call_started;
    bool last_ok = false;
    CallNumber number;
    CallNumber held;  // the call that began what the stamp stands for
    net::CallKind kind = net::CallKind::kPublish;
    uint64_t lineage = 0;       // of its numbers, as it was told last
    uint64_t group = 0;         // the same, when its call began
    std::string server;         // where its handle is
    net::Content sealed;        // the last content that was wholly here
    std::vector<uint64_t> had;  // ids of all of them
    PublicationId publication;
    VersionId publishing;
    // The call of the workload under way.
    const char* call = nullptr;
    Nanos call_began;
    Nanos call_bound;
    Nanos paused_then;
  };
  // The n-th call of a replica.
  struct CallRecord {
    uint64_t group = 0;
    CallNumber number;
    uint32_t sealed = 0;  // masks of shards
    uint32_t ended = 0;
    bool lonely = false;   // a shard failed alone
    bool settled = false;  // an outcome that must be the same for all is known
    bool ok = false;
    ErrorCode code = ErrorCode::kInvalidArgument;
    net::Content content;
  };
  struct Replica {
    std::string name;
    std::vector<WorkerId> shards;
    std::vector<CallRecord> calls;
    uint64_t largest_call = 0;
    uint64_t largest_group = 0;
  };
  struct Publication {
    std::vector<uint64_t> contents;  // ids of contents that these bytes are
  };

  // ---- ServerObserver, through ServerWatch
  void server_applied(const ros::Directory& directory);
  void server_visible(const Server& server, std::string_view replica, net::Content content);
  void server_assigned(std::string_view reader, std::string_view source, ShardIndex shard,
                       net::Content content);
  void server_decided(const Server& server, std::string_view replica, CallNumber number, bool ok,
                      ErrorCode code);
  void server_request(const Server& server, const net::Request& request, bool repeated);
  void server_story(const Server& server, const char* what, const std::string& detail);

  // ---- HandleObserver, through Watch
  void handle_opened(View& view, std::string_view server, uint64_t lineage, ros::Opening opening);
  void handle_call_started(View& view, CallNumber number, net::CallKind kind);
  void handle_call_ended(View& view, CallNumber number, net::CallKind kind, bool ok, ErrorCode code,
                         net::Content content);
  void handle_stamp(View& view, Stamp stamp, net::Content content);
  void handle_proven(View& view, Stamp stamp, net::Content content, uint64_t proven);

  CallRecord& record(View& view, CallNumber number);
  // P2: the word that readers look at says nothing any more.
  void check_control(const View& view, const char* call);
  bool check_granules(const View& view, net::Content content, uint64_t from, uint64_t to,
                      const char* when);
  void check_same_outcome(View& view, CallRecord& call, bool ok, ErrorCode code,
                          net::Content content);
  void bind(const View& view, net::Content content);
  void note_sealed(View& view, net::Content content);
  void check_drained(const View& view);
  void check_session(const net::RequestHeader& header);
  void judge_wide(const std::string& wrong) {
    if (!wrong.empty()) violate("P8", wrong);
  }
  void check_poisoned(const View& view, CallNumber number);
  void check_feeding(const ros::Directory& directory);
  uint64_t directory_digest(const ros::Directory& directory) const;
  Replica* replica_named(std::string_view name);
  // How long a call of this worker could not go on because a process stood still: its own, or a
  // server's.
  Nanos paused_total(HostId host) const;
  void story(HostId host, const char* what, const std::string& detail);
  std::string host_name(HostId host) const;

  World& world_;
  const Plan& plan_;
  RetentionChecker retention_;
  StoryTeller* story_ = nullptr;
  std::optional<Violation> violation_;
  std::vector<View> views_;
  std::vector<std::unique_ptr<Watch>> watches_;
  std::vector<Replica> replicas_;
  std::vector<Publication> publications_;
  struct Session {
    Incarnation incarnation;
    uint64_t newest = 0;
  };
  std::vector<Session> sessions_;
  std::vector<Server> servers_;
  struct Unavailable {
    std::string replica;
    CallNumber number;
    bool operator==(const Unavailable&) const = default;
  };
  std::vector<Unavailable> unavailable_;  // said by servers that had been there for long enough
  uint32_t server_starts_ = 0;
  bool assigned_ = false;  // since feeding was last looked at
  bool repeated_ = false;  // the request being applied was seen before
  uint64_t digest_before_ = 0;
  uint64_t transfers_ = 0;
  WideChecker wide_;
  bool reads_lie_ = false;    // F18, F20: only checksums, at the end, can tell
  uint64_t fitting_tag_ = 0;  // the publication found fitting last, for ...
  uint64_t fitting_content_ = 0;
  std::array<Nanos, kHostsMost> paused_since_{};
  std::array<Nanos, kHostsMost> paused_{};
  std::array<bool, kHostsMost> is_paused_{};
  uint64_t server_hosts_ = 0;  // mask of host_bit
  bool record_faults_ = false;
  std::vector<std::string> faults_seen_;
};

}  // namespace weightlane::sim
