// Whoever takes a PendingRead out of a stream's queue finishes it: the stream's thread, which also
// empties the queue when the stream ends, or the loop when it finds the stream ended.
#include "prod/tcp_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "prod/checksum.h"

namespace weightlane::prod {

using net::CompletionStatus;
using net::PostResult;

namespace {

// One recv(): long enough to cost no speed, short enough that a stop is seen soon, and with a
// checksum that the bytes are still in the cache.
constexpr uint64_t kPiece = 1ull << 20;
constexpr uint64_t kSummedPiece = 256ull << 10;

// What a source may say of a READ. Any other number is a broken source's, and never cut down to one
// that means something; least of all may it speak of errors on this side.
bool is_sources_word(uint32_t status) {
  constexpr std::array kWords{CompletionStatus::kSuccess, CompletionStatus::kRemoteInvalidRequest,
                              CompletionStatus::kRemoteAccess, CompletionStatus::kRemoteOperation};
  return std::any_of(kWords.begin(), kWords.end(), [status](CompletionStatus word) {
    return status == static_cast<uint32_t>(word);
  });
}

class TcpQueuePair final : public net::QueuePair {
 public:
  TcpQueuePair(std::shared_ptr<TcpReader> reader, net::Capabilities capabilities)
      : reader_(std::move(reader)), capabilities_(capabilities) {}
  ~TcpQueuePair() override {
    reader_->queue().close();
    reader_->stop();
  }

  net::Capabilities capabilities() const override { return capabilities_; }
  std::string_view transport() const override { return "tcp"; }
  PostResult post_read(const net::ReadWork& work) override { return reader_->post(work); }
  std::optional<net::Completion> poll() override { return reader_->queue().poll(); }
  flow::Task<Result<Done>> destroy(Nanos deadline) override {
    return TcpReader::destroy(reader_, deadline);
  }

 private:
  std::shared_ptr<TcpReader> reader_;
  net::Capabilities capabilities_;
};

}  // namespace

std::unique_ptr<net::QueuePair> make_tcp_queue_pair(std::shared_ptr<TcpReader> reader,
                                                    net::Capabilities capabilities) {
  return std::make_unique<TcpQueuePair>(std::move(reader), capabilities);
}

TcpReader::TcpReader(std::shared_ptr<TcpShared> shared, flow::Signal* wake,
                     net::Capabilities capabilities,
                     std::vector<std::shared_ptr<TcpSocket>> sockets)
    : shared_(std::move(shared)),
      queue_(std::make_shared<ReadQueue>(shared_->loop, wake, capabilities)),
      peer_(sockets.front()->peer()) {
  for (std::shared_ptr<TcpSocket>& socket : sockets) {
    auto stream = std::make_unique<Stream>();
    stream->socket = std::move(socket);
    streams_.push_back(std::move(stream));
  }
}

Result<Done> TcpReader::start() {
  for (const std::unique_ptr<Stream>& stream : streams_) {
    Stream* const mine = stream.get();
    const bool started = shared_->threads.start(
        "wl-tcp-read", [self = shared_from_this(), mine] { self->run(*mine); });
    if (!started) {
      stop();
      return Error{ErrorCode::kResourceExhausted, "no thread for a TCP stream"};
    }
  }
  return Done{};
}

PostResult TcpReader::post(const net::ReadWork& work) {
  std::unique_ptr<PendingRead> read;
  const PostResult result = queue_->post(shared_->registry, this, work, read);
  if (result != PostResult::kPosted || read == nullptr) return result;

  TcpRequest request;
  request.sequence = read->sequence;
  request.region = work.from.key;
  request.offset = work.from_offset;
  request.length = work.length;
  const auto least =
      std::min_element(streams_.begin(), streams_.end(), [](const auto& a, const auto& b) {
        return a->queued_bytes.load(std::memory_order_relaxed) <
               b->queued_bytes.load(std::memory_order_relaxed);
      });
  Stream& stream = **least;
  {
    std::lock_guard lock(stream.mutex);
    if (!stream.ended) {
      stream.queued_bytes += work.length;
      stream.expected.push_back(std::move(read));
    }
  }
  if (read != nullptr) {
    queue_->finish(std::move(read), CompletionStatus::kRetryExceeded);
  } else if (!stream.socket->send_now(frame_bytes(request))) {
    stream.socket->stop();  // its thread ends what is queued
  }
  return result;
}

void TcpReader::stop() {
  for (const std::unique_ptr<Stream>& stream : streams_) stream->socket->stop();
}

flow::Task<Result<Done>> TcpReader::destroy(std::shared_ptr<TcpReader> reader, Nanos deadline) {
  reader->queue_->close();
  reader->stop();
  return ReadQueue::drained(reader->queue_, "tcp peer " + reader->peer_, deadline);
}

void TcpReader::run(Stream& stream) {
  if (shared_->sockets.add(stream.socket)) {
    while (receive_one(stream)) {
    }
    shared_->sockets.remove(stream.socket);
  }
  end(stream);
}

// False when the stream has ended.
bool TcpReader::receive_one(Stream& stream) {
  TcpResponse response;
  if (!stream.socket->receive(writable_frame(response))) return false;
  std::unique_ptr<PendingRead> read = take_expected(stream);
  if (read == nullptr) return false;
  const uint64_t length = read->work.length;
  const auto status = static_cast<CompletionStatus>(response.status);
  if (response.magic != kTcpResponseMagic || response.sequence != read->sequence ||
      !is_sources_word(response.status) ||
      (status == CompletionStatus::kSuccess && response.length != length)) {
    queue_->finish(std::move(read), CompletionStatus::kBadResponse);
    return false;
  }
  if (status != CompletionStatus::kSuccess) {
    queue_->finish(std::move(read), status);
    return false;
  }
  uint64_t checksum = 0;
  const CompletionStatus outcome = receive_body(stream, *read, checksum);
  queue_->finish(std::move(read), outcome, checksum);
  stream.queued_bytes -= length;
  return outcome == CompletionStatus::kSuccess;
}

std::unique_ptr<PendingRead> TcpReader::take_expected(Stream& stream) {
  std::lock_guard lock(stream.mutex);
  if (stream.expected.empty()) return nullptr;
  std::unique_ptr<PendingRead> read = std::move(stream.expected.front());
  stream.expected.pop_front();
  return read;
}

CompletionStatus TcpReader::receive_body(Stream& stream, PendingRead& read, uint64_t& checksum) {
  std::span<uint8_t> left(read.into.data(), read.work.length);
  const uint64_t piece = read.work.want_checksum ? kSummedPiece : kPiece;
  Checksum sum;
  while (!left.empty()) {
    if (queue_->given_up(read.sequence)) return CompletionStatus::kFlushed;
    if (read.into.unwanted()) return CompletionStatus::kLocalProtection;
    const size_t got = stream.socket->receive_some(left.first(std::min(left.size(), piece)));
    if (got == 0) return CompletionStatus::kRetryExceeded;
    if (read.work.want_checksum) sum.add(left.first(got));
    left = left.subspan(got);
  }
  checksum = sum.value();
  return CompletionStatus::kSuccess;
}

void TcpReader::end(Stream& stream) {
  stream.socket->stop();
  std::deque<std::unique_ptr<PendingRead>> left;
  {
    std::lock_guard lock(stream.mutex);
    stream.ended = true;
    left.swap(stream.expected);
  }
  // If one of these is the pair's first error that is what happened to it; else it is flushed.
  for (std::unique_ptr<PendingRead>& read : left) {
    queue_->finish(std::move(read), CompletionStatus::kRetryExceeded);
  }
  queue_->break_pair();
}

}  // namespace weightlane::prod
