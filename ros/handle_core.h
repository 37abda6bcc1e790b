// HandleCore: what lives behind a ShardHandle, longer than any one caller's task.
//
// Callers' requests are jobs, done one at a time by one coroutine, the worker; a caller only waits
// for its job's promise, so dropping the caller changes nothing. Events of the server arrive beside
// that and only leave notes (CallNotes, held_.drained, a stop for the reader) that the worker looks
// at whenever `changed_` is notified.
//
// Who gives memory back: hand_back(), and nobody else. Order: drain (bounded), stamp 0, queue pairs
// destroyed, helper threads out of the memory (P2).
//
// When the session changes its server, transfers and calls under way go on: what is held, done and
// waited for is written into an Announcement (handle_failover.cc), and the new server goes on from
// there, or refuses: then the memory is handed back and the next call learns of the loss (P9).
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "flow/future.h"
#include "flow/signal.h"
#include "flow/task_set.h"
#include "ros/reader.h"
#include "ros/session.h"
#include "ros/shard_handle.h"

namespace weightlane::ros {

class HandleCore final : public SessionListener {
 public:
  HandleCore(Environment environment, OpenOptions options);
  ~HandleCore() override;

  flow::Task<Result<Done>> open(Nanos deadline);

  // Each enqueues a job; the future is broken when the handle goes.
  flow::Future<Result<Done>> register_tensors(std::vector<TensorSpec> tensors);
  flow::Future<Result<Done>> register_layout(Layout layout);
  flow::Future<Result<Done>> unregister_tensors();
  flow::Future<Result<Done>> publish(VersionId version);
  flow::Future<Result<Done>> unpublish();
  flow::Future<Result<std::optional<VersionId>>> receive(net::CallKind kind,
                                                         net::VersionSpec version, Nanos timeout);
  void give_up(std::string why);
  flow::Future<Result<Done>> close(Nanos deadline);

  // Of an offload: returns when the server said that it is not needed, when it was lost, or after
  // let_go().
  flow::Task<void> until_unneeded();
  void let_go();
  void stay() { unneeded_ = false; }

  HandleState state() const { return state_; }
  std::optional<VersionId> holds() const;
  Progress progress() const;
  std::string waits_for() const;
  uint64_t registered_bytes() const { return registered_bytes_; }
  CallNumber next_call() const { return {next_call_}; }
  bool rewound() const { return rewound_; }
  uint64_t lineage() const { return lineage_; }
  flow::Runtime& runtime() const { return *environment_.runtime; }

 private:
  // What the shard's memory holds or receives, begun by one call.
  struct Held {
    CallNumber number;
    net::Content content;
    bool drained = false;
    bool receiving = false;
    bool whole = false;    // published, or sealed to the end and verified
    bool leaving = false;  // hand_back() is under way
    bool known = true;     // the server that is asked now has been told of it
    bool moved = false;    // readers of an earlier server may be about
  };
  // What the server said about the call under way.
  struct CallNotes {
    CallNumber number;  // 0: no call
    net::CallKind kind = net::CallKind::kPublish;
    net::GroupCallRequest request;
    Nanos started{0};
    bool begun = false;                   // an assignment was taken up
    std::optional<std::string> given_up;  // by its caller, in these words
    std::optional<net::DecidedEvent> decided;
    std::optional<net::AssignedEvent> assigned;  // not taken up yet
  };
  template <typename T>
  using Job = flow::Promise<Result<T>>;

  void on_event(const net::Event& event) override;
  void on_rejected(const net::RequestBody& body, const net::Failure& failure) override;
  void on_left(const std::string& why) override;
  void on_session_ended() override;
  net::Announcement announcement() override;
  void on_reopened(const net::OpenedResponse& opened) override;
  uint64_t sealed_bytes() const override {
    return source_.stamp().value != 0 ? source_.proven() : 0;
  }
  void on(const net::AssignedEvent& event);
  void on(const net::DrainedEvent& event);
  void on(const net::DecidedEvent& event);
  void on(const net::YieldEvent& event);
  void on(const net::AbandonEvent& event);
  void on(const net::OffloadEvent& event);
  void on(const net::DropEvent& event);
  void on(const net::WithdrawnEvent& event);
  void on(const net::MoveEvent&) {}  // the session's

  void enqueue(flow::Task<void> job) {
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  static flow::Task<void> work(HandleCore* self);

  // The jobs (handle_calls.cc). `self` outlives them: it owns the task that runs them.
  static flow::Task<void> do_register(HandleCore* self, std::vector<TensorSpec> tensors,
                                      Job<Done> done);
  static flow::Task<void> do_register_layout(HandleCore* self, Layout layout, Job<Done> done);
  static flow::Task<void> do_unregister(HandleCore* self, Job<Done> done);
  static flow::Task<void> do_publish(HandleCore* self, VersionId version, Job<Done> done);
  static flow::Task<void> do_unpublish(HandleCore* self, Job<Done> done);
  static flow::Task<void> do_receive(HandleCore* self, net::CallKind kind, net::VersionSpec version,
                                     Nanos timeout, Job<std::optional<VersionId>> done);
  static flow::Task<void> do_close(HandleCore* self, Nanos deadline, Job<Done> done);
  // Has this process's store take the content, and tells the server if it can't.
  static flow::Task<void> offload(HandleCore* self, net::OffloadEvent event);

  flow::Task<Result<Done>> register_now(Layout layout);
  // Ok: the memory may be handed back; else kRetained.
  flow::Task<Result<Done>> ask_to_withdraw(Nanos deadline);
  flow::Task<Result<Done>> unpublish_now();
  flow::Task<Result<std::optional<VersionId>>> receive_now(net::CallKind kind,
                                                           net::VersionSpec version, Nanos timeout);
  flow::Task<Result<Done>> deregister_now();
  // Waits until the call under way is decided, or `wake_for_assignment` and there is one, or the
  // session ended.
  flow::Task<void> wait_for_server(bool wake_for_assignment);
  flow::Task<void> take_up(net::AssignedEvent assigned);
  void begin_receiving(const net::AssignedEvent& assigned);

  void start_call(net::CallKind kind, net::VersionSpec version, Nanos timeout);
  void end_call(bool ok, ErrorCode code, net::Content content);
  void opened(const net::OpenedResponse& response, Opening opening);
  // Notes a call's end for servers that will not have been there.
  void remember(bool ok, ErrorCode code, net::Content content);
  // The error of a call whose session has ended, or of a loss that nobody has been told of yet.
  std::optional<Error> take_loss();
  Error wrong_state(const char* call) const;
  bool session_open() const { return session_.state() == ServerSession::State::kOpen; }

  flow::Task<void> hand_back();
  // Whether readers may still be about whose leaving a source waits for.
  bool drains() const;
  flow::Task<void> recover();
  flow::Task<void> surrender();
  void poison(Error why);
  void stop_reader(net::ReleaseKind kind, bool only_if_unopened);
  Stamp new_stamp();  // of a publication or a receive attempt; never the same twice
  void set_stamp(Stamp stamp, net::Content content, uint64_t proven);
  HandleName name() const { return {options_.model, options_.replica, options_.shard}; }
  net::OpenRequest open_request() const;
  std::string describe() const;

  Environment environment_;
  OpenOptions options_;
  HandleState state_ = HandleState::kClosed;
  Nanos lease_{0};
  Nanos drain_{0};
  uint64_t next_call_ = 1;
  uint64_t lineage_ = 0;
  CallNotes call_;
  std::optional<Held> held_;
  std::deque<net::DoneCall> done_;  // the newest calls, up to the one before next_call_
  bool surrender_ = false;          // a server has refused what is held
  std::optional<Error>
      loss_;  // to be told by the next call: the replica lost a member or this shard its place
  std::optional<Error> poison_;                   // why only close() is left
  std::optional<net::WithdrawnEvent> withdrawn_;  // the answer to the Withdraw under way
  bool unneeded_ = false;                         // of an offload
  bool rewound_ = false;

  std::optional<Layout> layout_;
  std::vector<net::RegionId> regions_;
  net::RegionId landing_;
  uint64_t registered_bytes_ = 0;
  Receiving receiving_;
  Reader* reader_ = nullptr;  // the one that runs, in take_up's frame
  std::string last_source_;   // for people: of the last reader that got to its source
  uint64_t reroutes_ = 0;
  Nanos stalled_{0};

  std::deque<flow::Task<void>> jobs_;
  flow::Signal changed_;
  Source source_;
  ServerSession session_;
  flow::TaskSet tasks_;  // last: destroyed first
};

}  // namespace weightlane::ros
