// MessageStream: Cap'n Proto messages over one non-blocking socket, for the RPC system.
//
// It replaces kj's socket stream, which makes three writes and eight reads a call: here a socket is
// read in 64 KiB pieces into a buffer that all connections share, and what a turn of the loop
// writes leaves in one send. It is also where a hostile or broken peer is stopped:
//   - a message over the size limit, or a frame that can't be one, ends the connection;
//   - memory grows with what has arrived, not with what a header claims, so half a message holds
//     little, and an idle connection nothing;
//   - a peer that sends without reading is not read from while its answers pile up (a server's
//     limit), and one that lets them pile up for ever is cut off.
//
// On the loop's thread; destroyed outside of kj's events.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize-async.h>
#include <kj/async.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "prod/event_loop.h"
#include "prod/file_descriptor.h"

namespace weightlane::prod {

// What the connections of one thread share: the piece being read.
class ReadBuffer {
 public:
  static constexpr size_t kBytes = 64 * 1024;
  uint8_t* data() { return bytes_.data(); }

 private:
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kBytes);
};

class SocketMessageStream final : public capnp::MessageStream, private TurnHook {
 public:
  struct Limits {
    size_t message_bytes = 64 << 20;   // of one incoming message
    size_t inbox_bytes = 256 << 10;    // whole messages not yet asked for; then reading stops
    size_t unread_bytes = SIZE_MAX;    // outgoing bytes the peer has not taken; then reading stops
    size_t backlog_bytes = 256 << 20;  // of them at most; then the connection ends
  };
  SocketMessageStream(EventLoop& loop, FileDescriptor socket, ReadBuffer& buffer, Limits limits);
  ~SocketMessageStream();

  // Why the connection ended, if not by the peer's wish; empty otherwise.
  const std::string& why_ended() const { return why_ended_; }

  using MessageStream::tryReadMessage;
  using MessageStream::writeMessage;
  using MessageStream::writeMessages;
  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> tryReadMessage(
      kj::ArrayPtr<kj::AutoCloseFd> descriptors, capnp::ReaderOptions options,
      kj::ArrayPtr<capnp::word> scratch) override;
  kj::Promise<void> writeMessage(
      kj::ArrayPtr<const int> descriptors,
      kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) override;
  kj::Promise<void> writeMessages(
      kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) override;
  kj::Maybe<int> getSendBufferSize() override { return nullptr; }
  kj::Promise<void> end() override;

 private:
  using MaybeMessage = kj::Maybe<capnp::MessageReaderAndFds>;
  struct Frame {
    std::vector<uint64_t> words;     // the message with its segment table, as far as it has come
    std::vector<uint32_t> segments;  // sizes in words, once the table is there
    size_t bytes = 0;                // that have come
    size_t table_words = 0;          // 0: not known yet
    size_t total_words = 0;          // 0: not known yet
  };
  class Message;

  void on_ready(FdReady ready);
  void read_some();
  bool may_read() const;
  // False when the connection has ended.
  bool feed(const uint8_t* data, size_t size);
  bool learn_sizes();
  void complete();
  void deliver(kj::Own<capnp::MessageReader> message);
  void append(kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments);
  void end_of_turn() override { flush(); }
  void flush();
  void finish(std::string why);  // "": the peer closed, between two messages
  MaybeMessage take_from_inbox();

  EventLoop& loop_;
  FileDescriptor socket_;
  ReadBuffer& buffer_;
  const Limits limits_;

  Frame frame_;
  std::deque<kj::Own<capnp::MessageReader>> inbox_;
  size_t inbox_bytes_ = 0;
  kj::Own<kj::PromiseFulfiller<MaybeMessage>> reader_;
  bool readable_ = false;  // there may be more than what was read
  bool ending_ = false;    // and then an end
  bool ended_ = false;
  std::string why_ended_;

  std::vector<uint8_t> outgoing_;
  size_t sent_ = 0;  // of outgoing_
  bool writable_ = true;

  std::unique_ptr<FdWatch> watch_;  // before the socket closes
};

}  // namespace weightlane::prod
