// A thread that asks the loop waits on a condition that stop() also satisfies: the loop may be
// waiting for that very thread to end.
#include "prod/tcp_source.h"

#include <errno.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "flow/assert.h"
#include "prod/words.h"

namespace weightlane::prod {

using net::CompletionStatus;

namespace {

constexpr size_t kStrangersMax = 64;
constexpr uint64_t kPiece = 1ull << 20;
constexpr int kAcceptRetryMs = 50;

// Tokens keep one reader's streams out of another's pair, so they are not guessable.
uint64_t secret() {
  uint64_t value = 0;
  const ssize_t got = getrandom(&value, sizeof value, 0);
  WL_ASSERT(got == sizeof value);
  return value;
}

SteadyTime from_now(Nanos span) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(span.count);
}

class TcpPassivePair final : public net::PassiveQueuePair {
 public:
  TcpPassivePair(std::shared_ptr<TcpShared> shared, std::shared_ptr<TcpServedPair> pair)
      : shared_(std::move(shared)), pair_(std::move(pair)) {}
  ~TcpPassivePair() override { pair_->stop(); }

  net::RemoteRegion describe(net::RegionId region) override {
    const std::optional<net::MemoryRange> range = shared_->registry.find(region);
    WL_ASSERT(range.has_value());
    net::RemoteRegion remote;
    remote.key = region.value;
    remote.length = range->length;
    return remote;
  }
  bool closed() const override { return pair_->stopped(); }
  std::string_view transport() const override { return "tcp"; }

 private:
  std::shared_ptr<TcpShared> shared_;
  std::shared_ptr<TcpServedPair> pair_;
};

void send_reply(TcpSocket& socket, TcpReply reply, std::span<const uint8_t> body,
                SteadyTime deadline) {
  reply.length = body.size();
  // A peer that doesn't take it has gone; the next receive() says so.
  if (socket.send_all(frame_bytes(reply), deadline)) socket.send_all(body, deadline);
}

}  // namespace

bool TcpServedPair::add_stream(const std::shared_ptr<TcpSocket>& socket) {
  std::lock_guard lock(mutex_);
  if (stopped_.load() || streams_.size() >= kTcpStreamsMax) return false;
  streams_.push_back(socket);
  return true;
}

void TcpServedPair::remove_stream(const std::shared_ptr<TcpSocket>& socket) {
  std::lock_guard lock(mutex_);
  std::erase(streams_, socket);
  if (streams_.empty()) stopped_.store(true);
}

void TcpServedPair::stop() {
  std::lock_guard lock(mutex_);
  stopped_.store(true);
  for (const std::shared_ptr<TcpSocket>& socket : streams_) socket->stop();
  streams_.clear();
}

struct TcpSource::Answer {
  TcpReply reply;
  Bytes body;
};

Result<Done> TcpSource::start(FileDescriptor listening) {
  listening_ = std::move(listening);
  const bool started = shared_->threads.start(
      "wl-tcp-accept", [self = shared_from_this()] { self->accept_strangers(); });
  if (!started) return Error{ErrorCode::kResourceExhausted, "no thread to accept TCP connections"};
  return Done{};
}

void TcpSource::stop() {
  services_.clear();
  if (listening_) ::shutdown(listening_.get(), SHUT_RDWR);
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const std::shared_ptr<TcpSocket>& stranger : strangers_) stranger->stop();
  answered_.notify_all();
}

uint64_t TcpSource::add_service(net::Acceptor* acceptor) {
  const uint64_t id = secret();
  services_.emplace(id, acceptor);
  return id;
}

void TcpSource::remove_service(net::Acceptor* acceptor) {
  std::erase_if(services_, [acceptor](const auto& entry) { return entry.second == acceptor; });
}

void TcpSource::accept_strangers() {
  for (;;) {
    FileDescriptor fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const int error = errno;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (!fd) {
      // Out of descriptors, or a connection that went at once: others may fare better.
      if (error != ECONNABORTED && error != EINTR) poll(nullptr, 0, kAcceptRetryMs);
      continue;
    }
    auto socket = std::make_shared<TcpSocket>(std::move(fd));
    {
      std::lock_guard lock(mutex_);
      if (strangers_.size() >= kStrangersMax) {
        strangers_.front()->stop();
        strangers_.pop_front();
      }
      strangers_.push_back(socket);
    }
    // Without a thread the connection is closed; its reader goes elsewhere.
    const bool started = shared_->threads.start(
        "wl-tcp-serve", [self = shared_from_this(), socket] { self->handle(socket); });
    if (!started) socket->stop();
  }
}

void TcpSource::handle(std::shared_ptr<TcpSocket> socket) {
  if (!shared_->sockets.add(socket)) return;
  const std::shared_ptr<TcpServedPair> pair = handshake(socket);
  {
    std::lock_guard lock(mutex_);
    std::erase(strangers_, socket);
  }
  if (pair != nullptr) {
    serve(*socket, *pair);
    socket->stop();
    pair->remove_stream(socket);
    std::lock_guard lock(mutex_);
    if (pair->stopped()) by_token_.erase(pair->token());
  }
  shared_->sockets.remove(socket);
}

// Null when this is nobody we serve.
std::shared_ptr<TcpServedPair> TcpSource::handshake(const std::shared_ptr<TcpSocket>& socket) {
  const SteadyTime deadline = from_now(handshake_);
  TcpHello hello;
  if (!socket->receive_all(writable_frame(hello), deadline)) return nullptr;
  if (hello.magic != kTcpMagic) return nullptr;
  switch (hello.kind) {
    case TcpKind::kPair:
      return make_pair(socket, hello, deadline);
    case TcpKind::kStream:
      return join_pair(socket, hello, deadline);
  }
  return nullptr;
}

std::shared_ptr<TcpServedPair> TcpSource::make_pair(const std::shared_ptr<TcpSocket>& socket,
                                                    const TcpHello& hello, SteadyTime deadline) {
  Bytes bytes;
  if (hello.length > kTcpHelloMax || !socket->receive_blob(bytes, hello.length, deadline)) {
    return nullptr;
  }
  auto pair = std::make_shared<TcpServedPair>(secret());
  const Answer answer = ask_acceptor(pair, hello.id, std::move(bytes));
  const bool accepted = answer.reply.verdict == TcpVerdict::kAccepted;
  if (accepted) {
    // Only now: who refuses drops the pair, and the refusal must still reach the reader.
    if (!pair->add_stream(socket)) return nullptr;
    std::lock_guard lock(mutex_);
    by_token_[pair->token()] = pair;
  }
  send_reply(*socket, answer.reply, answer.body, deadline);
  return accepted ? pair : nullptr;
}

std::shared_ptr<TcpServedPair> TcpSource::join_pair(const std::shared_ptr<TcpSocket>& socket,
                                                    const TcpHello& hello, SteadyTime deadline) {
  std::shared_ptr<TcpServedPair> pair;
  {
    std::lock_guard lock(mutex_);
    const auto found = by_token_.find(hello.id);
    if (found != by_token_.end()) pair = found->second.lock();
  }
  if (pair == nullptr || !pair->add_stream(socket)) return nullptr;
  send_reply(*socket, TcpReply{}, {}, deadline);
  return pair;
}

TcpSource::Answer TcpSource::ask_acceptor(const std::shared_ptr<TcpServedPair>& pair,
                                          uint64_t service, Bytes hello) {
  auto answer = std::make_shared<std::optional<Answer>>();  // guarded by mutex_
  std::weak_ptr<TcpSource> self = weak_from_this();
  shared_->loop.post_to_loop([self, pair, service, hello = std::move(hello), answer] {
    const std::shared_ptr<TcpSource> source = self.lock();
    if (source == nullptr) return;
    Answer decided;
    source->decide(pair, service, hello, decided);
    std::lock_guard lock(source->mutex_);
    answer->emplace(std::move(decided));
    source->answered_.notify_all();
  });
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [&] { return stopping_ || answer->has_value(); });
  if (answer->has_value()) return std::move(**answer);
  Answer stopped;
  stopped.reply.verdict = TcpVerdict::kNobody;
  return stopped;
}

// On the loop's thread.
void TcpSource::decide(const std::shared_ptr<TcpServedPair>& pair, uint64_t service,
                       const Bytes& hello, Answer& answer) {
  const auto found = services_.find(service);
  std::string why = "this is not the worker that was asked for (it may have been restarted)";
  answer.reply.verdict = TcpVerdict::kNobody;
  if (found != services_.end()) {
    net::AcceptDecision decision =
        found->second->on_connect(hello, std::make_unique<TcpPassivePair>(shared_, pair));
    if (decision.ok()) {
      answer.reply.verdict = TcpVerdict::kAccepted;
      answer.reply.token = pair->token();
      answer.body = std::move(decision->payload);
      return;
    }
    const bool exhausted = decision.error().code == ErrorCode::kResourceExhausted;
    answer.reply.verdict = exhausted ? TcpVerdict::kExhausted : TcpVerdict::kRefused;
    why = decision.error().message;
  }
  answer.body.assign(why.begin(), why.end());
}

void TcpSource::serve(TcpSocket& socket, TcpServedPair& pair) {
  TcpRequest request;
  while (socket.receive(writable_frame(request))) {
    if (request.magic != kTcpRequestMagic) return;
    if (!serve_one(socket, pair, request)) break;
  }
  // After an error the rest is read and not answered: to close now could destroy the answer on its
  // way, because bytes that nobody read turn a close into a reset.
  std::array<uint8_t, 4096> ignored;
  while (socket.receive_some(ignored) != 0) {
  }
}

// False when nothing more is to be answered.
bool TcpSource::serve_one(TcpSocket& socket, TcpServedPair& pair, const TcpRequest& request) {
  TcpResponse response;
  response.sequence = request.sequence;
  CompletionStatus refused = CompletionStatus::kSuccess;
  RegionUse use;
  if (request.length == 0 || request.length > kTcpReadMax) {
    refused = CompletionStatus::kRemoteInvalidRequest;
  } else {
    use =
        shared_->registry.use(net::RegionId{request.region}, request.offset, request.length, &pair);
    if (!use) refused = CompletionStatus::kRemoteAccess;
  }
  response.status = static_cast<uint32_t>(refused);
  if (refused != CompletionStatus::kSuccess) {
    socket.send(frame_bytes(response), {});
    return false;
  }
  response.length = request.length;
  std::span<const uint8_t> body(use.data(), request.length);
  std::array<uint8_t, kWordsCopyMax> words;
  if (are_words(body)) {
    copy_words(words.data(), body);
    body = std::span(words).first(body.size());
  }
  std::span<const uint8_t> header = frame_bytes(response);
  while (!body.empty()) {
    const size_t piece = std::min(body.size(), kPiece);
    if (use.unwanted()) {
      socket.stop();  // what was promised can't be sent
      return false;
    }
    if (!socket.send(header, body.first(piece))) return false;
    header = {};
    body = body.subspan(piece);
  }
  return true;
}

}  // namespace weightlane::prod
