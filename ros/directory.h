// Directory: everything the reference server knows and decides, as plain state and plain functions.
//
// apply(request, now) changes the state and answers at once; what has to reach other clients is
// queued as numbered events in their mailboxes. No coroutine, clock, lock or I/O: a rule is tested
// with a table of requests and the mailboxes after them.
//
// What it holds: clients (one per open handle), groups (a replica: num_shards members), calls (the
// n-th call of a group, P3), publications (what a group holds or receives, begun by one call),
// contents (identity of bytes), assignments (one reader shard reads one source shard; the claim
// that a drain waits for).
//
// What it keeps true after every apply and tick:
//   - a visible publication is complete: every shard published or sealed, no member lost, not
//   hidden (P4);
//   - with pipelining, all assignments of one source publication belong to one reader publication,
//   and "reads from" has no
//     cycle (P7);
//   - a call has one decision, given to every shard that makes it (P3);
//   - a client's requests change state once, whatever is repeated or late (P10).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "net/messages.h"
#include "ros/observer.h"
#include "ros/options.h"

namespace weightlane::ros {

struct Group;
struct ContentEntry;
struct Publication;

// One reader shard reads one source shard. Exists until the reader released it or was evicted.
struct Assignment {
  AssignmentId id;
  Publication* reader = nullptr;
  Publication* source = nullptr;
  ShardIndex shard;
  bool abandoned = false;  // the reader was told to stop
};

// What one shard has of a publication.
struct ShardHolding {
  bool present = false;   // the shard has made its publish call, or receives
  bool complete = false;  // published, or sealed to the end
  bool drained = false;   // its readers have left a hidden publication; the client was told
  bool needs_source = false;
  AssignmentId reading;  // as a reader; one that is not in the table is of another server (P9)
  std::string upstream;  // then: from which replica
  uint64_t avoid = 0;    // group id of the source that failed last
  Nanos retry_at;        // not the avoided source before this
  uint32_t failures_here = 0;  // of sources in its own datacenter, in this attempt
};

struct Publication {
  Group* group = nullptr;
  CallNumber number;
  ContentEntry* content = nullptr;
  bool receiving = false;  // began as a replicate or update
  bool complete = false;
  bool hidden = false;
  std::vector<ShardHolding> shards;
  std::vector<Assignment*> outgoing;  // assignments that read from it, oldest first
  uint64_t offload = 0;               // token of the offload that it waits for; 0: none
  std::string offload_failure;        // why there will be none; to be acted upon
  uint64_t seed_order = 0;  // not 0: it carries its content into the datacenter (seeding.h)
  // Scheduler's notes: the length of its chain, as of one choice.
  mutable uint64_t chain_choice = 0;
  mutable uint32_t chain = 0;

  bool serves_whole() const { return complete && !hidden; }
};

// A content: who first published it fixes its layout; it lives while a publication of it does.
struct ContentEntry {
  net::Content content;
  std::string model;
  std::string first_publisher;  // replica
  std::vector<net::LayoutSummary> layouts;
  std::vector<bool> layout_known;
  std::vector<Publication*> publications;  // oldest first
  Nanos no_copy_since = kForever;          // kForever: a whole copy is visible
  bool let_go = false;                     // retained no more: its holder chose so (kDrop)
};

// A copy in host memory that this server has asked for (directory_retention.cc).
struct Offload {
  uint64_t token = 0;
  std::string model;
  std::string replica;  // the name of its own group
  uint32_t num_shards = 0;
  net::Content content;
  uint64_t keeper = 0;   // id of the group whose processes keep it
  Nanos deadline;        // for being whole
  bool adopted = false;  // another server asked for it
};

struct ShardCall {
  bool made = false;
  bool answered = false;
  net::CallKind kind = net::CallKind::kPublish;
  net::VersionSpec version;
  net::LayoutSummary layout;
};

// The n-th call of a group.
struct GroupCall {
  CallNumber number;
  net::CallKind kind = net::CallKind::kPublish;  // of the first shard that made it
  net::VersionSpec version;
  uint32_t made = 0;
  Nanos gather_deadline = kForever;  // for the shards that have not made it
  Nanos deadline =
      kForever;  // kReplicate, kUpdate: for the whole call; the earliest of its shards'
  bool decided = false;
  bool granted = false;            // kUnpublish: what is retained is safe, the publication goes
  bool waits_for_offload = false;  // kUpdate
  bool rewound = false;            // kUpdate: from an older generation to a newer one
  net::DecidedEvent decision;
  Publication* receiving = nullptr;  // the transfer it started
  std::vector<ShardCall> shards;

  // publish and unpublish are answered shard by shard; nobody waits for the rest of an unpublish.
  bool gathers() const {
    return !decided && made < shards.size() && kind != net::CallKind::kUnpublish;
  }
  bool receives() const {
    return kind == net::CallKind::kReplicate || kind == net::CallKind::kUpdate;
  }
};

// One open handle.
struct Client {
  Incarnation incarnation;
  Group* group = nullptr;
  ShardIndex shard;
  std::string node;
  std::string endpoint;
  uint64_t session = 0;
  uint64_t last_sequence = 0;
  Nanos last_heard;
  bool suspected = false;     // its reader could not read it, and it was not heard since
  CallNumber last_call;       // the highest made
  bool last_answered = true;  // its decision is in the mailbox
  uint64_t next_event = 1;
  uint64_t sealed_bytes = 0;
  bool spot = false;
  net::RetainSpec retain;
  net::OffloadFailure on_offload_failure = net::OffloadFailure::kRefuse;
  CallNumber leaving;              // it asked to give up what this call began; 0: it did not
  uint64_t withdraw_sequence = 0;  // of that request
  bool gone = false;               // it was let go: it retains nothing any more
  std::deque<net::Event> mailbox;  // not yet acknowledged
  uint64_t handle = 0;             // which handle, through all its openings; 0: opens once
  uint64_t opening = 0;
  bool fresh = true;       // it had nothing to announce
  bool refused = false;    // what it announced did not fit
  bool homesick = false;   // it reaches a server before this one in its list
  bool sent_back = false;  // and has been told to go there
};

// A replica.
struct Group {
  uint64_t id = 0;  // order of creation
  std::string model;
  std::string replica;
  uint32_t num_shards = 0;
  bool spot = false;                        // a member is
  uint64_t offload = 0;                     // token: this is an offload; 0: an ordinary replica
  uint64_t beside = 0;                      // an offload: id of the group whose processes keep it
  std::vector<net::LayoutSummary> layouts;  // of each shard's last call that had one
  std::vector<Client*> members;             // null: absent
  std::string datacenter;
  std::map<uint64_t, GroupCall> calls;
  std::map<uint64_t, std::unique_ptr<Publication>> publications;
  // Calls up to and including this one that were not answered end with `poison` (P3: ReplicaLost
  // and Timeout).
  uint64_t poisoned_upto = 0;
  Error poison;
  // After a failover (directory_announce.cc).
  uint64_t lineage = 0;     // of its numbers
  bool adopted = false;     // its numbers began at another server
  uint64_t gone_below = 0;  // what calls before this one began is held no more
  std::vector<bool> seen;   // shards that were members here at some time

  std::string name() const { return model + "/" + replica; }
};

class Directory {
 public:
  // `observer` outlives the directory.
  Directory(ServerOptions options, BootId boot, Nanos now, ServerObserver* observer);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // A Poll is answered with the events there are, perhaps none: holding it is the shell's business.
  net::Response apply(const net::Request& request, Nanos now);
  // Leases, deadlines, retries. To be called at next_deadline() and at least every heartbeat.
  void tick(Nanos now);
  Nanos next_deadline() const { return next_deadline_; }

  bool has_events(Incarnation incarnation) const;
  // Clients whose mailbox grew, or which were evicted or superseded, since the last call.
  std::vector<Incarnation> take_woken() { return std::exchange(woken_, {}); }

  Generation generation_of(const std::string& model) const;
  // False for one lease after this server began, or woke from a pause: who has not spoken yet may
  // still come and announce what he holds, so no negative answer is given (unavailable, last copy).
  bool knows_everyone(Nanos now) const { return now >= knows_everyone_at_; }

  // For observers and checkers.
  const ServerOptions& options() const { return options_; }
  size_t clients() const { return clients_.size(); }
  size_t contents() const { return contents_.size(); }
  size_t assignments() const { return assignments_.size(); }
  const std::map<std::pair<std::string, std::string>, Group>& groups() const { return groups_; }
  const std::map<uint64_t, Client>& all_clients() const { return clients_; }
  const std::map<uint64_t, Assignment>& all_assignments() const { return assignments_; }
  const std::map<uint64_t, Offload>& all_offloads() const { return offloads_; }
  size_t rewound_models() const { return generations_.size(); }
  // Grows whenever a version comes, goes or changes its rank: a Wait is worth another look.
  uint64_t copies_changed() const { return copies_changed_; }

 private:
  friend class Scheduler;
  friend class Seeding;
  // (model, generation, version, order of creation): the last of a model is its newest.
  using ContentKey = std::tuple<std::string, uint64_t, uint64_t, uint64_t>;

  net::ResponseBody dispatch(Client& client, const net::Request& request, Nanos now);
  net::ResponseBody open(const net::Request& request, const net::OpenRequest& open, Nanos now);
  net::ResponseBody poll(Client& client, const net::PollRequest& poll);
  void leave_earlier(Client& client, const net::GroupCallRequest& request);
  net::ResponseBody group_call(Client& client, const net::GroupCallRequest& call, Nanos now);
  net::ResponseBody release(Client& client, const net::ReleaseRequest& release, Nanos now);
  net::ResponseBody abort(Client& client, const net::AbortRequest& abort, Nanos now);
  net::ResponseBody list(const net::ListRequest& list) const;
  net::ResponseBody withdraw(Client& client, const net::Request& request);
  net::ResponseBody offload_failed(const net::OffloadFailedRequest& failed);
  net::ResponseBody rewind(const net::RewindRequest& rewind);
  net::ResponseBody wait(const net::WaitRequest& wait);

  // Retention (directory_retention.cc).
  enum class Permission : uint8_t { kGo, kWait, kRefused };
  // May the group give up what it holds? kWait: not before an offload is whole. kRefused: `why`.
  Permission may_withdraw(Group& group, std::string& why, Nanos now);
  void direct_offload(Publication& publication, Nanos now);
  Group* choose_keeper(const Publication& publication);
  bool could_keep(const Group& group, const Publication& publication) const;
  // The newest content that may be asked for by this name: whole, visible, and for `latest` of the
  // present generation.
  ContentEntry* resolve(const std::string& model, const net::VersionSpec& version);
  bool retained(const ContentEntry& entry) const;
  uint32_t newer_versions(const ContentEntry& entry) const;
  bool needs_keeping(const Publication& publication) const;
  bool offload_needed(const Offload& offload, const Group* group) const;
  Publication* kept_through_failure(Group& group, const GroupCall& call) const;
  Result<Done> check_offload(const net::OpenRequest& open) const;
  void fail_offload(uint64_t token, const std::string& why);
  void drop_offload(uint64_t token, const std::string& why);
  ContentEntry* offload_content(const Group& group);
  Group* group_of_offload(const Offload& offload);
  const Publication* whole_of(const Group* group) const;
  bool offload_broken(const Group& group) const;
  void grant_unpublish(Group& group, GroupCall& call, Nanos now);
  void review_retention(Nanos now);
  void review_offloads(Nanos now);
  bool review_withdrawals(Group& group, Nanos now);
  bool withdrawing(const Group& group) const;

  // Announcements (directory_announce.cc).
  net::OpenedResponse opened(const Client& client) const;
  bool fits(const Group& group, const Client* before, const net::OpenRequest& open);
  bool fits_calls(const Group& group, const Client* before, ShardIndex shard,
                  const net::Announcement& announced) const;
  bool fits_holding(const Group& group, ShardIndex shard, const net::Announcement& announced);
  void join(Client& client, std::optional<Client> before, const net::OpenRequest& open, Nanos now);
  void refuse(Client& client, const net::Announcement& announced, Nanos now);
  void adopt(Client& client, const net::Announcement& announced, Nanos now);
  void adopt_calls(Client& client, const net::Announcement& announced, Nanos now);
  void adopt_holding(Client& client, const net::Announcement& announced, Nanos now);
  void adopt_reading(Publication& reader, ShardIndex shard);
  void drop_unannounced(Client& client, const net::Announcement& announced, Nanos now);
  void drop_reading(ShardHolding& holding, Nanos now);
  void adopt_offload(const net::OpenRequest& open, Nanos now);
  ContentEntry* find_content(const std::string& model, net::Content content);
  ContentEntry& add_content(Group& group, net::Content content);
  void release_foreign(Client& client, const net::ReleaseRequest& release, Nanos now);
  void note_homesick(Client& client, bool homesick);

  // Calls (directory_calls.cc).
  void make_publish(Client& client, GroupCall& call, const net::GroupCallRequest& request,
                    Nanos now);
  void make_unpublish(Client& client, GroupCall& call, Nanos now);
  void answer_unpublish(Client& client, GroupCall& call, Nanos now);
  void observe_withdrawal(const Publication& publication);
  void make_receive(Client& client, GroupCall& call, const net::GroupCallRequest& request,
                    Nanos now);
  bool matches_first(Client& client, GroupCall& call, const net::GroupCallRequest& request);
  void decide(Group& group, GroupCall& call, net::DecidedEvent decision);
  void answer(Client& client, GroupCall& call);
  void fail_call(Group& group, GroupCall& call, ErrorCode code, const std::string& message,
                 Nanos now);
  void poison(Group& group, ErrorCode code, const std::string& message, Nanos now);
  void forget_settled(Group& group);
  void expire_calls(Nanos now);
  Error explain_timeout(const Group& group, const GroupCall& call) const;
  std::string missing_shards(const Group& group, const GroupCall& call) const;

  // Publications (directory_holdings.cc).
  ContentEntry& content_for_publish(Group& group, VersionId version);
  Result<Done> check_layout(const ContentEntry& entry, const Group& group, ShardIndex shard,
                            const net::LayoutSummary& layout) const;
  void hide(Publication& publication, bool failed, const std::string& why, Nanos now);
  void hide_all(Group& group, bool failed, const std::string& why, Nanos now);
  void notice_drained(Publication& publication);
  void forget_publication(Publication& publication);
  void note_copies(ContentEntry& entry, Nanos now);
  void drop_assignment(Assignment& assignment, Nanos now);
  void abandon(Assignment& assignment, const std::string& why);
  void commit_if_complete(Publication& publication, Nanos now);
  void lose_member(Client& client, const std::string& why, Nanos now);
  void lose_shard(Group& group, ShardIndex shard, const std::string& message, Nanos now);
  void give_up_shard(Publication& publication, ShardIndex shard, const std::string& message,
                     Nanos now);
  bool all_shards_beyond(const Group& group, CallNumber number) const;

  void send(Client& client, net::EventBody body);
  void note_deadline(Nanos when) {
    if (when < next_deadline_) next_deadline_ = when;
  }
  void expire_leases(Nanos now);
  // How long it may be silent: a replica that only receives has less when it is suspected, because
  // it holds up its own source and everybody behind it, and nothing is lost with it.
  Nanos patience(const Client& client) const;
  Nanos gone_at(const Client& client) const;  // it is evicted then, if it is not heard before
  void settle(Nanos now);                     // runs the scheduler, drops what nobody needs
  void find_next_deadline(Nanos now);
  // Queue for sources: re-routes go before new calls, each in the order of asking.
  void enqueue(Group& group, CallNumber number, bool reroute);

  ServerOptions options_;
  BootId boot_;
  ServerObserver* observer_;
  Nanos last_tick_;
  Nanos leases_since_{0};  // silence before that proves nothing: this process did not run
  Nanos knows_everyone_at_;
  Nanos next_deadline_;
  uint64_t next_group_ = 1;
  uint64_t next_content_ = 1;
  uint64_t next_assignment_;
  uint64_t next_queue_place_ = 1;
  uint64_t choices_ = 0;  // of the scheduler
  uint64_t next_seed_ = 1;
  bool sources_changed_ = false;        // the queue is worth another look
  std::map<uint64_t, Client> clients_;  // by incarnation
  std::map<std::pair<std::string, std::string>, Group> groups_;
  std::map<ContentKey, ContentEntry> contents_;
  std::map<uint64_t, Assignment> assignments_;
  struct Waiting {
    Group* group = nullptr;
    CallNumber number;
  };
  std::map<std::pair<bool, uint64_t>, Waiting> queue_;  // (new call, place)
  std::map<uint64_t, Offload> offloads_;                // by token
  uint64_t next_offload_ = 1;
  bool retention_due_ = false;  // something has changed that retention looks at
  uint64_t copies_changed_ = 0;
  struct ModelGeneration {
    Generation generation;
    uint64_t ticket = 0;  // of the rewind that began it
  };
  std::map<std::string, ModelGeneration> generations_;  // of models that were rewound
  // (model, datacenter): since when updates there have been told to leave the seed to others.
  std::map<std::pair<std::string, std::string>, Nanos> seeds_put_off_;
  std::map<uint64_t, Nanos> buried_;  // incarnations that may not come back, until when
  std::vector<Incarnation> woken_;
};

}  // namespace weightlane::ros
