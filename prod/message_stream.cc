// Framing is Cap'n Proto's standard one: a table of segment sizes (32 bits each, their count less
// one in front, padded to whole words), then the segments.
#include "prod/message_stream.h"

#include <errno.h>
#include <kj/exception.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "flow/assert.h"

namespace weightlane::prod {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr uint32_t kMaxSegments = 512;       // as capnp's own readers
constexpr int kReadsPerTurn = 8;             // then other connections are due
constexpr size_t kKeptCapacity = 64 * 1024;  // of an empty outgoing buffer

kj::Exception disconnected(const std::string& why) {
  return kj::Exception(kj::Exception::Type::DISCONNECTED, __FILE__, __LINE__,
                       kj::str(why.empty() ? "the peer closed the connection" : why.c_str()));
}

uint32_t read_u32(const std::vector<uint64_t>& words, size_t index) {
  uint32_t value = 0;
  std::memcpy(&value, reinterpret_cast<const uint8_t*>(words.data()) + index * sizeof value,
              sizeof value);
  return value;
}

}  // namespace

// Owns the words it points into.
class SocketMessageStream::Message final : public capnp::MessageReader {
 public:
  Message(capnp::ReaderOptions options, Frame frame) : MessageReader(options) {
    words_ = std::move(frame.words);
    const auto* start = reinterpret_cast<const capnp::word*>(words_.data()) + frame.table_words;
    for (const uint32_t size : frame.segments) {
      segments_.push_back(kj::arrayPtr(start, size));
      start += size;
    }
  }
  kj::ArrayPtr<const capnp::word> getSegment(unsigned id) override {
    return id < segments_.size() ? segments_[id] : nullptr;
  }
  size_t bytes() const { return words_.size() * kWord; }

 private:
  std::vector<uint64_t> words_;
  std::vector<kj::ArrayPtr<const capnp::word>> segments_;
};

SocketMessageStream::SocketMessageStream(EventLoop& loop, FileDescriptor socket, ReadBuffer& buffer,
                                         Limits limits)
    : loop_(loop), socket_(std::move(socket)), buffer_(buffer), limits_(limits) {
  watch_ = loop_.watch(socket_.get(), [this](FdReady ready) { on_ready(ready); });
}

SocketMessageStream::~SocketMessageStream() {
  readable_ = false;  // a last word, if the kernel takes it, but nothing more to hear
  if (!ended_) flush();
}

void SocketMessageStream::on_ready(FdReady ready) {
  if (ready.writable) {
    writable_ = true;
    if (sent_ < outgoing_.size()) flush();
  }
  if (ready.ended) ending_ = true;
  if (ready.readable) {
    readable_ = true;
    read_some();
  }
}

bool SocketMessageStream::may_read() const {
  return !ended_ && inbox_bytes_ < limits_.inbox_bytes &&
         outgoing_.size() - sent_ < limits_.unread_bytes;
}

void SocketMessageStream::read_some() {
  for (int i = 0; i < kReadsPerTurn && readable_ && may_read(); ++i) {
    const ssize_t count = recv(socket_.get(), buffer_.data(), ReadBuffer::kBytes, 0);
    if (count > 0) {
      const auto size = static_cast<size_t>(count);
      readable_ = ending_ || size == ReadBuffer::kBytes;
      if (!feed(buffer_.data(), size)) return;
    } else if (count == 0) {
      finish(frame_.bytes == 0 ? "" : "the peer closed the connection inside a message");
      return;
    } else if (errno == EAGAIN) {
      readable_ = false;
    } else if (errno != EINTR) {
      finish(std::strerror(errno));
      return;
    }
  }
  // No edge will come for what is left; the end of the turn is soon enough.
  if (readable_ && may_read()) loop_.call_at_end_of_turn(*this);
}

bool SocketMessageStream::feed(const uint8_t* data, size_t size) {
  while (size > 0) {
    // Up to the next size we know of: first word, whole table, whole message.
    const size_t known_words =
        frame_.total_words != 0 ? frame_.total_words : std::max<size_t>(frame_.table_words, 1);
    const size_t take = std::min(size, known_words * kWord - frame_.bytes);
    const size_t needed_words = (frame_.bytes + take + kWord - 1) / kWord;
    if (frame_.words.size() < needed_words) {
      if (frame_.words.capacity() < needed_words) {
        frame_.words.reserve(std::min(known_words, std::max(needed_words, needed_words * 2)));
      }
      frame_.words.resize(needed_words);
    }
    std::memcpy(reinterpret_cast<uint8_t*>(frame_.words.data()) + frame_.bytes, data, take);
    frame_.bytes += take;
    data += take;
    size -= take;
    if (frame_.bytes < known_words * kWord) return true;
    if (!learn_sizes()) return false;
    if (frame_.total_words != 0 && frame_.bytes == frame_.total_words * kWord) complete();
  }
  return true;
}

bool SocketMessageStream::learn_sizes() {
  if (frame_.total_words != 0) return true;
  const uint32_t count_less_one = read_u32(frame_.words, 0);
  if (count_less_one >= kMaxSegments) {
    finish("the peer does not speak Cap'n Proto");
    return false;
  }
  frame_.table_words = (size_t{count_less_one} + 1) / 2 + 1;
  if (frame_.bytes < frame_.table_words * kWord) return true;
  size_t total = frame_.table_words;
  for (uint32_t i = 0; i <= count_less_one; ++i) {
    const uint32_t words = read_u32(frame_.words, size_t{i} + 1);
    frame_.segments.push_back(words);
    total += words;
  }
  if (total > limits_.message_bytes / kWord) {
    finish("a message of " + std::to_string(total * kWord) + " bytes is over the limit of " +
           std::to_string(limits_.message_bytes));
    return false;
  }
  frame_.total_words = total;
  return true;
}

void SocketMessageStream::complete() {
  Frame frame = std::exchange(frame_, Frame{});
  capnp::ReaderOptions options;
  // A message is read once, its envelope a second time; lists of nothing and overlapping pointers
  // run into this.
  options.traversalLimitInWords = 4 * frame.total_words + 1024;
  deliver(kj::heap<Message>(options, std::move(frame)));
}

void SocketMessageStream::deliver(kj::Own<capnp::MessageReader> message) {
  if (reader_.get() != nullptr && reader_->isWaiting()) {
    kj::Own<kj::PromiseFulfiller<MaybeMessage>> reader = kj::mv(reader_);
    reader->fulfill(capnp::MessageReaderAndFds{kj::mv(message), nullptr});
    return;
  }
  inbox_bytes_ += static_cast<Message&>(*message).bytes();
  inbox_.push_back(kj::mv(message));
}

SocketMessageStream::MaybeMessage SocketMessageStream::take_from_inbox() {
  kj::Own<capnp::MessageReader> message = kj::mv(inbox_.front());
  inbox_.pop_front();
  inbox_bytes_ -= static_cast<Message&>(*message).bytes();
  if (readable_ && may_read()) loop_.call_at_end_of_turn(*this);
  return capnp::MessageReaderAndFds{kj::mv(message), nullptr};
}

kj::Promise<SocketMessageStream::MaybeMessage> SocketMessageStream::tryReadMessage(
    kj::ArrayPtr<kj::AutoCloseFd>, capnp::ReaderOptions, kj::ArrayPtr<capnp::word>) {
  if (!inbox_.empty()) return take_from_inbox();
  if (ended_) {
    if (why_ended_.empty()) return MaybeMessage(nullptr);
    return disconnected(why_ended_);
  }
  auto pair = kj::newPromiseAndFulfiller<MaybeMessage>();
  reader_ = kj::mv(pair.fulfiller);
  return kj::mv(pair.promise);
}

void SocketMessageStream::append(kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  const auto put = [this](const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    outgoing_.insert(outgoing_.end(), bytes, bytes + size);
  };
  const auto put_u32 = [&put](size_t value) {
    const auto number = static_cast<uint32_t>(value);
    put(&number, sizeof number);
  };
  put_u32(segments.size() - 1);
  for (const kj::ArrayPtr<const capnp::word>& segment : segments) put_u32(segment.size());
  if (segments.size() % 2 == 0) put_u32(0);
  for (const kj::ArrayPtr<const capnp::word>& segment : segments) {
    put(segment.begin(), segment.size() * kWord);
  }
}

kj::Promise<void> SocketMessageStream::writeMessage(
    kj::ArrayPtr<const int>, kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  if (ended_) return disconnected(why_ended_);
  append(segments);
  loop_.call_at_end_of_turn(*this);
  return kj::READY_NOW;
}

kj::Promise<void> SocketMessageStream::writeMessages(
    kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) {
  if (ended_) return disconnected(why_ended_);
  for (const auto& segments : messages) append(segments);
  loop_.call_at_end_of_turn(*this);
  return kj::READY_NOW;
}

void SocketMessageStream::flush() {
  while (!ended_ && writable_ && sent_ < outgoing_.size()) {
    const ssize_t count =
        send(socket_.get(), outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_NOSIGNAL);
    if (count >= 0) {
      sent_ += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      writable_ = false;
    } else if (errno != EINTR) {
      finish(std::strerror(errno));
    }
  }
  if (sent_ == outgoing_.size()) {
    outgoing_.clear();
    sent_ = 0;
    if (outgoing_.capacity() > kKeptCapacity) std::vector<uint8_t>().swap(outgoing_);
  } else if (outgoing_.size() - sent_ > limits_.backlog_bytes) {
    finish("the peer does not read what it is sent");
  } else if (sent_ > outgoing_.size() / 2) {
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<ptrdiff_t>(sent_));
    sent_ = 0;
  }
  if (readable_ && may_read()) read_some();
}

void SocketMessageStream::finish(std::string why) {
  if (ended_) return;
  ended_ = true;
  why_ended_ = std::move(why);
  frame_ = Frame{};
  std::vector<uint8_t>().swap(outgoing_);
  sent_ = 0;
  if (reader_.get() == nullptr || !reader_->isWaiting()) return;
  kj::Own<kj::PromiseFulfiller<MaybeMessage>> reader = kj::mv(reader_);
  if (why_ended_.empty()) {
    reader->fulfill(MaybeMessage(nullptr));
  } else {
    reader->reject(disconnected(why_ended_));
  }
}

kj::Promise<void> SocketMessageStream::end() {
  flush();
  shutdown(socket_.get(), SHUT_WR);
  return kj::READY_NOW;
}

}  // namespace weightlane::prod
