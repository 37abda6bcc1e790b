// Setting up and taking down; the READs themselves are in verbs_queue_pair.cc.
#include "prod/verbs_plane.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "flow/combinators.h"

namespace weightlane::prod {
namespace {

constexpr size_t kMaxStrangers = 128;        // each may have sent up to kMaxConnectRequest
constexpr Nanos kAcceptRetry = millis(100);  // out of descriptors: others must close first
constexpr std::string_view kScheme = "verbs://";

template <typename T>
bool parse_number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

ConnectReply refusal(ErrorCode code, std::string reason) {
  ConnectReply reply;
  reply.refusal = Error{code, std::move(reason)};
  return reply;
}

Error unreachable(const VerbsEndpoint& endpoint, const std::string& why) {
  return Error{ErrorCode::kUnreachable, endpoint.text() + ": " + why};
}

// How many strangers there are, whatever way each of them ends.
class Counted {
 public:
  explicit Counted(size_t* count) : count_(count) { ++*count_; }
  ~Counted() { --*count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  size_t* count_;
};

}  // namespace

Result<VerbsEndpoint> VerbsEndpoint::parse(const std::string& text) {
  const Error wrong{
      ErrorCode::kInvalidArgument,
      "\"" + text +
          "\" is no verbs endpoint; right would be verbs://ADDRESS:PORT/NUMBER, IPv6 in brackets"};
  std::string_view rest = text;
  if (!rest.starts_with(kScheme)) return wrong;
  rest.remove_prefix(kScheme.size());
  const size_t slash = rest.rfind('/');
  if (slash == std::string_view::npos) return wrong;
  VerbsEndpoint endpoint;
  if (!parse_number(rest.substr(slash + 1), &endpoint.acceptor)) return wrong;
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || !parse_number(rest.substr(colon + 1), &endpoint.port))
    return wrong;
  std::string_view host = rest.substr(0, colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  // "2605:340::1" without brackets would be read as a host and a port (Mooncake #470).
  if (host.empty() || (!bracketed && host.find(':') != std::string_view::npos) ||
      endpoint.port == 0)
    return wrong;
  endpoint.host = host;
  return endpoint;
}

std::string VerbsEndpoint::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return std::string(kScheme) + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port) + "/" +
         std::to_string(acceptor);
}

Result<std::unique_ptr<VerbsPlane>> VerbsPlane::open(EventLoop& loop, const VerbsOptions& options) {
  Result<std::shared_ptr<VerbsDevice>> device = VerbsDevice::open(options);
  if (!device.ok()) return device.error();
  return std::unique_ptr<VerbsPlane>(new VerbsPlane(loop, std::move(*device)));
}

VerbsPlane::VerbsPlane(EventLoop& loop, std::shared_ptr<VerbsDevice> device)
    : loop_(loop),
      device_(std::move(device)),
      memory_(std::make_shared<VerbsMemory>(loop, device_)),
      arrived_(loop.runtime()),
      tasks_(loop.runtime()) {
  device_watch_ =
      loop_.watch(device_->context()->async_fd, [this](FdReady) { on_device_events(); });
}

VerbsPlane::~VerbsPlane() {
  tasks_.cancel_all();
  listening_watch_.reset();
  if (listening_ >= 0) ::close(listening_);
}

void VerbsPlane::store_word(net::RegionId words, uint32_t index, uint64_t value) {
  // Before: what was written earlier is visible to whoever sees the new value. After: nothing
  // written later can be seen by a READ that came before it (x86 keeps stores in order, but not a
  // store before a later load, nor the compiler).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic_ref<uint64_t>(*memory_->word(words, index)).store(value, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

uint64_t VerbsPlane::load_word(net::RegionId words, uint32_t index) const {
  return std::atomic_ref<uint64_t>(*memory_->word(words, index)).load(std::memory_order_acquire);
}

net::Capabilities VerbsPlane::capabilities(const PairLimits& limits) const {
  return {.fences = true,
          // A scatter entry's length has 32 bits.
          .max_read_bytes = std::min<uint64_t>(limits.max_message, 0xffffffffu),
          .max_outstanding_reads = device_->options().queue_depth};
}

// ------------------------------------------------------------------------------------------------
// the source's side

Result<Done> VerbsPlane::open_port() {
  if (listening_ >= 0) return Done{};
  const VerbsOptions& options = device_->options();
  here_.host = options.host.empty() ? device_->ip_address() : options.host;
  if (here_.host.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 device_->name() + " has no IP address: say on which one to listen"};
  }
  Result<SocketAddress> address = SocketAddress::parse(here_.host, 0);
  if (!address.ok()) return address.error();
  std::string why;
  for (uint32_t port = options.port_first; port <= std::max(options.port_first, options.port_last);
       ++port) {
    const SocketAddress at = SocketAddress::parse(here_.host, static_cast<uint16_t>(port)).value();
    const int fd = ::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd >= 0 && ::bind(fd, at.get(), at.length) == 0 && ::listen(fd, SOMAXCONN) == 0) {
      SocketAddress bound;
      bound.length = sizeof bound.storage;
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.length);
      here_.port = ntohs(bound.family() == AF_INET
                             ? reinterpret_cast<const sockaddr_in*>(bound.get())->sin_port
                             : reinterpret_cast<const sockaddr_in6*>(bound.get())->sin6_port);
      listening_ = fd;
      listening_watch_ = loop_.watch(fd, [this](FdReady) { arrived_.notify_all(); });
      tasks_.spawn(accept_strangers(), "verbs.accept");
      return Done{};
    }
    why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
  }
  return Error{ErrorCode::kResourceExhausted, "no port of " + std::to_string(options.port_first) +
                                                  "-" + std::to_string(options.port_last) + " at " +
                                                  here_.host + " can be listened on: " + why};
}

Result<std::string> VerbsPlane::listen(net::Acceptor* acceptor) {
  Result<Done> opened = open_port();
  if (!opened.ok()) return opened.error();
  VerbsEndpoint endpoint = here_;
  endpoint.acceptor = ++last_acceptor_;
  acceptors_[endpoint.acceptor] = acceptor;
  return endpoint.text();
}

void VerbsPlane::stop_listening(net::Acceptor* acceptor) {
  std::erase_if(acceptors_, [acceptor](const auto& entry) { return entry.second == acceptor; });
}

flow::Task<void> VerbsPlane::accept_strangers() {
  for (;;) {
    const int fd = ::accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 && strangers_ < kMaxStrangers) {
      tasks_.spawn(serve(std::make_shared<FrameSocket>(loop_, fd, kMaxConnectRequest)),
                   "verbs.serve");
    } else if (fd >= 0) {
      ::close(fd);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      co_await arrived_.wait();
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      co_await loop_.runtime().sleep_for(kAcceptRetry);
    }
    // Anything else concerned that one connection only.
  }
}

flow::Task<void> VerbsPlane::serve(std::shared_ptr<FrameSocket> socket) {
  const Nanos deadline = deadline_after(loop_.runtime().now(), device_->options().handshake);
  const Counted counted(&strangers_);
  Result<Bytes> frame = co_await FrameSocket::receive(socket, deadline);
  if (!frame.ok()) co_return;
  Result<ConnectRequest> request = decode_connect_request(*frame);
  if (!request.ok()) co_return;
  const PairLimits limits = narrower(request->limits, device_->limits());
  MadePair pair = co_await make_source_pair(request->address, limits);
  if (socket->closed()) co_return;  // the reader has given up meanwhile: nobody to accept
  ConnectReply reply;
  auto source = std::make_shared<VerbsSource>();
  source->memory = memory_;
  source->socket = socket;
  if (pair.ok()) {
    source->pair = *pair;
    reply = decide(*request, limits, source);
  } else {
    reply = refusal(pair.error().code, pair.error().message);
  }
  source->deciding = false;
  socket->send(encode(reply));
  if (!reply.refusal && !source->dropped) co_return;
  co_await FrameSocket::flush(socket, deadline);
  socket->close();
}

// Ready to be READ from before the reader hears of it.
flow::Task<VerbsPlane::MadePair> VerbsPlane::make_source_pair(PairAddress peer, PairLimits limits) {
  const auto sequence = static_cast<uint32_t>(loop_.runtime().random());
  std::function<MadePair()> work = [device = device_, peer, limits, sequence]() -> MadePair {
    MadePair pair = VerbsPair::create(device, VerbsPair::Kind::kSource, sequence);
    if (!pair.ok()) return pair;
    Result<Done> connected = (*pair)->connect(peer, limits);
    if (!connected.ok()) return connected.error();
    return pair;
  };
  co_return co_await loop_.run_on_helper<MadePair>(std::move(work));
}

ConnectReply VerbsPlane::decide(const ConnectRequest& request, const PairLimits& limits,
                                std::shared_ptr<VerbsSource> source) {
  const auto found = acceptors_.find(request.acceptor);
  if (found == acceptors_.end()) {
    return refusal(ErrorCode::kRefused,
                   "nobody listens under number " + std::to_string(request.acceptor) + " any more");
  }
  ConnectReply reply;
  reply.address = source->pair->address();
  reply.limits = limits;
  net::AcceptDecision decision =
      found->second->on_connect(request.hello, std::make_unique<VerbsPassivePair>(source));
  if (!decision.ok()) return refusal(ErrorCode::kRefused, decision.error().message);
  if (decision->payload.size() > kMaxConnectReply - kMaxFixedFields)
    return refusal(ErrorCode::kRefused, "the answer is too long");
  reply.payload = std::move(decision->payload);
  return reply;
}

// ------------------------------------------------------------------------------------------------
// the reader's side

flow::Task<Result<net::Connected>> VerbsPlane::connect(std::string endpoint, Bytes hello,
                                                       flow::Signal* wake, Nanos deadline) {
  Result<VerbsEndpoint> parsed = VerbsEndpoint::parse(endpoint);
  if (!parsed.ok()) co_return parsed.error();
  if (hello.size() > kMaxConnectRequest - kMaxFixedFields)
    co_return Error{ErrorCode::kInvalidArgument, "the hello is too long"};
  std::optional<Result<net::Connected>> attached = co_await flow::with_timeout(
      loop_.runtime(), deadline, attach(*parsed, std::move(hello), wake, deadline));
  if (!attached.has_value()) co_return unreachable(*parsed, "no connection in time");
  co_return std::move(*attached);
}

flow::Task<Result<net::Connected>> VerbsPlane::attach(VerbsEndpoint endpoint, Bytes hello,
                                                      flow::Signal* wake, Nanos deadline) {
  Result<SocketAddress> address = SocketAddress::parse(endpoint.host, endpoint.port);
  if (!address.ok()) co_return address.error();
  Result<std::shared_ptr<FrameSocket>> connecting =
      FrameSocket::connect(loop_, *address, kMaxConnectReply);
  if (!connecting.ok()) co_return unreachable(endpoint, connecting.error().message);
  std::shared_ptr<FrameSocket> socket = *connecting;

  const auto sequence = static_cast<uint32_t>(loop_.runtime().random());
  std::function<MadePair()> make = [device = device_, sequence] {
    return VerbsPair::create(device, VerbsPair::Kind::kReader, sequence);
  };
  MadePair made = co_await loop_.run_on_helper<MadePair>(std::move(make));
  if (!made.ok()) co_return made.error();
  std::shared_ptr<VerbsPair> pair = *made;

  socket->send(encode(
      ConnectRequest{endpoint.acceptor, pair->address(), device_->limits(), std::move(hello)}));
  Result<Bytes> frame = co_await FrameSocket::receive(socket, deadline);
  if (!frame.ok()) co_return unreachable(endpoint, frame.error().message);
  Result<ConnectReply> reply = decode_connect_reply(*frame);
  if (!reply.ok()) co_return unreachable(endpoint, reply.error().message);
  if (reply->refusal) co_return *reply->refusal;

  const PairLimits limits = narrower(reply->limits, device_->limits());
  std::function<Result<Done>()> join = [pair, peer = reply->address, limits] {
    return pair->connect(peer, limits);
  };
  Result<Done> joined = co_await loop_.run_on_helper<Result<Done>>(std::move(join));
  if (!joined.ok()) co_return unreachable(endpoint, joined.error().message);

  auto reader = std::make_shared<VerbsReader>(loop_, memory_, std::move(pair), std::move(socket),
                                              capabilities(limits), wake);
  reader->start();
  std::erase_if(readers_, [](const std::weak_ptr<VerbsReader>& known) { return known.expired(); });
  readers_.push_back(reader);
  net::Connected connected;
  connected.pair = std::make_unique<VerbsQueuePair>(std::move(reader));
  connected.payload = std::move(reply->payload);
  co_return connected;
}

// ------------------------------------------------------------------------------------------------
// the device's news

void VerbsPlane::on_device_events() {
  ibv_async_event event{};
  while (ibv_get_async_event(device_->context(), &event) == 0) {
    on_device_event(event);
    // Before it, destroying what the event speaks of would wait for ever (S13).
    ibv_ack_async_event(&event);
  }
}

void VerbsPlane::on_device_event(const ibv_async_event& event) {
  const auto break_off = [this](auto&& concerned) {
    for (const std::weak_ptr<VerbsReader>& weak : readers_) {
      const std::shared_ptr<VerbsReader> reader = weak.lock();
      if (reader && concerned(*reader)) reader->break_off(net::CompletionStatus::kFatal);
    }
  };
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL:
      break_off([](const VerbsReader&) { return true; });
      break;
    case IBV_EVENT_CQ_ERR:
      break_off([&event](const VerbsReader& reader) { return reader.is(event.element.cq); });
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      break_off([&event](const VerbsReader& reader) { return reader.is(event.element.qp); });
      break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PORT_ACTIVE:
      device_->refresh_address();
      break;
    default:  // a source's pair that was READ with a bad key, a port that went down: the
              // completions tell
      break;
  }
}

}  // namespace weightlane::prod
