// The plane itself: what it registers is the registry's business, what it reads the reader's, what
// it serves the source's; here are the port, the endpoint text and the wait for a connection.
#include "prod/tcp_plane.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "flow/future.h"
#include "prod/tcp_connect.h"

namespace weightlane::prod {
namespace {

constexpr int kBacklog = 256;
constexpr size_t kAdvertisedMax = 4;
constexpr size_t kAddressesMax = 16;
constexpr uint32_t kOutstandingMax = 64;

net::Capabilities capabilities() {
  net::Capabilities result;
  result.fences = true;
  result.max_read_bytes = kTcpReadMax;
  result.max_outstanding_reads = kOutstandingMax;
  return result;
}

Error bad_endpoint(const std::string& text, const std::string& why) {
  return Error{ErrorCode::kInvalidArgument, "tcp endpoint '" + text + "': " + why};
}

// Sets `error` to errno when there is none. A socket that takes IPv4 too when the address is [::].
FileDescriptor listen_at(const TcpAddress& address, int& error) {
  FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int both = 0;
  error = 0;
  if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd && address.family() == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
  }
  if (!fd || bind(fd.get(), address.get(), address.length) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    error = errno;
    return FileDescriptor();
  }
  return fd;
}

uint16_t port_of(const FileDescriptor& fd) {
  TcpAddress bound;
  bound.length = sizeof bound.storage;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length);
  return bound.port();
}

// Gives the attempt up when the task that waits for it is dropped.
class GiveUp {
 public:
  explicit GiveUp(std::shared_ptr<TcpConnectAttempt> attempt) : attempt_(std::move(attempt)) {}
  GiveUp(const GiveUp&) = delete;
  GiveUp& operator=(const GiveUp&) = delete;
  ~GiveUp() {
    if (attempt_ != nullptr) attempt_->give_up();
  }
  void ended() { attempt_ = nullptr; }

 private:
  std::shared_ptr<TcpConnectAttempt> attempt_;
};

// What the thread leaves for the loop. The promise is the loop's alone.
struct Outcome {
  explicit Outcome(flow::Runtime& runtime) : promise(runtime) {}
  std::optional<Result<TcpConnected>> value;
  flow::Promise<void> promise;
};

flow::Task<Result<net::Connected>> connect_task(std::shared_ptr<TcpShared> shared,
                                                std::shared_ptr<TcpConnectAttempt> attempt,
                                                flow::Signal* wake) {
  GiveUp guard(attempt);
  auto outcome = std::make_shared<Outcome>(shared->loop.runtime());
  const flow::Future<void> ended = outcome->promise.future();
  EventLoop* const loop = &shared->loop;
  // The thread's last reference to the outcome goes to the loop with the callback.
  const bool started = shared->threads.start(
      "wl-tcp-connect", [loop, shared = shared.get(), attempt, outcome]() mutable {
        outcome->value.emplace(attempt->run(shared->sockets));
        loop->post_to_loop([outcome = std::move(outcome)] { outcome->promise.set(); });
      });
  if (!started) co_return Error{ErrorCode::kResourceExhausted, "no thread to connect with"};
  static_cast<void>(co_await ended);
  guard.ended();
  Result<TcpConnected> result = std::move(*outcome->value);
  if (!result) co_return result.error();
  if (shared->sockets.stopping()) co_return Error{ErrorCode::kClosed, "the data plane was closed"};
  auto reader =
      std::make_shared<TcpReader>(shared, wake, capabilities(), std::move(result->sockets));
  const Result<Done> running = reader->start();
  if (!running) co_return running.error();
  net::Connected connected;
  connected.pair = make_tcp_queue_pair(std::move(reader), capabilities());
  connected.payload = std::move(result->payload);
  co_return connected;
}

flow::Task<Result<net::Connected>> failed_task(Error error) { co_return error; }

}  // namespace

Result<TcpEndpoint> TcpEndpoint::parse(const std::string& text) {
  const size_t slash = text.rfind('/');
  if (slash == std::string::npos) return bad_endpoint(text, "no service after a slash");
  TcpEndpoint endpoint;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, endpoint.service, 16);
  if (error != std::errc{} || rest != end) return bad_endpoint(text, "the service is no number");
  for (size_t begin = 0; begin < slash;) {
    const size_t comma = std::min(text.find(',', begin), slash);
    Result<TcpAddress> address = TcpAddress::parse(text.substr(begin, comma - begin));
    if (!address) return bad_endpoint(text, address.error().message);
    endpoint.addresses.push_back(*address);
    if (endpoint.addresses.size() > kAddressesMax) return bad_endpoint(text, "too many addresses");
    begin = comma + 1;
  }
  if (endpoint.addresses.empty()) return bad_endpoint(text, "no address");
  return endpoint;
}

std::string TcpEndpoint::text() const {
  std::string result;
  for (const TcpAddress& address : addresses) {
    if (!result.empty()) result += ',';
    result += address.text();
  }
  char id[17] = {};
  snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(service));
  return result + "/" + id;
}

TcpPlane::TcpPlane(EventLoop& loop, TcpOptions options)
    : options_(std::move(options)),
      shared_(std::make_shared<TcpShared>(loop)),
      source_(std::make_shared<TcpSource>(shared_, options_.handshake)) {}

TcpPlane::~TcpPlane() {
  source_->stop();
  shared_->sockets.stop_all();
  shared_->threads.join_all();
}

flow::Task<Result<net::RegionId>> TcpPlane::register_memory(net::MemoryRange range) {
  co_return shared_->registry.add(range);
}
flow::Task<void> TcpPlane::deregister(net::RegionId region) {
  return MemoryRegistry::remove(&shared_->registry, region);
}
Result<net::RegionId> TcpPlane::allocate_words(uint32_t count) {
  return shared_->registry.allocate_words(count);
}
Result<net::RegionId> TcpPlane::adopt_words(net::MemoryRange words) {
  return shared_->registry.adopt_words(words);
}
void TcpPlane::free_words(net::RegionId words) { shared_->registry.free_words(words); }
void TcpPlane::store_word(net::RegionId words, uint32_t index, uint64_t value) {
  shared_->registry.store_word(words, index, value);
}
uint64_t TcpPlane::load_word(net::RegionId words, uint32_t index) const {
  return shared_->registry.load_word(words, index);
}
flow::Task<Result<uint64_t>> TcpPlane::checksum(net::RegionId region, uint64_t offset,
                                                uint64_t length) {
  return MemoryRegistry::checksum(&shared_->registry, region, offset, length);
}

Result<Done> TcpPlane::open_port() {
  const bool everywhere = options_.host.empty();
  Result<TcpAddress> host = TcpAddress::from_host(everywhere ? "::" : options_.host, 0);
  if (!host) return host.error();
  TcpAddress address = *host;
  const uint16_t last = std::max(options_.port_last, options_.port_first);
  int error = 0;
  FileDescriptor listening;
  for (uint32_t port = options_.port_first; port <= last && !listening; ++port) {
    address.set_port(static_cast<uint16_t>(port));
    listening = listen_at(address, error);
    if (!listening && everywhere && (error == EAFNOSUPPORT || error == EADDRNOTAVAIL)) {
      // A machine without IPv6.
      address = *TcpAddress::from_host("0.0.0.0", 0);
      address.set_port(static_cast<uint16_t>(port));
      listening = listen_at(address, error);
    }
  }
  if (!listening) {
    std::string which = "port " + std::to_string(options_.port_first);
    if (last != options_.port_first) {
      which =
          "every port from " + std::to_string(options_.port_first) + " to " + std::to_string(last);
    }
    return Error{ErrorCode::kResourceExhausted, "data plane: cannot listen at " + address.text() +
                                                    " (" + which +
                                                    " was tried): " + std::strerror(error)};
  }
  const uint16_t port = port_of(listening);
  const Result<Done> started = source_->start(std::move(listening));
  if (started) port_ = port;
  return started;
}

Result<std::vector<TcpAddress>> TcpPlane::advertised() const {
  std::vector<TcpAddress> addresses;
  for (const std::string& text : options_.advertise) {
    Result<TcpAddress> address = TcpAddress::from_host(text, port_);
    if (!address) address = TcpAddress::parse(text);
    if (!address) return address.error();
    addresses.push_back(*address);
  }
  if (addresses.empty() && !options_.host.empty()) {
    const Result<TcpAddress> host = TcpAddress::from_host(options_.host, port_);
    if (!host) return host.error();
    if (!host->is_wildcard()) addresses.push_back(*host);
  }
  if (addresses.empty()) addresses = interface_addresses(kAdvertisedMax);
  if (addresses.empty()) addresses.push_back(*TcpAddress::from_host("127.0.0.1", 0));
  for (TcpAddress& address : addresses) {
    if (address.port() == 0) address.set_port(port_);
  }
  return addresses;
}

Result<std::string> TcpPlane::listen(net::Acceptor* acceptor) {
  if (port_ == 0) {
    const Result<Done> opened = open_port();
    if (!opened) return opened.error();
  }
  Result<std::vector<TcpAddress>> addresses = advertised();
  if (!addresses) return addresses.error();
  TcpEndpoint endpoint;
  endpoint.addresses = std::move(*addresses);
  endpoint.service = source_->add_service(acceptor);
  return endpoint.text();
}

void TcpPlane::stop_listening(net::Acceptor* acceptor) { source_->remove_service(acceptor); }

flow::Task<Result<net::Connected>> TcpPlane::connect(std::string endpoint, Bytes hello,
                                                     flow::Signal* wake, Nanos deadline) {
  Result<TcpEndpoint> parsed = TcpEndpoint::parse(endpoint);
  if (!parsed) return failed_task(parsed.error());
  if (hello.size() > kTcpHelloMax) {
    return failed_task(Error{ErrorCode::kInvalidArgument, "a hello of more than 4 MiB"});
  }
  const Nanos now = shared_->loop.runtime().now();
  const Nanos left = deadline == kForever ? seconds(3600) : deadline - now;
  auto attempt = std::make_shared<TcpConnectAttempt>(
      std::move(parsed->addresses), parsed->service, std::move(hello),
      std::clamp(options_.streams, 1u, kTcpStreamsMax),
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(left.count));
  return connect_task(shared_, std::move(attempt), wake);
}

}  // namespace weightlane::prod
