// The network under the control plane: what happens to messages between a caller and a server.
#include <algorithm>

#include "net/codec.h"
#include "sim/control_plane.h"
#include "sim/hash.h"
#include "sim/world.h"

namespace weightlane::sim {

Message::Message(World& world) : arrival(world, on_arrival, this) {}

void Message::on_arrival(void* self) {
  auto& message = *static_cast<Message*>(self);
  message.pipe->net.arrive(message);
}

Pipe::Pipe(ControlNet& n, uint64_t number, Host& c, Host& s)
    : net(n),
      id(number),
      client{.host = c.id(), .life = c.life()},
      server{.host = s.id(), .life = s.life()},
      stalled(
          n.world(),
          [](void* self) {
            auto& pipe = *static_cast<Pipe*>(self);
            pipe.net.break_soon(pipe);
          },
          this) {
  client.notice.emplace(
      n.world(),
      [](void* self) {
        auto& pipe = *static_cast<Pipe*>(self);
        pipe.net.notice(pipe, Side::kClient);
      },
      this);
  server.notice.emplace(
      n.world(),
      [](void* self) {
        auto& pipe = *static_cast<Pipe*>(self);
        pipe.net.notice(pipe, Side::kServer);
      },
      this);
  handlers.emplace(s);
}

ControlNet::ControlNet(World& world) : world_(world) {}
ControlNet::~ControlNet() = default;

SimServing* ControlNet::find(const std::string& address) {
  for (SimServing* serving : servings_) {
    if (serving->address_ == address) return serving;
  }
  return nullptr;
}

Host* ControlNet::host_named(const std::string& address) {
  const size_t length = address.rfind(':');
  for (uint32_t i = 1; i < world_.host_count(); ++i) {
    Host& host = world_.host({i});
    if (address.compare(0, length, host.place().name) == 0) return &host;
  }
  return nullptr;
}

Pipe& ControlNet::open(Host& client, SimServing& serving) {
  const uint64_t id = next_pipe_++;
  pipes_.push_back(std::make_unique<Pipe>(*this, id, client, serving.host_));
  Pipe& pipe = *pipes_.back();
  pipe.serving = &serving;
  world_.event(EventKind::kConnection, client.id(), id,
               static_cast<uint64_t>(ConnectionEvent::kOpened), serving.host_.id().value);
  return pipe;
}

Message& ControlNet::allocate(Pipe& pipe, Side to, uint64_t call, bool poll) {
  if (free_.empty()) {
    messages_.push_back(std::make_unique<Message>(world_));
    free_.push_back(messages_.back().get());
  }
  Message& message = *free_.back();
  free_.pop_back();
  message.pipe = &pipe;
  message.to = to;
  message.call = call;
  message.poll = poll;
  return message;
}

void ControlNet::release(Message& message) {
  message.arrival.disarm();
  message.body.emplace<std::monostate>();
  message.pipe = nullptr;
  free_.push_back(&message);
}

Nanos ControlNet::draw_delay(HostId from, HostId to, const char* name) {
  const ControlConfig& config = world_.config().control;
  const bool wide = world_.host(from).place().datacenter != world_.host(to).place().datacenter;
  const SpanRange range = wide ? config.wide_delay : config.delay;
  return nanos(world_.choices().log_uniform(stream_of(from, Subsystem::kControl), name,
                                            range.least.count, range.most.count));
}

void ControlNet::through_codec(Message& message) const {
  if (auto* request = std::get_if<net::Request>(&message.body)) {
    Result<net::Request> again = net::decode_request(net::encode(*request));
    WL_ASSERT(again.ok());
    *request = std::move(again).value();
  } else if (auto* response = std::get_if<net::Response>(&message.body)) {
    Result<net::Response> again = net::decode_response(net::encode(*response));
    WL_ASSERT(again.ok());
    *response = std::move(again).value();
  }
}

void ControlNet::send(Pipe& pipe, Message& message) {
  const HostId from = pipe.end(other(message.to)).host;
  if (world_.config().control.codec) through_codec(message);
  const StreamId stream = stream_of(from, Subsystem::kControl);
  Pipe::End& to = pipe.end(message.to);
  const bool lost = world_.fault(stream, Fault::kMessageLost);
  const bool breaks = world_.fault(stream, Fault::kConnectionBreaks);
  if (lost && !to.lossy) {
    // A hole in the stream: nothing behind it arrives either, and in the end the connection breaks.
    world_.fault_happened(Fault::kMessageLost, from, to.host);
    to.lossy = true;
    const SpanRange range = world_.config().control.stall_break;
    const int64_t span =
        world_.choices().log_uniform(stream, "message.lost", range.least.count, range.most.count);
    if (!pipe.stalled.armed()) pipe.stalled.arm(world_.now() + nanos(span));
  }
  if (breaks && !pipe.breaking) {
    world_.fault_happened(Fault::kConnectionBreaks, from, to.host);
    break_soon(pipe);
  }
  if (to.lossy || to.broken) {
    release(message);
    return;
  }
  travel(pipe, message);
}

void ControlNet::travel(Pipe& pipe, Message& message) {
  Pipe::End& to = pipe.end(message.to);
  const Nanos delay = draw_delay(pipe.end(other(message.to)).host, to.host, "message.delay");
  Nanos at = world_.now() + delay;
  if (at <= to.last_arrival) at = to.last_arrival + nanos(1);
  to.last_arrival = at;
  pipe.in_flight.push_back(&message);
  message.arrival.arm(at, to.host);
}

void ControlNet::arrive(Message& message) {
  Pipe& pipe = *message.pipe;
  const auto found = std::find(pipe.in_flight.begin(), pipe.in_flight.end(), &message);
  *found = pipe.in_flight.back();
  pipe.in_flight.pop_back();
  Pipe::End& to = pipe.end(message.to);
  const HostId from = pipe.end(other(message.to)).host;
  if (to.broken) {
    release(message);
    return remove_if_over(pipe);
  }
  if (!to.held.empty() || world_.network().blocked(Plane::kControl, from, to.host)) {
    return hold(pipe, message);
  }
  if (message.to == Side::kServer) {
    deliver_request(pipe, message);
  } else {
    deliver_response(pipe, message);
  }
}

void ControlNet::hold(Pipe& pipe, Message& message) {
  pipe.end(message.to).held.push_back(&message);
  if (pipe.stalled.armed()) return;
  const SpanRange range = world_.config().control.stall_break;
  const int64_t span =
      world_.choices().log_uniform(stream_of(pipe.client.host, Subsystem::kControl),
                                   "connection.stall", range.least.count, range.most.count);
  pipe.stalled.arm(world_.now() + nanos(span));
}

void ControlNet::deliver_request(Pipe& pipe, Message& message) {
  auto& request = std::get<net::Request>(message.body);
  world_.event(EventKind::kRequest, pipe.server.host, pipe.id, request.header.sequence,
               request.body.index());
  ++(message.poll ? world_.mutable_counts().polls : world_.mutable_counts().messages);
  WL_ASSERT(pipe.handlers && pipe.serving != nullptr);
  pipe.handlers->spawn(serve_one(this, &pipe, pipe.serving->handler_, std::move(request),
                                 message.call, message.poll),
                       "request");
  release(message);
}

void ControlNet::deliver_response(Pipe& pipe, Message& message) {
  auto& response = std::get<net::Response>(message.body);
  world_.event(EventKind::kResponse, pipe.client.host, pipe.id, message.call,
               response.body.index());
  ++(message.poll ? world_.mutable_counts().polls : world_.mutable_counts().messages);
  CallAwaiter* waiter = nullptr;
  pipe.connection->pending_.for_each([&waiter, &message](CallAwaiter& candidate) {
    if (candidate.id() == message.call) waiter = &candidate;
  });
  // Nobody waits any more when its deadline has passed.
  if (waiter != nullptr) waiter->answer(std::move(response));
  release(message);
}

bool ControlNet::reply_is_lost(const net::Request& request, HostId server) {
  const bool drawn = world_.fault(stream_of(server, Subsystem::kControl), Fault::kReplyLost);
  if (!world_.config().control.drop_first_replies || world_.healed()) return drawn;
  const uint64_t key = mix64(request.header.incarnation.value, request.header.sequence);
  return dropped_.insert(key).second || drawn;
}

void ControlNet::break_soon(Pipe& pipe) {
  if (pipe.breaking) return;
  pipe.breaking = true;
  pipe.stalled.disarm();
  world_.event(EventKind::kConnection, pipe.client.host, pipe.id,
               static_cast<uint64_t>(ConnectionEvent::kBreaking), 0);
  const SpanRange range = world_.config().control.break_notice;
  notice_after(pipe, Side::kClient, range);
  notice_after(pipe, Side::kServer, range);
}

void ControlNet::notice_after(Pipe& pipe, Side side, SpanRange range) {
  Pipe::End& end = pipe.end(side);
  if (end.broken) return;
  const int64_t span =
      world_.choices().log_uniform(stream_of(end.host, Subsystem::kControl), "connection.notice",
                                   range.least.count, range.most.count);
  const Nanos at = world_.now() + nanos(span);
  end.notice->arm(at, end.host);
}

void ControlNet::notice(Pipe& pipe, Side side) {
  Pipe::End& end = pipe.end(side);
  if (end.broken) return;
  end.broken = true;
  end.notice->disarm();
  const ConnectionEvent what =
      side == Side::kClient ? ConnectionEvent::kClientNoticed : ConnectionEvent::kServerNoticed;
  world_.event(EventKind::kConnection, end.host, pipe.id, static_cast<uint64_t>(what), 0);
  if (side == Side::kServer) {
    pipe.handlers.reset();
    pipe.serving = nullptr;
  } else if (pipe.connection != nullptr) {
    SimConnection& connection = *pipe.connection;
    pipe.connection = nullptr;
    connection.on_broken();
  }
  for (Message* message : end.held) release(*message);
  end.held.clear();
  // One side knows: the other will hear of it too.
  Pipe::End& peer = pipe.end(other(side));
  if (!peer.broken && !peer.notice->armed()) {
    notice_after(pipe, other(side), world_.config().control.break_notice);
  }
  remove_if_over(pipe);
}

void ControlNet::drop_connection(SimConnection& connection) {
  Pipe& pipe = *connection.pipe_;
  connection.pipe_ = nullptr;
  pipe.connection = nullptr;
  const bool cut = world_.network().cut_off(Plane::kControl, pipe.client.host, pipe.server.host);
  const ControlConfig& config = world_.config().control;
  if (!pipe.server.broken && !pipe.server.notice->armed()) {
    if (cut) {
      notice_after(pipe, Side::kServer, config.stall_break);
    } else {
      // In order behind what was sent before.
      const Nanos delay = draw_delay(pipe.client.host, pipe.server.host, "connection.close");
      Nanos at = world_.now() + delay;
      if (at <= pipe.server.last_arrival) at = pipe.server.last_arrival + nanos(1);
      pipe.server.notice->arm(at, pipe.server.host);
    }
  }
  notice(pipe, Side::kClient);
}

void ControlNet::drop_serving(SimServing& serving) {
  serving.registered_ = false;
  servings_.erase(std::find(servings_.begin(), servings_.end(), &serving));
  std::vector<Pipe*> hit;
  for (const auto& pipe : pipes_) {
    if (pipe->serving == &serving) hit.push_back(pipe.get());
  }
  for (Pipe* pipe : hit) notice(*pipe, Side::kServer);
}

void ControlNet::end_life(HostId host, CrashKind kind) {
  while (true) {
    const auto found =
        std::find_if(servings_.begin(), servings_.end(),
                     [host](const SimServing* serving) { return serving->host_.id() == host; });
    if (found == servings_.end()) break;
    (*found)->registered_ = false;
    servings_.erase(found);
  }
  const ControlConfig& config = world_.config().control;
  std::vector<Pipe*> hit;
  for (const auto& pipe : pipes_) {
    if (pipe->client.host == host || pipe->server.host == host) hit.push_back(pipe.get());
  }
  for (Pipe* pipe : hit) {
    const Side side = pipe->client.host == host ? Side::kClient : Side::kServer;
    if (pipe->end(side).broken) continue;
    const Side peer = other(side);
    const bool silent =
        kind == CrashKind::kMachine ||
        world_.network().cut_off(Plane::kControl, pipe->client.host, pipe->server.host);
    // A process that dies has its kernel say so; a machine says nothing.
    if (!pipe->end(peer).notice->armed()) {
      notice_after(*pipe, peer, silent ? config.stall_break : config.delay);
    }
    notice(*pipe, side);
  }
}

void ControlNet::paths_changed() {
  for (const auto& pipe : pipes_) {
    for (const Side side : {Side::kServer, Side::kClient}) {
      Pipe::End& to = pipe->end(side);
      const HostId from = pipe->end(other(side)).host;
      if (to.held.empty() || world_.network().blocked(Plane::kControl, from, to.host)) continue;
      std::deque<Message*> held;
      held.swap(to.held);
      for (Message* message : held) travel(*pipe, *message);
    }
    const bool lossy = pipe->client.lossy || pipe->server.lossy;
    if (pipe->client.held.empty() && pipe->server.held.empty() && !lossy) pipe->stalled.disarm();
  }
}

void ControlNet::remove_if_over(Pipe& pipe) {
  if (!pipe.client.broken || !pipe.server.broken) return;
  for (Message* message : pipe.in_flight) release(*message);
  for (Pipe::End* end : {&pipe.client, &pipe.server}) {
    for (Message* message : end->held) release(*message);
  }
  const auto found = std::find_if(pipes_.begin(), pipes_.end(),
                                  [&pipe](const auto& p) { return p.get() == &pipe; });
  pipes_.erase(found);
}

}  // namespace weightlane::sim
