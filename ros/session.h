// ServerSession: one handle's conversation with the reference servers of its list.
//
// It is with one of them at a time. Two loops over one connection: one keeps a Poll at the server
// (heartbeat and events), one delivers posted requests in order, each until it is answered, over as
// many connections as that takes. A request keeps its sequence number through its retries, a new
// connection gets a higher session number (P10).
//
// The handle opens anew, as a new incarnation that announces all it holds (P9), when the server
// says it does not know this one (evicted), when another boot of it answers, when it is silent for
// `server_silent` and there is another in the list, or when the server sends the whole replica back
// to one that stands before it in the list. The listener writes the announcement at the moment it
// is sent; what is posted from then on follows it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "flow/signal.h"
#include "flow/task_set.h"
#include "net/control_plane.h"
#include "ros/shard_handle.h"

namespace weightlane::ros {

class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // In order, each once. Must not destroy the session.
  virtual void on_event(const net::Event& event) = 0;
  // The server refused a posted request: nothing was changed.
  virtual void on_rejected(const net::RequestBody& body, const net::Failure& failure) = 0;
  // What the server that is asked next must know.
  virtual net::Announcement announcement() = 0;
  // A server has taken the handle with the last announcement, or refused what it announced.
  virtual void on_reopened(const net::OpenedResponse& opened) = 0;
  // The server that it is with is left, for the reason given.
  virtual void on_left(const std::string& why) = 0;
  // For good: nobody is looked for any more.
  virtual void on_session_ended() = 0;
  // Progress of the transfer under way, told with every Poll, for people.
  virtual uint64_t sealed_bytes() const = 0;
};

class ServerSession {
 public:
  // kSearching: between two servers, or two openings at one.
  enum class State : uint8_t { kClosed, kOpen, kSearching, kSuperseded, kServerLost };

  // `listener` outlives the session.
  ServerSession(Environment environment, std::vector<std::string> servers, HandleOptions options,
                SessionListener* listener);
  ~ServerSession();

  // Opens for the first time, at the first server of the list that answers. Errors:
  // kInvalidArgument, kAlreadyOpen, kServerLost.
  flow::Task<Result<net::OpenedResponse>> open(net::OpenRequest request, Nanos deadline);
  // Delivered in order; forgotten when the server is left, whose successor learns by announcement.
  void post(net::RequestBody body);
  // Returns when everything posted was answered, the server was left, or at the deadline.
  flow::Task<void> flush(Nanos deadline);
  // Tells the server that the handle goes, as far as it can be reached by the deadline, and stops.
  flow::Task<void> close(Nanos deadline);
  // Returns when no announcement is on its way: a call that begins now is either part of the next
  // one or made where the last one was taken.
  flow::Task<void> settled();
  // Nobody waits for a server any more.
  void give_up();

  State state() const { return state_; }
  bool ended() const { return state_ != State::kOpen && state_ != State::kSearching; }
  const std::string& why_ended() const { return why_ended_; }
  Incarnation incarnation() const { return incarnation_; }
  // When a server was last heard.
  Nanos last_answer() const { return last_answer_; }
  const std::string& server() const { return servers_[at_]; }
  const std::string& last_trouble() const { return last_trouble_; }

 private:
  struct Posted {
    uint64_t sequence = 0;
    net::RequestBody body;
  };
  struct Link {
    std::shared_ptr<net::Connection> connection;
    uint64_t session = 0;
  };
  struct Tried {
    std::optional<net::OpenedResponse> opened;
    std::optional<Error> refused;  // neither: it did not answer
  };

  flow::Task<Link> connected(Nanos deadline);
  // One attempt; nothing when it has to be tried again.
  flow::Task<std::optional<net::Response>> attempt(net::RequestBody body, uint64_t sequence,
                                                   Nanos deadline);
  // At servers_[at_]: asks until it answers, or `patience` has passed without an answer.
  flow::Task<Tried> open_here(Nanos patience, Nanos deadline);
  void begin_incarnation();
  void taken(const net::Response& response, const net::OpenedResponse& opened);
  static flow::Task<void> poll_loop(ServerSession* self);
  static flow::Task<void> send_loop(ServerSession* self);
  static flow::Task<void> probe_loop(ServerSession* self);
  // Looks for a server whenever the present one is lost.
  static flow::Task<void> keep(ServerSession* self);
  // Looks at what every answer tells: another boot, an unknown incarnation. False: look for a
  // server.
  bool check(const net::Response& response);
  bool server_silent();
  void leave(size_t next, std::string why);
  void end(State state, std::string why);
  void stop_loops();
  bool held_by_the_living(const net::Failure& occupied, Nanos asked);
  bool only_server() const { return servers_.size() == 1; }
  Nanos next_pause(Nanos pause) const;

  Environment environment_;
  std::vector<std::string> servers_;  // never empty
  HandleOptions options_;
  SessionListener* listener_;
  size_t at_ = 0;  // the server that is talked to, or tried
  State state_ = State::kClosed;
  std::string why_ended_;
  std::string last_trouble_ = "no answer yet";
  net::OpenRequest request_;  // as it opens, but for the announcement
  Incarnation incarnation_;
  BootId boot_;
  Nanos heartbeat_{0};
  Nanos last_answer_{0};
  uint64_t session_ = 0;
  uint64_t next_sequence_ = 1;
  uint64_t last_event_ = 0;
  bool connecting_ = false;
  bool announcing_ = false;        // an announcement is on its way: what is posted now follows it
  std::optional<size_t> earlier_;  // a server before this one that answers
  Incarnation occupant_;           // who had the shard when open() first asked
  Nanos occupant_heard_{0};        // it was heard no later than that, on our clock
  Link link_;
  std::deque<Posted> outbox_;
  flow::Signal changed_;
  flow::TaskSet tasks_;
  flow::TaskSet loops_;  // of one opening
};

}  // namespace weightlane::ros
