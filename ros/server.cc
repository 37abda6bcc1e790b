// A Poll waits in its client's mailslot; everything else is answered in the step it arrives in.
// After every step those whose mailbox grew are woken, and the timer looks again when it has to
// fire.
#include "ros/server.h"

#include <map>

#include "flow/signal.h"
#include "flow/task_set.h"
#include "ros/directory.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

// The Directory's probes go to the runtime, everything else to whoever watches.
class ForwardingObserver final : public ServerObserver {
 public:
  ForwardingObserver(flow::Runtime* runtime, ServerObserver* next)
      : runtime_(runtime), next_(next) {}

  void on_applied(const Directory& directory, Nanos now) override {
    if (next_ != nullptr) next_->on_applied(directory, now);
  }
  void on_visible(std::string_view model, std::string_view replica, net::Content content) override {
    runtime_->trace({"server.visible", content.version.value, content.id.value, 0, replica});
    if (next_ != nullptr) next_->on_visible(model, replica, content);
  }
  void on_hidden(std::string_view model, std::string_view replica, net::Content content) override {
    runtime_->trace({"server.hidden", content.version.value, content.id.value, 0, replica});
    if (next_ != nullptr) next_->on_hidden(model, replica, content);
  }
  void on_assigned(std::string_view reader, std::string_view source, ShardIndex shard,
                   net::Content content) override {
    runtime_->trace({"server.assigned", content.version.value, shard.value, 0, reader});
    if (next_ != nullptr) next_->on_assigned(reader, source, shard, content);
  }
  void on_decided(std::string_view model, std::string_view replica, CallNumber number,
                  net::CallKind kind, bool ok, ErrorCode code, net::Content content) override {
    runtime_->trace({"server.decided", number.value, ok ? 1u : 0u, content.version.value, replica});
    if (next_ != nullptr) next_->on_decided(model, replica, number, kind, ok, code, content);
  }
  void on_seed_begun(const Group& group, net::Content content) override {
    runtime_->trace({"server.seed", content.version.value, content.id.value, 0, group.replica});
    if (next_ != nullptr) next_->on_seed_begun(group, content);
  }
  void on_seed_skipped(const Group& group, net::Content content) override {
    if (next_ != nullptr) next_->on_seed_skipped(group, content);
  }
  void on_evicted(std::string_view model, std::string_view replica, ShardIndex shard) override {
    runtime_->trace({"server.evicted", shard.value, 0, 0, replica});
    if (next_ != nullptr) next_->on_evicted(model, replica, shard);
  }
  void on_withdrawing(std::string_view model, std::string_view replica,
                      net::Content content) override {
    if (next_ != nullptr) next_->on_withdrawing(model, replica, content);
  }
  void on_offload_directed(std::string_view model, std::string_view offload,
                           net::Content content) override {
    runtime_->trace({"server.offload", content.version.value, content.id.value, 0, offload});
    if (next_ != nullptr) next_->on_offload_directed(model, offload, content);
  }
  void on_retention_dropped(std::string_view model, net::Content content,
                            std::string_view why) override {
    runtime_->trace({"server.retention_dropped", content.version.value, content.id.value, 0, why});
    if (next_ != nullptr) next_->on_retention_dropped(model, content, why);
  }
  void on_rewound(std::string_view model, Generation generation) override {
    runtime_->trace({"server.rewound", generation.value, 0, 0, model});
    if (next_ != nullptr) next_->on_rewound(model, generation);
  }
  void on_request(const net::Request& request, bool repeated) override {
    if (next_ != nullptr) next_->on_request(request, repeated);
  }
  void on_probe(const flow::ProbePoint& point) override { runtime_->probe(point); }

 private:
  flow::Runtime* runtime_;
  ServerObserver* next_;
};

// Where a client's Poll waits for its mailbox to fill. A newer Poll of the same client ends the
// older one.
struct Mailslot {
  explicit Mailslot(flow::Runtime& runtime) : filled(runtime) {}
  flow::Signal filled;
  uint64_t polls = 0;
};

}  // namespace

class ServerCore final : public net::RequestHandler {
 public:
  ServerCore(flow::Runtime* runtime, ServerOptions options, ServerObserver* observer)
      : runtime_(*runtime),
        observer_(runtime, observer),
        boot_{runtime->random()},
        directory_(options, boot_, runtime->now(), &observer_),
        wake_timer_(*runtime),
        copies_(*runtime),
        tasks_(*runtime) {
    tasks_.spawn(keep_time(this), "server.keep_time");
  }

  flow::Task<net::Response> handle(net::Request request) override {
    const Nanos arrived = runtime_.now();
    net::Response response = directory_.apply(request, arrived);
    after_apply();
    if (const auto* wait = std::get_if<net::WaitRequest>(&request.body)) {
      const Nanos hold =
          wait->hold < directory_.options().heartbeat ? wait->hold : directory_.options().heartbeat;
      co_return co_await hold_wait(std::move(request), std::move(response),
                                   deadline_after(arrived, hold));
    }
    const auto* poll = std::get_if<net::PollRequest>(&request.body);
    const auto* events = std::get_if<net::EventsResponse>(&response.body);
    if (poll == nullptr || events == nullptr || !events->events.empty()) co_return response;

    const Nanos heartbeat = directory_.options().heartbeat;
    const Nanos hold = poll->hold < heartbeat ? poll->hold : heartbeat;
    const Incarnation client = request.header.incarnation;
    std::shared_ptr<Mailslot> slot = slots_[client.value];
    if (slot == nullptr) {
      slot = std::make_shared<Mailslot>(runtime_);
      slots_[client.value] = slot;
    }
    const uint64_t mine = ++slot->polls;
    slot->filled.notify_all();
    const Nanos until = deadline_after(arrived, hold);
    while (slot->polls == mine && !directory_.has_events(client)) {
      if (!co_await slot->filled.wait_until(until)) break;
    }
    if (slot->polls != mine) {
      runtime_.probe(probes::kPollReplaced);
      co_return response;
    }
    slots_.erase(client.value);
    if (!directory_.has_events(client)) co_return response;
    response = directory_.apply(request, runtime_.now());
    after_apply();
    co_return response;
  }

  const Directory& directory() const { return directory_; }
  void serve(std::unique_ptr<net::Serving> serving) { serving_ = std::move(serving); }
  std::string address() const { return serving_->address(); }

 private:
  void after_apply() {
    for (Incarnation client : directory_.take_woken()) {
      auto slot = slots_.find(client.value);
      if (slot == slots_.end()) continue;
      slot->second->filled.notify_all();
      // A Poll dropped with its connection leaves its slot; it goes with the client.
      if (directory_.all_clients().count(client.value) == 0) slots_.erase(slot);
    }
    if (std::exchange(copies_seen_, directory_.copies_changed()) != directory_.copies_changed())
      copies_.notify_all();
    if (directory_.next_deadline() < sleeping_until_) wake_timer_.notify_all();
  }

  // Until the version is there: whenever copies come or go, or the model is rewound, it is asked
  // again.
  flow::Task<net::Response> hold_wait(net::Request request, net::Response response, Nanos until) {
    while (true) {
      const auto* waited = std::get_if<net::WaitedResponse>(&response.body);
      if (waited == nullptr || waited->there) co_return response;
      runtime_.probe(probes::kWaited);
      if (!co_await copies_.wait_until(until)) co_return response;
      response = directory_.apply(request, runtime_.now());
      after_apply();
    }
  }

  static flow::Task<void> keep_time(ServerCore* self) {
    while (true) {
      self->sleeping_until_ = self->directory_.next_deadline();
      co_await self->wake_timer_.wait_until(self->sleeping_until_);
      const Nanos now = self->runtime_.now();
      if (now < self->directory_.next_deadline()) continue;
      self->sleeping_until_ = kZeroNanos;  // no wake-up of ourselves
      self->directory_.tick(now);
      self->after_apply();
    }
  }

  flow::Runtime& runtime_;
  ForwardingObserver observer_;
  BootId boot_;
  Directory directory_;
  Nanos sleeping_until_ = kForever;
  std::map<uint64_t, std::shared_ptr<Mailslot>> slots_;  // clients that wait, by incarnation
  flow::Signal wake_timer_;
  flow::Signal copies_;  // of some version have come or gone
  uint64_t copies_seen_ = 0;
  flow::TaskSet tasks_;
  std::unique_ptr<net::Serving> serving_;  // last: its handlers end before what they use
};

Result<std::unique_ptr<Server>> Server::start(flow::Runtime* runtime, net::ControlPlane* control,
                                              std::string address, ServerOptions options,
                                              ServerObserver* observer) {
  auto core = std::make_unique<ServerCore>(runtime, options, observer);
  Result<std::unique_ptr<net::Serving>> serving = control->serve(std::move(address), core.get());
  if (!serving) return serving.error();
  core->serve(std::move(serving).value());
  return std::unique_ptr<Server>(new Server(std::move(core)));
}

Server::Server(std::unique_ptr<ServerCore> core) : core_(std::move(core)) {}
Server::~Server() = default;
std::string Server::address() const { return core_->address(); }
const Directory& Server::directory() const { return core_->directory(); }

}  // namespace weightlane::ros
