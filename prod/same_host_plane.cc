// The source's side, and the way to a connection. A Served is one reader as its source sees it; it
// is a stranger until its hello was accepted, and the PassiveQueuePair's from then on.
#include "prod/same_host_plane.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "prod/process_identity.h"

namespace weightlane::prod {
namespace {

constexpr uint64_t kReadMax = 1ull << 30;
constexpr uint32_t kOutstandingMax = 64;
constexpr uint64_t kHelloMax = 4ull << 20;
constexpr uint64_t kPayloadMax = 256ull << 20;
constexpr size_t kStrangersMax = 64;
constexpr Nanos kBacklogRetry = millis(2);

net::Capabilities capabilities() {
  net::Capabilities result;
  result.fences = false;
  result.max_read_bytes = kReadMax;
  result.max_outstanding_reads = kOutstandingMax;
  return result;
}

uint64_t secret() {
  uint64_t value = 0;
  const ssize_t got = getrandom(&value, sizeof value, 0);
  WL_ASSERT(got == sizeof value);
  return value;
}

std::string hex(uint64_t value) {
  char text[17] = {};
  snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

bool peer_credentials(int fd, ucred& credentials) {
  socklen_t length = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0;
}

Error unreachable(const SameHostEndpoint& endpoint, const std::string& why) {
  return Error{ErrorCode::kUnreachable,
               "same-host process " + std::to_string(endpoint.pid) + ": " + why};
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

flow::Task<Result<net::Connected>> failed_task(Error error) { co_return error; }

}  // namespace

// ---- endpoints
// -------------------------------------------------------------------------------------

Result<SameHostEndpoint> SameHostEndpoint::parse(const std::string& text) {
  const Error bad{ErrorCode::kInvalidArgument,
                  "same-host endpoint '" + text + "' is not boot/pid/start/socket/service"};
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '/') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (parts.size() != 5) return bad;
  const auto number = [](const std::string& digits, int base, uint64_t& value) {
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, value, base);
    return error == std::errc{} && rest == end;
  };
  SameHostEndpoint endpoint;
  endpoint.boot = parts[0];
  endpoint.socket = parts[3];
  if (!number(parts[1], 10, endpoint.pid) || !number(parts[2], 10, endpoint.start_time) ||
      !number(parts[4], 16, endpoint.service) || endpoint.socket.empty()) {
    return bad;
  }
  return endpoint;
}

std::string SameHostEndpoint::text() const {
  return boot + "/" + std::to_string(pid) + "/" + std::to_string(start_time) + "/" + socket + "/" +
         hex(service);
}

// ---- the source's side
// -----------------------------------------------------------------------------

class SameHostPlane::Served {
 public:
  explicit Served(SameHostPlane* plane) : plane_(plane), alive_(plane->alive_) {}
  ~Served() { fence(); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  void open(const std::shared_ptr<Served>& self, FileDescriptor fd) {
    std::weak_ptr<Served> weak = self;
    UnixChannel::Callbacks callbacks;
    callbacks.on_frame = [weak](const UnixFrame& frame, Bytes body, FileDescriptor) {
      if (const std::shared_ptr<Served> served = weak.lock()) served->on_frame(frame, body, served);
    };
    callbacks.on_close = [weak] {
      const std::shared_ptr<Served> served = weak.lock();
      if (served != nullptr && *served->alive_) served->plane_->strangers_.erase(served);
    };
    channel_ = UnixChannel::open(plane_->loop_, std::move(fd), kHelloMax, std::move(callbacks));
  }
  bool greeted() const { return greeted_; }
  bool closed() const { return channel_->closed(); }
  int socket() const { return channel_->socket(); }
  // False when the board is full.
  bool begin_decision() {
    pair_ = plane_->board_->add_pair();
    deciding_ = true;
    return pair_.has_value();
  }

  net::RemoteRegion describe(net::RegionId region) {
    WL_ASSERT(*alive_);
    const net::RemoteRegion remote = plane_->board_->describe(region);
    const std::shared_ptr<const SharedArena> arena =
        plane_->arenas_->find(remote.base, remote.length);
    if (arena != nullptr && told_.insert(arena).second) {
      Bytes id(sizeof arena->id);
      std::memcpy(id.data(), &arena->id, sizeof arena->id);
      send(SameHostFrame::kArena, arena->address, arena->length, id, arena->file.get());
    }
    return remote;
  }
  void accept(const Bytes& payload) {
    deciding_ = false;
    if (!pair_) return channel_->close();  // accepted and dropped
    const SourceBoard& board = *plane_->board_;
    send(SameHostFrame::kBoard, board.address(), board.length(), {}, board.file());
    send(SameHostFrame::kAccepted, pair_->slot, pair_->serial, payload);
  }
  void refuse(const Error& error) {
    deciding_ = false;
    send(SameHostFrame::kRefused, static_cast<uint64_t>(error.code), 0, bytes_of(error.message));
    channel_->close();
  }
  // Off the board first: a READ that looks after this fails. While the acceptor decides, the
  // channel stays for its reason.
  void fence() {
    if (pair_ && *alive_) plane_->board_->drop_pair(*pair_);
    pair_.reset();
    if (channel_ != nullptr && !deciding_) channel_->close();
  }

 private:
  void send(SameHostFrame kind, uint64_t a, uint64_t b, std::span<const uint8_t> body,
            int file = -1) {
    channel_->send(static_cast<uint32_t>(kind), a, b, body, file);
  }
  void on_frame(const UnixFrame& frame, const Bytes& body, const std::shared_ptr<Served>& self) {
    if (!*alive_ || greeted_ || frame.kind != static_cast<uint32_t>(SameHostFrame::kHello)) {
      channel_->close();
      return;
    }
    greeted_ = true;
    plane_->strangers_.erase(self);
    plane_->decide(self, frame.a, body);
  }

  SameHostPlane* plane_;
  std::shared_ptr<bool> alive_;  // the plane
  std::shared_ptr<UnixChannel> channel_;
  std::optional<BoardPair> pair_;
  std::set<std::shared_ptr<const SharedArena>> told_;
  bool greeted_ = false;
  bool deciding_ = false;
};

class SameHostPlane::PassivePair final : public net::PassiveQueuePair {
 public:
  explicit PassivePair(std::shared_ptr<Served> served) : served_(std::move(served)) {}
  ~PassivePair() override { served_->fence(); }
  net::RemoteRegion describe(net::RegionId region) override { return served_->describe(region); }
  bool closed() const override { return served_->closed(); }
  std::string_view transport() const override { return "same-host"; }

 private:
  std::shared_ptr<Served> served_;
};

Result<std::unique_ptr<SameHostPlane>> SameHostPlane::create(EventLoop& loop,
                                                             SameHostOptions options) {
  auto plane = std::unique_ptr<SameHostPlane>(new SameHostPlane(loop, options));
  plane->here_.boot = boot_id();
  plane->here_.pid = static_cast<uint64_t>(getpid());
  plane->here_.start_time = process_start_time(getpid()).value_or(0);
  if (plane->here_.boot.empty() || plane->here_.start_time == 0) {
    return Error{ErrorCode::kResourceExhausted, "same-host plane: /proc cannot be read"};
  }
  Result<std::unique_ptr<SourceBoard>> board = SourceBoard::create(secret());
  if (!board) return board.error();
  plane->board_ = std::move(*board);
  return plane;
}

SameHostPlane::SameHostPlane(EventLoop& loop, SameHostOptions options)
    : loop_(loop),
      options_(options),
      arenas_(options.arenas != nullptr ? options.arenas : &own_arenas_),
      registry_(loop, arenas_),
      mapped_(loop),
      copies_(std::make_unique<HelperThreads>(options.copy_threads)),
      tasks_(loop.runtime()) {}

SameHostPlane::~SameHostPlane() {
  for (const std::weak_ptr<SameHostReader>& weak : readers_) {
    if (const std::shared_ptr<SameHostReader> reader = weak.lock()) reader->plane_gone();
  }
  copies_.reset();  // what is queued ends as flushed, what is under way is waited for
  strangers_.clear();
  *alive_ = false;
}

Result<Done> SameHostPlane::open_socket() {
  const std::string name = "weightlane-" + std::to_string(here_.pid) + "-" + hex(secret());
  Result<FileDescriptor> listening = listen_abstract(name);
  if (!listening) return listening.error();
  here_.socket = name;
  listening_ = std::move(*listening);
  listening_watch_ = loop_.watch(listening_.get(), [this](FdReady) { accept_strangers(); });
  return Done{};
}

Result<std::string> SameHostPlane::listen(net::Acceptor* acceptor) {
  if (here_.socket.empty()) {
    const Result<Done> opened = open_socket();
    if (!opened) return opened.error();
  }
  SameHostEndpoint endpoint = here_;
  endpoint.service = secret();
  services_[endpoint.service] = acceptor;
  return endpoint.text();
}

void SameHostPlane::stop_listening(net::Acceptor* acceptor) {
  std::erase_if(services_, [acceptor](const auto& entry) { return entry.second == acceptor; });
}

void SameHostPlane::accept_strangers() {
  for (;;) {
    FileDescriptor fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    if (strangers_.size() >= kStrangersMax) continue;  // closed; they go by their deadline
    auto served = std::make_shared<Served>(this);
    served->open(served, std::move(fd));
    strangers_.insert(served);
    tasks_.spawn(expire(served), "same-host handshake deadline");
  }
}

flow::Task<void> SameHostPlane::expire(std::weak_ptr<Served> stranger) {
  co_await loop_.runtime().sleep_for(options_.handshake);
  const std::shared_ptr<Served> served = stranger.lock();
  if (served == nullptr || served->greeted()) co_return;
  served->fence();
  strangers_.erase(served);
}

void SameHostPlane::decide(const std::shared_ptr<Served>& served, uint64_t service,
                           const Bytes& hello) {
  ucred credentials{};
  const bool known = peer_credentials(served->socket(), credentials);
  if (!known || (credentials.uid != 0 && credentials.uid != geteuid())) {
    // Whoever gets past here is handed memory to map.
    return served->refuse(Error{
        ErrorCode::kUnreachable,
        "memory is not shared with another user (uid " + std::to_string(credentials.uid) + ")"});
  }
  const auto found = services_.find(service);
  if (found == services_.end()) {
    return served->refuse(Error{ErrorCode::kRefused, "this is not the worker that was asked for"});
  }
  if (!served->begin_decision()) {
    return served->refuse(Error{ErrorCode::kResourceExhausted, "too many readers"});
  }
  net::AcceptDecision decision =
      found->second->on_connect(hello, std::make_unique<PassivePair>(served));
  if (decision.ok()) {
    served->accept(decision->payload);
  } else {
    served->refuse(decision.error());
  }
}

// ---- memory
// ----------------------------------------------------------------------------------------

// What was registered goes on the board.
Result<net::RegionId> SameHostPlane::published(Result<net::RegionId> region) {
  if (!region) return region;
  const net::MemoryRange range = *registry_.find(*region);
  const std::shared_ptr<const SharedArena> arena = arenas_->find(range.address, range.length);
  const Result<Done> done = board_->publish(*region, range, arena == nullptr ? 0 : arena->id);
  if (done) return region;
  registry_.forget(*region);
  return done.error();
}

flow::Task<Result<net::RegionId>> SameHostPlane::register_memory(net::MemoryRange range) {
  co_return published(registry_.add(range));
}
flow::Task<void> SameHostPlane::deregister(net::RegionId region) {
  board_->retract(region);
  return MemoryRegistry::remove(&registry_, region);
}
Result<net::RegionId> SameHostPlane::allocate_words(uint32_t count) {
  return published(registry_.allocate_words(count));
}
Result<net::RegionId> SameHostPlane::adopt_words(net::MemoryRange words) {
  return published(registry_.adopt_words(words));
}
void SameHostPlane::free_words(net::RegionId words) {
  board_->retract(words);
  registry_.free_words(words);
}
void SameHostPlane::store_word(net::RegionId words, uint32_t index, uint64_t value) {
  registry_.store_word(words, index, value);
}
uint64_t SameHostPlane::load_word(net::RegionId words, uint32_t index) const {
  return registry_.load_word(words, index);
}
flow::Task<Result<uint64_t>> SameHostPlane::checksum(net::RegionId region, uint64_t offset,
                                                     uint64_t length) {
  return MemoryRegistry::checksum(&registry_, region, offset, length);
}

// ---- the reader's side
// -----------------------------------------------------------------------------

// What arrives on the channel before there is a pair. The channel is closed with it, unless a
// reader took it.
struct SameHostPlane::Connecting {
  Connecting(flow::Runtime& runtime, ArenaCache* cache) : changed(runtime), mapped(cache) {}
  ~Connecting() {
    if (channel != nullptr) channel->close();
  }

  void on_frame(const UnixFrame& frame, Bytes body, FileDescriptor file) {
    switch (static_cast<SameHostFrame>(frame.kind)) {
      case SameHostFrame::kBoard: {
        Result<std::unique_ptr<BoardView>> view = BoardView::map(frame.a, frame.b, std::move(file));
        board_address = frame.a;
        if (view) peer.board = std::move(*view);
        break;
      }
      case SameHostFrame::kArena: {
        Result<std::shared_ptr<const MappedArena>> arena =
            mapped->map(peer.pid, peer.process, frame.a, frame.b, std::move(file));
        // What can't be mapped is read by process_vm_readv.
        if (arena) peer.arenas.emplace(arena_id(body), std::move(*arena));
        break;
      }
      case SameHostFrame::kAccepted:
        peer.pair.slot = frame.a;
        peer.pair.serial = frame.b;
        payload = std::move(body);
        accepted = true;
        break;
      case SameHostFrame::kRefused: {
        const auto code = static_cast<ErrorCode>(frame.a);
        refusal.emplace();
        refusal->code = code == ErrorCode::kUnreachable || code == ErrorCode::kResourceExhausted
                            ? code
                            : ErrorCode::kRefused;
        refusal->message.assign(body.begin(), body.end());
        break;
      }
      case SameHostFrame::kHello:
        channel->close();
        break;
    }
    changed.notify_all();
  }
  void on_close() {
    closed = true;
    changed.notify_all();
  }
  bool decided() const { return accepted || refusal || closed; }

  flow::Signal changed;
  ArenaCache* mapped;
  std::shared_ptr<UnixChannel> channel;
  SameHostPeer peer;
  uint64_t board_address = 0;
  Bytes payload;
  std::optional<Error> refusal;
  bool accepted = false;
  bool closed = false;
};

flow::Task<Result<net::Connected>> SameHostPlane::connect(std::string endpoint, Bytes hello,
                                                          flow::Signal* wake, Nanos deadline) {
  Result<SameHostEndpoint> parsed = SameHostEndpoint::parse(endpoint);
  if (!parsed) return failed_task(parsed.error());
  if (hello.size() > kHelloMax) {
    return failed_task(Error{ErrorCode::kInvalidArgument, "a hello of more than 4 MiB"});
  }
  if (parsed->boot != here_.boot) {
    return failed_task(Error{ErrorCode::kUnreachable, "same-host: it is on another machine"});
  }
  return connect_to(std::move(*parsed), std::move(hello), wake, deadline);
}

// A connected socket to the very process that the endpoint names.
flow::Task<Result<FileDescriptor>> SameHostPlane::reach(SameHostEndpoint endpoint, Nanos deadline) {
  for (;;) {
    FileDescriptor fd = connect_abstract(endpoint.socket);
    const int error = errno;
    if (fd) co_return std::move(fd);
    if (error != EAGAIN) co_return unreachable(endpoint, std::strerror(error));
    // Its backlog is full.
    const Nanos now = loop_.runtime().now();
    if (now >= deadline) co_return unreachable(endpoint, "it accepts nobody in time");
    co_await loop_.runtime().sleep_until(std::min(deadline, now + kBacklogRetry));
  }
}

flow::Task<Result<net::Connected>> SameHostPlane::connect_to(SameHostEndpoint endpoint, Bytes hello,
                                                             flow::Signal* wake, Nanos deadline) {
  Result<FileDescriptor> fd = co_await reach(endpoint, deadline);
  if (!fd) co_return fd.error();
  ucred credentials{};
  if (!peer_credentials(fd->get(), credentials) || credentials.pid <= 0) {
    co_return unreachable(endpoint, "its pid is not visible here (another pid namespace)");
  }
  if (process_start_time(credentials.pid) != endpoint.start_time) {
    co_return unreachable(endpoint, "it has gone, and another process has its number");
  }
  auto connecting = std::make_shared<Connecting>(loop_.runtime(), &mapped_);
  connecting->peer.pid = credentials.pid;
  connecting->peer.process =
      FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  if (!connecting->peer.process) {
    co_return unreachable(endpoint, std::string("pidfd_open: ") + std::strerror(errno));
  }
  UnixChannel::Callbacks callbacks;
  std::weak_ptr<Connecting> weak = connecting;
  callbacks.on_frame = [weak](const UnixFrame& frame, Bytes body, FileDescriptor file) {
    if (const auto alive = weak.lock()) alive->on_frame(frame, std::move(body), std::move(file));
  };
  callbacks.on_close = [weak] {
    if (const auto alive = weak.lock()) alive->on_close();
  };
  connecting->channel = UnixChannel::open(loop_, std::move(*fd), kPayloadMax, std::move(callbacks));
  connecting->channel->send(static_cast<uint32_t>(SameHostFrame::kHello), endpoint.service, 0,
                            hello);
  while (!connecting->decided()) {
    const bool woken = co_await connecting->changed.wait_until(deadline);
    if (!woken && !connecting->decided()) co_return unreachable(endpoint, "no answer in time");
  }
  if (connecting->refusal) {
    co_return Error{connecting->refusal->code,
                    unreachable(endpoint, connecting->refusal->message).message};
  }
  if (!connecting->accepted || connecting->peer.board == nullptr) {
    co_return unreachable(endpoint, "it closed the connection");
  }
  const std::optional<uint64_t> nonce = read_word_of(credentials.pid, connecting->board_address);
  if (!nonce) {
    co_return unreachable(
        endpoint, std::string("process_vm_readv: ") + std::strerror(errno) +
                      " (another user, or forbidden by the container or kernel.yama.ptrace_scope)");
  }
  if (*nonce != connecting->peer.board->nonce()) {
    co_return unreachable(endpoint, "its memory is not what it says");
  }
  net::Connected connected;
  connected.pair = make_pair(connecting, wake);
  connected.payload = std::move(connecting->payload);
  co_return connected;
}

std::unique_ptr<net::QueuePair> SameHostPlane::make_pair(
    const std::shared_ptr<Connecting>& connecting, flow::Signal* wake) {
  auto reader = std::make_shared<SameHostReader>(loop_, registry_, copies_.get(), &mapped_, wake,
                                                 capabilities(), std::move(connecting->peer),
                                                 connecting->channel);
  UnixChannel::Callbacks callbacks;
  std::weak_ptr<SameHostReader> weak = reader;
  callbacks.on_frame = [weak](const UnixFrame& frame, const Bytes& body, FileDescriptor file) {
    if (const auto alive = weak.lock()) alive->on_frame(frame, body, std::move(file));
  };
  callbacks.on_close = [weak] {
    if (const auto alive = weak.lock()) alive->on_close();
  };
  connecting->channel->hand_over(std::move(callbacks));
  connecting->channel = nullptr;
  std::erase_if(readers_, [](const auto& weak) { return weak.expired(); });
  readers_.push_back(reader);
  if (connecting->closed) reader->on_close();
  return make_same_host_queue_pair(std::move(reader), capabilities());
}

}  // namespace weightlane::prod
