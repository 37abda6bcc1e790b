// The caller's side: sockets made with a deadline, and calls that always end.
#include <capnp/rpc-twoparty.h>
#include <errno.h>
#include <kj/async.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "flow/future.h"
#include "flow/signal.h"
#include "net/codec_wire.h"
#include "prod/rpc_shared.h"

namespace weightlane::prod {

using flow::Task;
using net::CallOutcome;

void set_socket_options(int fd, int family, Nanos dead_peer) {
  if (family == AF_UNIX) return;
  const int on = 1;
  const int idle_seconds = 5;
  const auto milliseconds = static_cast<unsigned>(dead_peer.count / 1'000'000);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_seconds, sizeof idle_seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}

namespace {

// Connects one socket. kUnreachable.
Task<Result<FileDescriptor>> connect_socket(EventLoop* loop, SocketName name, Nanos deadline) {
  FileDescriptor fd(socket(name.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) co_return Error{ErrorCode::kUnreachable, std::strerror(errno)};
  if (connect(fd.get(), name.get(), name.length) == 0) co_return fd;
  if (errno != EINPROGRESS) co_return Error{ErrorCode::kUnreachable, std::strerror(errno)};

  flow::Signal changed(loop->runtime());
  bool writable = false;
  const auto watch = loop->watch(fd.get(), [&changed, &writable](FdReady ready) {
    writable = writable || ready.writable;
    changed.notify_all();
  });
  while (!writable) {
    const bool in_time = co_await changed.wait_until(deadline);
    if (!in_time && !writable) co_return Error{ErrorCode::kUnreachable, "no answer in time"};
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) co_return Error{ErrorCode::kUnreachable, std::strerror(error)};
  co_return fd;
}

// The name service has no deadline of its own, so it is asked on a helper thread.
Task<Result<std::vector<SocketName>>> resolve_by(EventLoop* loop, ControlAddress address,
                                                 Nanos deadline) {
  using Names = Result<std::vector<SocketName>>;
  if (is_numeric(address)) co_return resolve(address, false);
  auto promise = std::make_shared<flow::Promise<Names>>(loop->runtime());
  flow::Future<Names> future = promise->future();
  auto names = std::make_shared<std::optional<Names>>();
  loop->post_work([address, slot = names] { slot->emplace(resolve(address, false)); },
                  [promise, names] { promise->set(std::move(**names)); });
  promise.reset();
  Result<Names> answer = co_await future.until(deadline);
  if (!answer) {
    co_return Error{ErrorCode::kUnreachable,
                    "the name \"" + address.host + "\" was not resolved in time"};
  }
  co_return std::move(answer).value();
}

Task<Result<FileDescriptor>> connect_to_any(EventLoop* loop, std::vector<SocketName> names,
                                            Nanos deadline) {
  std::string why = "the name has no address";
  for (size_t i = 0; i < names.size(); ++i) {
    // One address that answers nothing must not take the time of all (FIELD: NCCL #2318).
    const Nanos now = loop->runtime().now();
    Nanos until = deadline;
    if (deadline != kForever) {
      const auto left = static_cast<int64_t>(names.size() - i);
      until = now + (deadline - now) / left;
    }
    Result<FileDescriptor> fd = co_await connect_socket(loop, names[i], until);
    if (fd) co_return fd;
    why = names[i].text() + ": " + fd.error().message;
  }
  co_return Error{ErrorCode::kUnreachable, why};
}

// One connection. Kept by its calls, so that it may be destroyed beside them.
class Client {
 public:
  Client(std::shared_ptr<RpcShared> shared, std::string address, FileDescriptor socket)
      : shared_(std::move(shared)),
        address_(std::move(address)),
        stream_(std::make_unique<SocketMessageStream>(
            *shared_->loop, std::move(socket), shared_->buffer,
            SocketMessageStream::Limits{.message_bytes = shared_->options.response_bytes_max,
                                        .backlog_bytes = shared_->options.backlog_bytes_max})),
        network_(kj::heap<capnp::TwoPartyVatNetwork>(*stream_, capnp::rpc::twoparty::Side::CLIENT)),
        rpc_(kj::heap<Rpc>(capnp::makeRpcClient(*network_))) {
    capnp::MallocMessageBuilder message(8);
    auto peer = message.initRoot<capnp::rpc::twoparty::VatId>();
    peer.setSide(capnp::rpc::twoparty::Side::SERVER);
    server_ = kj::heap<Server>(rpc_->bootstrap(peer).castAs<net::wire::ReferenceServer>());
    watch_ = network_->onDisconnect()
                 .then([this] { broken_ = true; }, [this](kj::Exception&&) { broken_ = true; })
                 .eagerlyEvaluate(nullptr);
  }
  ~Client() { disconnect(); }

  bool broken() const { return broken_; }
  // Calls under way end with OutcomeUnknown.
  void disconnect() {
    broken_ = true;
    watch_ = nullptr;
    server_ = nullptr;
    rpc_ = nullptr;
    network_ = nullptr;
    stream_ = nullptr;
  }

  static Task<CallOutcome> call(std::shared_ptr<Client> self, net::Request request,
                                Nanos deadline) {
    if (self->broken_) {
      co_return Error{ErrorCode::kClosed, "the connection to " + self->address_ + " is broken"};
    }
    flow::Runtime& runtime = self->shared_->loop->runtime();
    if (runtime.now() >= deadline) {
      co_return Error{ErrorCode::kUnreachable, "no time is left to call " + self->address_};
    }
    flow::Promise<CallOutcome> promise(runtime);
    const flow::Future<CallOutcome> future = promise.future();
    const kj::Promise<void> answer = self->send(request, &promise);
    Result<CallOutcome> outcome = co_await future.until(deadline);
    if (outcome) co_return std::move(outcome).value();
    co_return net::OutcomeUnknown{"no answer from " + self->address_ + " in time"};
  }

 private:
  using Rpc = capnp::RpcSystem<capnp::rpc::twoparty::VatId>;
  using Server = net::wire::ReferenceServer::Client;

  // `promise` outlives what is returned.
  kj::Promise<void> send(const net::Request& request, flow::Promise<CallOutcome>* promise) {
    auto call = server_->callRequest();
    net::to_wire(request, call.initRequest());
    using Results = capnp::Response<net::wire::ReferenceServer::CallResults>;
    return call.send()
        .then(
            [this, promise](Results&& results) {
              Result<net::Response> response = net::from_wire(results.getResponse());
              promise->set(response ? CallOutcome(std::move(response).value())
                                    : CallOutcome(unknown(response.error().message)));
            },
            [this, promise](kj::Exception&& exception) {
              // Only a request that was not executed is answered with a failure.
              const std::string why = exception.getDescription().cStr();
              if (broken_ || exception.getType() == kj::Exception::Type::DISCONNECTED) {
                promise->set(CallOutcome(unknown(why)));
              } else {
                promise->set(CallOutcome(
                    Error{ErrorCode::kRefused, address_ + " refused a request: " + why}));
              }
            })
        .eagerlyEvaluate(nullptr);
  }
  net::OutcomeUnknown unknown(const std::string& why) const {
    return {"the connection to " + address_ + " broke: " + why};
  }

  std::shared_ptr<RpcShared> shared_;
  std::string address_;
  bool broken_ = false;
  std::unique_ptr<SocketMessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Own<Rpc> rpc_;
  kj::Own<Server> server_;
  kj::Promise<void> watch_ = nullptr;
};

class RpcConnection final : public net::Connection {
 public:
  explicit RpcConnection(std::shared_ptr<Client> client) : client_(std::move(client)) {}
  ~RpcConnection() override { client_->disconnect(); }

  Task<CallOutcome> call(net::Request request, Nanos deadline) override {
    return Client::call(client_, std::move(request), deadline);
  }
  bool broken() const override { return client_->broken(); }

 private:
  std::shared_ptr<Client> client_;
};

}  // namespace

Task<Result<std::unique_ptr<net::Connection>>> rpc_connect(std::shared_ptr<RpcShared> shared,
                                                           std::string address, Nanos deadline) {
  const Result<ControlAddress> parsed = parse_control_address(address);
  if (!parsed) co_return parsed.error();
  if (!parsed->is_unix() && parsed->port == 0) {
    co_return Error{ErrorCode::kInvalidArgument,
                    "address \"" + address + "\": a port from 1 to 65535 is needed to connect"};
  }
  Result<std::vector<SocketName>> names = co_await resolve_by(shared->loop, *parsed, deadline);
  if (!names) co_return names.error();
  const int family = names->front().family();
  Result<FileDescriptor> fd =
      co_await connect_to_any(shared->loop, std::move(names).value(), deadline);
  if (!fd) {
    co_return Error{ErrorCode::kUnreachable,
                    "cannot connect to " + address + " (" + fd.error().message + ")"};
  }
  set_socket_options(fd->get(), family, shared->options.dead_peer);
  auto client = std::make_shared<Client>(shared, address, std::move(fd).value());
  co_return std::unique_ptr<net::Connection>(new RpcConnection(std::move(client)));
}

}  // namespace weightlane::prod
