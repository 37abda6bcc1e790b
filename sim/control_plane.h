// The control plane of a simulated world: connections that delay, stall, break and lose, as TCP
// does.
//
// Messages of one connection and direction arrive in order, at drawn times; connections don't wait
// for each other. A connection ends at each side by its own drawn time: until the server notices,
// it goes on serving what still arrives, so requests are executed though their caller saw the
// connection break. A message on a cut path waits for the path, and the connection breaks if that
// takes long. Nothing is ever delivered twice: what is executed twice was sent twice.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "flow/intrusive_list.h"
#include "flow/task_set.h"
#include "net/control_plane.h"
#include "sim/config.h"
#include "sim/host.h"
#include "sim/timer_queue.h"

namespace weightlane::sim {

class World;
class ControlNet;
class SimConnection;
class SimServing;
struct Pipe;

enum class ConnectionEvent : uint8_t { kOpened, kBreaking, kClientNoticed, kServerNoticed };

// One call that waits for its answer; lives in the caller's frame.
class CallAwaiter final : private flow::TimedWaiter, private flow::ListHook {
 public:
  CallAwaiter(flow::Runtime& runtime, flow::IntrusiveList<CallAwaiter>& pending, uint64_t id,
              Nanos deadline);
  ~CallAwaiter() { leave_list(); }
  bool await_ready() const noexcept { return settled_; }
  void await_suspend(std::coroutine_handle<> coroutine) { wait(coroutine, deadline_); }
  std::optional<net::Response> await_resume() { return std::move(response_); }
  uint64_t id() const { return id_; }
  // Neither may be called twice, nor after the deadline.
  void answer(net::Response response);
  void give_up();
  bool broke() const { return broke_; }

 private:
  template <typename>
  friend class flow::IntrusiveList;
  uint64_t id_;
  Nanos deadline_;
  bool settled_ = false;
  bool broke_ = false;
  std::optional<net::Response> response_;
};

class SimConnection final : public net::Connection {
 public:
  SimConnection(ControlNet& net, Host& host, Pipe& pipe) : net_(net), host_(host), pipe_(&pipe) {}
  ~SimConnection() override;
  flow::Task<net::CallOutcome> call(net::Request request, Nanos deadline) override;
  bool broken() const override { return broken_; }

 private:
  friend class ControlNet;
  void on_broken();

  ControlNet& net_;
  Host& host_;
  Pipe* pipe_;  // null once this side is through with it
  bool broken_ = false;
  flow::IntrusiveList<CallAwaiter> pending_;
};

class SimServing final : public net::Serving {
 public:
  SimServing(ControlNet& net, Host& host, std::string address, net::RequestHandler* handler);
  ~SimServing() override;
  std::string address() const override { return address_; }

 private:
  friend class ControlNet;
  ControlNet& net_;
  Host& host_;
  std::string address_;
  net::RequestHandler* handler_;
  bool registered_ = true;
};

class SimControlPlane final : public net::ControlPlane {
 public:
  explicit SimControlPlane(Host& host) : host_(host) {}
  flow::Task<Result<std::unique_ptr<net::Connection>>> connect(std::string address,
                                                               Nanos deadline) override;
  Result<std::unique_ptr<net::Serving>> serve(std::string address,
                                              net::RequestHandler* handler) override;
  void end_life(CrashKind kind);

 private:
  Host& host_;
  uint32_t next_port_ = 7000;
};

enum class Side : uint8_t { kClient, kServer };
constexpr Side other(Side side) { return side == Side::kClient ? Side::kServer : Side::kClient; }

// On its way from one side of a pipe to the other.
struct Message {
  explicit Message(World& world);
  static void on_arrival(void* self);

  Pipe* pipe = nullptr;
  Side to = Side::kServer;
  bool poll = false;
  uint64_t call = 0;
  std::variant<std::monostate, net::Request, net::Response> body;
  Alarm arrival;
};

// One connection, as the network sees it; outlives both ends.
struct Pipe {
  struct End {
    HostId host;
    uint32_t life = 0;
    bool broken = false;            // this side has noticed
    Nanos last_arrival{};           // of messages to this side
    bool lossy = false;             // what is sent to this side from now on is lost
    std::deque<Message*> held{};    // to this side, in order, while the path is cut
    std::optional<Alarm> notice{};  // when this side will see the break
  };
  Pipe(ControlNet& net, uint64_t number, Host& client, Host& server);
  End& end(Side side) { return side == Side::kClient ? client : server; }

  ControlNet& net;
  uint64_t id;
  End client;
  End server;
  SimConnection* connection = nullptr;  // null once dropped
  SimServing* serving = nullptr;        // null once dropped
  bool breaking = false;
  uint64_t next_call = 1;
  std::vector<Message*> in_flight;        // with an arrival armed, unordered
  Alarm stalled;                          // held messages: how long until the connection breaks
  std::optional<flow::TaskSet> handlers;  // on the server's host
};

class ControlNet {
 public:
  explicit ControlNet(World& world);
  ~ControlNet();
  ControlNet(const ControlNet&) = delete;
  ControlNet& operator=(const ControlNet&) = delete;

  World& world() { return world_; }
  // A path may be open that was cut.
  void paths_changed();
  void end_life(HostId host, CrashKind kind);

 private:
  friend class SimConnection;
  friend class SimServing;
  friend class SimControlPlane;
  friend struct Message;
  friend struct Pipe;

  SimServing* find(const std::string& address);
  // The host that an address names; null: none.
  Host* host_named(const std::string& address);
  void drop_connection(SimConnection& connection);
  void drop_serving(SimServing& serving);
  Pipe& open(Host& client, SimServing& serving);
  // Into the pipe, at its sender. The message is the pipe's from now on.
  void send(Pipe& pipe, Message& message);
  void travel(Pipe& pipe, Message& message);
  void arrive(Message& message);
  void hold(Pipe& pipe, Message& message);
  void deliver_request(Pipe& pipe, Message& message);
  void deliver_response(Pipe& pipe, Message& message);
  static flow::Task<void> serve_one(ControlNet* net, Pipe* pipe, net::RequestHandler* handler,
                                    net::Request request, uint64_t call, bool poll);
  // Whether the answer to this request is to be lost with its connection.
  bool reply_is_lost(const net::Request& request, HostId server);
  // Each side notices at its own drawn time.
  void break_soon(Pipe& pipe);
  void notice_after(Pipe& pipe, Side side, SpanRange range);
  void notice(Pipe& pipe, Side side);
  void discard(Pipe& pipe);
  void remove_if_over(Pipe& pipe);
  Nanos draw_delay(HostId from, HostId to, const char* name);
  Message& allocate(Pipe& pipe, Side to, uint64_t call, bool poll);
  void release(Message& message);
  void through_codec(Message& message) const;

  World& world_;
  uint64_t next_pipe_ = 1;
  std::vector<std::unique_ptr<Pipe>> pipes_;  // in order of opening
  std::vector<SimServing*> servings_;
  std::vector<std::unique_ptr<Message>> messages_;
  std::vector<Message*> free_;
  std::set<uint64_t> dropped_;  // drop_first_replies: (incarnation, sequence)
};

}  // namespace weightlane::sim
