// The server's side: one capability per connection, whose calls become flow tasks.
//
// A handler's task belongs to its connection's TaskSet. Everything is torn down from the loop,
// never from inside a kj event: an event that finds its connection ended only asks for it.
#include <capnp/rpc-twoparty.h>
#include <errno.h>
#include <kj/async.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>

#include "flow/task_set.h"
#include "net/codec_wire.h"
#include "prod/rpc_shared.h"

namespace weightlane::prod {
namespace {

using flow::Task;
using CallContext = capnp::CallContext<net::wire::ReferenceServer::CallParams,
                                       net::wire::ReferenceServer::CallResults>;

class ServedConnection;

// The context of a call, until it is answered or its task is dropped.
class PendingCall {
 public:
  PendingCall(CallContext context, kj::Own<kj::PromiseFulfiller<void>> fulfiller)
      : context_(context), fulfiller_(kj::mv(fulfiller)) {}
  PendingCall(PendingCall&&) = default;
  ~PendingCall() {
    if (fulfiller_.get() == nullptr) return;
    // Not a failure: the request may have been executed.
    fulfiller_->reject(kj::Exception(kj::Exception::Type::DISCONNECTED, __FILE__, __LINE__,
                                     kj::str("the server stops")));
  }
  void answer(const net::Response& response) {
    net::to_wire(response, context_.getResults().initResponse());
    kj::Own<kj::PromiseFulfiller<void>> fulfiller = kj::mv(fulfiller_);
    fulfiller->fulfill();
  }

 private:
  CallContext context_;
  kj::Own<kj::PromiseFulfiller<void>> fulfiller_;
};

// What a connection's capability calls into; the capability may outlive the connection.
struct Gate {
  ServedConnection* connection = nullptr;
};

class Endpoint final : public net::wire::ReferenceServer::Server {
 public:
  explicit Endpoint(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  kj::Promise<void> call(CallContext context) override;

 private:
  std::shared_ptr<Gate> gate_;
};

class ServedConnection {
 public:
  ServedConnection(RpcShared& shared, net::RequestHandler* handler, FileDescriptor socket,
                   std::function<void()> on_ended)
      : handler_(handler),
        gate_(std::make_shared<Gate>()),
        stream_(*shared.loop, std::move(socket), shared.buffer,
                SocketMessageStream::Limits{.message_bytes = shared.options.request_bytes_max,
                                            .unread_bytes = shared.options.unread_bytes,
                                            .backlog_bytes = shared.options.backlog_bytes_max}),
        network_(stream_, capnp::rpc::twoparty::Side::SERVER),
        rpc_(capnp::makeRpcServer(network_, capnp::Capability::Client(kj::heap<Endpoint>(gate_)))),
        tasks_(shared.loop->runtime()) {
    gate_->connection = this;
    rpc_.setFlowLimit(shared.options.requests_bytes_max / sizeof(capnp::word));
    auto ended = std::make_shared<std::function<void()>>(std::move(on_ended));
    ended_ = network_.onDisconnect()
                 .then([ended] { (*ended)(); }, [ended](kj::Exception&&) { (*ended)(); })
                 .eagerlyEvaluate(nullptr);
  }
  ~ServedConnection() {
    gate_->connection = nullptr;
    tasks_.cancel_all();
  }
  void handle(net::Request request, PendingCall call) {
    tasks_.spawn(run(handler_, std::move(request), std::move(call)), "rpc.handler");
  }
  const std::string& why_ended() const { return stream_.why_ended(); }

 private:
  static Task<void> run(net::RequestHandler* handler, net::Request request, PendingCall call) {
    const net::Response response = co_await handler->handle(std::move(request));
    call.answer(response);
  }

  net::RequestHandler* handler_;
  std::shared_ptr<Gate> gate_;
  SocketMessageStream stream_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc_;
  kj::Promise<void> ended_ = nullptr;
  flow::TaskSet tasks_;
};

kj::Promise<void> Endpoint::call(CallContext context) {
  const auto refuse = [](kj::Exception::Type type, const std::string& why) {
    return kj::Exception(type, __FILE__, __LINE__, kj::str(why.c_str()));
  };
  if (gate_->connection == nullptr) {
    return refuse(kj::Exception::Type::DISCONNECTED, "the connection has ended");
  }
  Result<net::Request> request = net::from_wire(context.getParams().getRequest());
  if (!request) return refuse(kj::Exception::Type::FAILED, request.error().message);
  context.releaseParams();
  auto pair = kj::newPromiseAndFulfiller<void>();
  gate_->connection->handle(std::move(request).value(),
                            PendingCall(context, kj::mv(pair.fulfiller)));
  return kj::mv(pair.promise);
}

class RpcServing final : public net::Serving {
 public:
  RpcServing(std::shared_ptr<RpcShared> shared, net::RequestHandler* handler, Listener listener)
      : shared_(std::move(shared)),
        handler_(handler),
        listener_(std::move(listener)),
        alive_(std::make_shared<bool>(true)),
        tasks_(shared_->loop->runtime()) {
    watch_ = shared_->loop->watch(listener_.socket.get(), [this](FdReady ready) {
      if (ready.readable) accept_all();
    });
  }
  ~RpcServing() override {
    *alive_ = false;
    watch_.reset();
    if (listener_.name.family() == AF_UNIX) unlink(address().c_str() + sizeof("unix:") - 1);
  }
  std::string address() const override { return listener_.name.text(); }

 private:
  void accept_all() {
    for (;;) {
      sockaddr_storage peer{};
      socklen_t length = sizeof peer;
      FileDescriptor socket(accept4(listener_.socket.get(), reinterpret_cast<sockaddr*>(&peer),
                                    &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket) {
        SocketName name;
        std::memcpy(&name.storage, &peer, sizeof peer);
        name.length = length;
        add(std::move(socket), name);
      } else if (errno == EAGAIN) {
        return;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        shared_->log->error("rpc.accept_failed", {{"reason", std::strerror(errno)}});
        if (tasks_.empty()) tasks_.spawn(accept_later(this), "rpc.accept");
        return;
      }
      // Others: this connection ended before it was taken, and the next may be fine.
    }
  }
  // Descriptors may be free again then; there will be no edge for those who already wait.
  static Task<void> accept_later(RpcServing* self) {
    co_await self->shared_->loop->runtime().sleep_for(millis(100));
    self->retry_accept();
  }
  void retry_accept() {
    shared_->loop->post_to_loop([this, alive = alive_] {
      if (*alive) accept_all();
    });
  }

  void add(FileDescriptor socket, const SocketName& peer) {
    const std::string who = peer.family() == AF_UNIX ? "unix" : peer.text();
    if (connections_.size() >= shared_->options.connections_max) {
      shared_->log->warning("rpc.refused", {{"peer", who}, {"reason", "too many connections"}});
      return;
    }
    set_socket_options(socket.get(), peer.family(), shared_->options.dead_peer);
    const uint64_t id = next_id_++;
    // Called from inside a kj event that belongs to the connection: it must not die there.
    auto on_ended = [this, id, who, alive = alive_] {
      shared_->loop->post_to_loop([this, id, who, alive] {
        if (*alive) remove(id, who);
      });
    };
    connections_.emplace(id, std::make_unique<ServedConnection>(
                                 *shared_, handler_, std::move(socket), std::move(on_ended)));
    shared_->log->debug("rpc.connected", {{"peer", who}, {"connections", connections_.size()}});
  }
  void remove(uint64_t id, const std::string& who) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const std::string why = found->second->why_ended();
    connections_.erase(found);
    const LogLevel level = why.empty() ? LogLevel::kDebug : LogLevel::kInfo;
    shared_->log->write(level, "rpc.disconnected",
                        {{"peer", who},
                         {"reason", why.empty() ? std::string("closed") : why},
                         {"connections", connections_.size()}});
  }

  std::shared_ptr<RpcShared> shared_;
  net::RequestHandler* handler_;
  Listener listener_;
  std::shared_ptr<bool> alive_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::unique_ptr<ServedConnection>> connections_;
  std::unique_ptr<FdWatch> watch_;
  flow::TaskSet tasks_;
};

}  // namespace

Result<std::unique_ptr<net::Serving>> rpc_serve(std::shared_ptr<RpcShared> shared,
                                                std::string address, net::RequestHandler* handler) {
  Result<Listener> listener = listen_on(address);
  if (!listener) return listener.error();
  return std::unique_ptr<net::Serving>(
      new RpcServing(std::move(shared), handler, std::move(listener).value()));
}

RpcControlPlane::RpcControlPlane(EventLoop* loop, Log* log, RpcOptions options)
    : shared_(std::make_shared<RpcShared>()) {
  shared_->loop = loop;
  shared_->log = log;
  shared_->options = options;
}
RpcControlPlane::~RpcControlPlane() = default;

flow::Task<Result<std::unique_ptr<net::Connection>>> RpcControlPlane::connect(std::string address,
                                                                              Nanos deadline) {
  return rpc_connect(shared_, std::move(address), deadline);
}

Result<std::unique_ptr<net::Serving>> RpcControlPlane::serve(std::string address,
                                                             net::RequestHandler* handler) {
  return rpc_serve(shared_, std::move(address), handler);
}

}  // namespace weightlane::prod
