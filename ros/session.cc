// Both loops outlive any number of connections, and whichever finds the link broken makes the next
// one while the other waits. An open that meets a live holder gives up; one that meets a dead
// holder waits for the lease. When a server is lost the loops end, and keep() goes round the list.
#include "ros/session.h"

#include <algorithm>

#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

constexpr Nanos kOccupiedPause = millis(500);  // before asking again whether a shard is free

Nanos earlier(Nanos a, Nanos b) { return a < b ? a : b; }

}  // namespace

ServerSession::ServerSession(Environment environment, std::vector<std::string> servers,
                             HandleOptions options, SessionListener* listener)
    : environment_(environment),
      servers_(std::move(servers)),
      options_(options),
      listener_(listener),
      changed_(*environment.runtime),
      tasks_(*environment.runtime),
      loops_(*environment.runtime) {
  if (servers_.empty()) servers_.emplace_back();
}

ServerSession::~ServerSession() = default;

Nanos ServerSession::next_pause(Nanos pause) const {
  return earlier(pause * 2, options_.rpc_retry_max);
}

flow::Task<ServerSession::Link> ServerSession::connected(Nanos deadline) {
  flow::Runtime& runtime = *environment_.runtime;
  while (true) {
    if (link_.connection != nullptr && !link_.connection->broken()) co_return link_;
    if (!connecting_) break;
    if (!co_await changed_.wait_until(deadline)) co_return Link{};
  }
  connecting_ = true;
  const Nanos until = earlier(deadline, deadline_after(runtime.now(), options_.connect));
  Result<std::unique_ptr<net::Connection>> made =
      co_await environment_.control->connect(servers_[at_], until);
  connecting_ = false;
  changed_.notify_all();
  if (!made) {
    last_trouble_ = made.error().message;
    co_return Link{};
  }
  if (session_ > 0) runtime.probe(probes::kReconnected);
  ++session_;
  link_ = Link{std::shared_ptr<net::Connection>(std::move(made).value()), session_};
  co_return link_;
}

flow::Task<std::optional<net::Response>> ServerSession::attempt(net::RequestBody body,
                                                                uint64_t sequence, Nanos deadline) {
  Link link = co_await connected(deadline);
  if (link.connection == nullptr) co_return std::nullopt;
  net::Request request{{incarnation_, link.session, sequence}, std::move(body)};
  net::CallOutcome outcome = co_await link.connection->call(std::move(request), deadline);
  if (auto* response = std::get_if<net::Response>(&outcome)) {
    last_answer_ = environment_.runtime->now();
    co_return std::move(*response);
  }
  if (auto* unknown = std::get_if<net::OutcomeUnknown>(&outcome)) {
    environment_.runtime->probe(probes::kOutcomeUnknown);
    last_trouble_ = unknown->why;
  } else {
    last_trouble_ = std::get<Error>(outcome).message;
  }
  // An answer that did not come leaves the connection in doubt: the next attempt takes a new one.
  if (link_.session == link.session) link_ = {};
  co_return std::nullopt;
}

// A holder that was heard again since we first asked is alive. The server looked at its clock some
// time between our question and its answer, so each answer bounds the time from both sides; an
// answer that travelled long proves nothing.
bool ServerSession::held_by_the_living(const net::Failure& occupied, Nanos asked) {
  const Nanos earliest = asked - occupied.heard_ago;
  const Nanos latest = environment_.runtime->now() - occupied.heard_ago;
  if (occupant_ != occupied.holder) {
    occupant_ = occupied.holder;
    occupant_heard_ = latest;
    return false;
  }
  if (earliest > occupant_heard_) return true;
  occupant_heard_ = std::min(occupant_heard_, latest);
  return false;
}

// ---------------------------------------------------------------- opening

// What was posted to the server before is part of what is announced now.
void ServerSession::begin_incarnation() {
  incarnation_ = {environment_.runtime->random() | 1};
  outbox_.clear();
  session_ = 0;
  last_event_ = 0;
  next_sequence_ = 1;
  link_ = {};
  ++request_.opening;
  if (state_ != State::kSearching) return;
  request_.announced = listener_->announcement();
  announcing_ = true;
}

flow::Task<ServerSession::Tried> ServerSession::open_here(Nanos patience, Nanos deadline) {
  flow::Runtime& runtime = *environment_.runtime;
  begin_incarnation();
  occupant_ = {};
  uint64_t sequence = next_sequence_++;
  Nanos silent_until = deadline_after(runtime.now(), patience);
  Nanos pause = options_.rpc_retry_first;
  while (true) {
    const Nanos asked = runtime.now();
    const Nanos attempt_end = deadline_after(asked, options_.rpc_attempt);
    const Nanos until = earlier(earlier(deadline, silent_until), attempt_end);
    std::optional<net::Response> response = co_await attempt(request_, sequence, until);
    if (response.has_value()) {
      silent_until = deadline_after(runtime.now(), patience);
      if (auto* opened = std::get_if<net::OpenedResponse>(&response->body)) {
        taken(*response, *opened);
        co_return Tried{*opened, std::nullopt};
      }
      auto* failed = std::get_if<net::Failure>(&response->body);
      if (failed == nullptr) {
        co_return Tried{std::nullopt,
                        Error{ErrorCode::kCorrupt,
                              "server " + server() + " answered open with something else"}};
      }
      if (failed->kind == net::FailureKind::kUnknownIncarnation) {
        // Our first open was carried out, its answer lost, and the lease ran out meanwhile.
        begin_incarnation();
        sequence = next_sequence_++;
      } else if (failed->code != ErrorCode::kAlreadyOpen) {
        co_return Tried{std::nullopt, Error{failed->code, failed->message}};
      } else {
        pause = kOccupiedPause;
        if (held_by_the_living(*failed, asked) || runtime.now() + pause >= deadline)
          co_return Tried{std::nullopt, Error{ErrorCode::kAlreadyOpen, failed->message}};
      }
    }
    if (runtime.now() + pause >= deadline || runtime.now() >= silent_until) co_return Tried{};
    co_await runtime.sleep_for(pause);
    pause = next_pause(pause);
  }
}

void ServerSession::taken(const net::Response& response, const net::OpenedResponse& opened) {
  boot_ = response.server;
  heartbeat_ = opened.heartbeat;
  state_ = State::kOpen;
  announcing_ = false;
  earlier_.reset();
  loops_.spawn(poll_loop(this), "session.poll");
  loops_.spawn(send_loop(this), "session.send");
  if (at_ > 0) loops_.spawn(probe_loop(this), "session.probe");
  changed_.notify_all();
}

flow::Task<Result<net::OpenedResponse>> ServerSession::open(net::OpenRequest request,
                                                            Nanos deadline) {
  flow::Runtime& runtime = *environment_.runtime;
  stop_loops();
  state_ = State::kClosed;
  at_ = 0;
  const std::string shard = "shard " + std::to_string(request.shard.value) + " of " +
                            request.model + "/" + request.replica;
  request_ = std::move(request);
  request_.handle = runtime.random() | 1;
  Nanos pause = options_.rpc_retry_first;
  while (true) {
    const Nanos patience = only_server() ? kForever : options_.server_silent;
    Tried tried = co_await open_here(patience, deadline);
    if (tried.opened.has_value()) {
      tasks_.spawn(keep(this), "session.keep");
      co_return *tried.opened;
    }
    if (tried.refused.has_value()) co_return *tried.refused;
    if (runtime.now() + pause >= deadline)
      co_return Error{ErrorCode::kServerLost, "no reference server at " + server() + " to open " +
                                                  shard + ": " + last_trouble_};
    at_ = (at_ + 1) % servers_.size();
    co_await runtime.sleep_for(pause);
    pause = next_pause(pause);
  }
}

flow::Task<void> ServerSession::keep(ServerSession* self) {
  flow::Runtime& runtime = *self->environment_.runtime;
  Nanos pause = self->options_.rpc_retry_first;
  while (true) {
    while (self->state_ == State::kOpen) co_await self->changed_.wait();
    if (self->state_ != State::kSearching) co_return;
    self->loops_.cancel_all();
    self->connecting_ = false;
    Tried tried = co_await self->open_here(self->options_.server_silent, kForever);
    if (tried.opened.has_value()) {
      runtime.probe(probes::kServerChanged);
      pause = self->options_.rpc_retry_first;
      self->listener_->on_reopened(*tried.opened);
      continue;
    }
    self->announcing_ = false;
    self->changed_.notify_all();
    if (tried.refused.has_value()) {
      const bool taken_over = tried.refused->code == ErrorCode::kAlreadyOpen;
      self->end(taken_over ? State::kSuperseded : State::kServerLost, tried.refused->message);
      co_return;
    }
    self->at_ = (self->at_ + 1) % self->servers_.size();
    co_await runtime.sleep_for(pause);
    pause = self->next_pause(pause);
  }
}

// ---------------------------------------------------------------- while it is open

void ServerSession::post(net::RequestBody body) {
  if (state_ != State::kOpen && !announcing_) return;
  outbox_.push_back({next_sequence_++, std::move(body)});
  changed_.notify_all();
}

flow::Task<void> ServerSession::flush(Nanos deadline) {
  while (state_ == State::kOpen && !outbox_.empty()) {
    if (!co_await changed_.wait_until(deadline)) co_return;
  }
}

flow::Task<void> ServerSession::settled() {
  while (announcing_ && !WL_BUG(kCallWhileAnnouncing)) co_await changed_.wait();
}

flow::Task<void> ServerSession::close(Nanos deadline) {
  post(net::CloseRequest{});
  co_await flush(deadline);
  stop_loops();
  state_ = State::kClosed;
  link_ = {};
}

void ServerSession::give_up() {
  if (ended()) return;
  stop_loops();
  environment_.runtime->probe(probes::kServerLost);
  end(State::kServerLost, "no reference server answered: " + last_trouble_);
}

bool ServerSession::check(const net::Response& response) {
  if (state_ != State::kOpen) return false;
  if (response.server != boot_) {
    leave(at_, "the reference server at " + server() + " was restarted");
    return false;
  }
  const auto* failed = std::get_if<net::Failure>(&response.body);
  if (failed == nullptr || failed->kind != net::FailureKind::kUnknownIncarnation) return true;
  leave(at_, "the reference server at " + server() +
                 " had not heard this process for its lease and let it go");
  return false;
}

bool ServerSession::server_silent() {
  if (state_ != State::kOpen) return true;
  if (only_server()) return false;
  if (environment_.runtime->now() - last_answer_ < options_.server_silent) return false;
  const size_t next = (at_ + 1) % servers_.size();
  leave(next, "the reference server at " + server() + " did not answer: " + last_trouble_);
  return true;
}

void ServerSession::leave(size_t next, std::string why) {
  if (state_ != State::kOpen) return;
  state_ = State::kSearching;
  why_ended_ = std::move(why);
  at_ = next;
  outbox_.clear();
  changed_.notify_all();
  listener_->on_left(why_ended_);
}

void ServerSession::end(State state, std::string why) {
  state_ = state;
  why_ended_ = std::move(why);
  outbox_.clear();
  announcing_ = false;
  changed_.notify_all();
  listener_->on_session_ended();
}

void ServerSession::stop_loops() {
  loops_.cancel_all();
  tasks_.cancel_all();
  connecting_ = false;
  announcing_ = false;
}

flow::Task<void> ServerSession::poll_loop(ServerSession* self) {
  flow::Runtime& runtime = *self->environment_.runtime;
  const HandleOptions& options = self->options_;
  const Nanos beyond = self->only_server() ? options.rpc_attempt : options.server_silent;
  Nanos pause = options.rpc_retry_first;
  while (self->state_ == State::kOpen) {
    const uint64_t sequence = self->next_sequence_++;
    net::PollRequest poll{self->last_event_, self->listener_->sealed_bytes(), self->heartbeat_,
                          self->earlier_.has_value()};
    const Nanos until = deadline_after(runtime.now(), self->heartbeat_ + beyond);
    std::optional<net::Response> response =
        co_await self->attempt(std::move(poll), sequence, until);
    if (!response.has_value()) {
      if (self->server_silent()) co_return;
      co_await runtime.sleep_for(pause);
      pause = self->next_pause(pause);
      continue;
    }
    if (!self->check(*response)) co_return;
    pause = options.rpc_retry_first;
    const auto* news = std::get_if<net::EventsResponse>(&response->body);
    if (news == nullptr) {  // an older session's answer
      runtime.probe(probes::kStaleAnswer);
      co_await runtime.sleep_for(pause);
      continue;
    }
    for (const net::Event& event : news->events) {
      if (event.number <= self->last_event_) continue;  // repeated until acknowledged
      self->last_event_ = event.number;
      if (std::holds_alternative<net::MoveEvent>(event.body)) {
        if (!self->earlier_.has_value()) continue;  // gone again meanwhile
        runtime.probe(probes::kMovedBack);
        self->leave(*self->earlier_, "a server before it in the list answers again");
        co_return;
      }
      self->listener_->on_event(event);
    }
  }
}

flow::Task<void> ServerSession::send_loop(ServerSession* self) {
  flow::Runtime& runtime = *self->environment_.runtime;
  const HandleOptions& options = self->options_;
  while (self->state_ == State::kOpen) {
    if (self->outbox_.empty()) {
      co_await self->changed_.wait();
      continue;
    }
    const Posted posted = self->outbox_.front();
    Nanos pause = options.rpc_retry_first;
    while (true) {
      const Nanos span = self->only_server() ? options.rpc_attempt : options.server_silent;
      const Nanos until = deadline_after(runtime.now(), span);
      std::optional<net::Response> response =
          co_await self->attempt(posted.body, posted.sequence, until);
      if (response.has_value()) {
        const bool closing = std::holds_alternative<net::CloseRequest>(posted.body);
        const auto* failed = std::get_if<net::Failure>(&response->body);
        const bool stale = failed != nullptr && failed->kind == net::FailureKind::kStaleSession;
        if (!closing && !self->check(*response)) co_return;
        if (!stale) {
          if (failed != nullptr && !closing) self->listener_->on_rejected(posted.body, *failed);
          break;
        }
      }
      if (self->server_silent()) co_return;
      co_await runtime.sleep_for(pause);
      pause = self->next_pause(pause);
    }
    if (self->state_ != State::kOpen) co_return;
    self->outbox_.pop_front();
    self->changed_.notify_all();
  }
}

// Every heartbeat: does a server that stands before this one answer again?
flow::Task<void> ServerSession::probe_loop(ServerSession* self) {
  flow::Runtime& runtime = *self->environment_.runtime;
  while (self->state_ == State::kOpen) {
    std::optional<size_t> found;
    for (size_t i = 0; i < self->at_ && !found.has_value(); ++i) {
      const Nanos deadline = deadline_after(runtime.now(), self->heartbeat_);
      Result<std::unique_ptr<net::Connection>> made =
          co_await self->environment_.control->connect(self->servers_[i], deadline);
      if (!made) continue;
      std::unique_ptr<net::Connection> connection = std::move(made).value();
      net::Request ping{{}, net::PingRequest{}};
      net::CallOutcome outcome = co_await connection->call(std::move(ping), deadline);
      if (std::holds_alternative<net::Response>(outcome)) found = i;
    }
    if (!WL_BUG(kNeverBack)) self->earlier_ = found;
    co_await runtime.sleep_for(self->heartbeat_);
  }
}

}  // namespace weightlane::ros
