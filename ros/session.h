// ServerSession: one incarnation's conversation with the reference server.
//
// Two loops over one connection: one keeps a Poll at the server (heartbeat and events), one
// delivers posted requests in order, each until it is answered, over as many connections as that
// takes. A request keeps its sequence number through its retries, a new connection gets a higher
// session number (P10). The session ends when the server says it does not know the incarnation
// (evicted), when another boot of the server answers, or when nobody answered for `server_lost`.
#pragma once

#include <deque>
#include <memory>
#include <string>

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
  virtual void on_session_ended() = 0;
  // Progress of the transfer under way, told with every Poll, for people.
  virtual uint64_t sealed_bytes() const = 0;
};

class ServerSession {
 public:
  enum class State : uint8_t { kClosed, kOpen, kEvicted, kServerLost };

  // `listener` outlives the session.
  ServerSession(Environment environment, std::string server, HandleOptions options,
                SessionListener* listener);
  ~ServerSession();

  // Opens as a new incarnation. Errors: kInvalidArgument, kAlreadyOpen, kServerLost.
  flow::Task<Result<net::OpenedResponse>> open(net::OpenRequest request, Nanos deadline);
  // Delivered in order; forgotten when the session ends.
  void post(net::RequestBody body);
  // Returns when everything posted was answered, the session ended, or at the deadline.
  flow::Task<void> flush(Nanos deadline);
  // Tells the server that the handle goes, as far as it can be reached by the deadline, and stops.
  flow::Task<void> close(Nanos deadline);

  State state() const { return state_; }
  const std::string& why_ended() const { return why_ended_; }
  Incarnation incarnation() const { return incarnation_; }

 private:
  struct Posted {
    uint64_t sequence = 0;
    net::RequestBody body;
  };
  struct Link {
    std::shared_ptr<net::Connection> connection;
    uint64_t session = 0;
  };

  flow::Task<Link> connected(Nanos deadline);
  // One attempt; nothing when it has to be tried again.
  flow::Task<std::optional<net::Response>> attempt(net::RequestBody body, uint64_t sequence,
                                                   Nanos deadline);
  static flow::Task<void> poll_loop(ServerSession* self);
  static flow::Task<void> send_loop(ServerSession* self);
  // Looks at what every answer tells: another boot, an unknown incarnation. False: the session has
  // ended.
  bool check(const net::Response& response);
  bool server_gone();
  void end(State state, std::string why);
  void stop_loops();
  bool held_by_the_living(const net::Failure& occupied, Nanos asked);
  Nanos next_pause(Nanos pause) const;

  Environment environment_;
  std::string server_;
  HandleOptions options_;
  SessionListener* listener_;
  State state_ = State::kClosed;
  std::string why_ended_;
  std::string last_trouble_ = "no answer yet";
  Incarnation incarnation_;
  BootId boot_;
  Nanos heartbeat_{0};
  Nanos last_answer_{0};
  uint64_t session_ = 0;
  uint64_t next_sequence_ = 1;
  uint64_t last_event_ = 0;
  bool connecting_ = false;
  Incarnation occupant_;     // who had the shard when open() first asked
  Nanos occupant_heard_{0};  // it was heard no later than that, on our clock
  Link link_;
  std::deque<Posted> outbox_;
  flow::Signal changed_;
  flow::TaskSet tasks_;
};

}  // namespace weightlane::ros
