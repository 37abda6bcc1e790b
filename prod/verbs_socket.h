// FrameSocket: a TCP connection that carries length-prefixed frames, for the exchange before a
// verbs connection and, by its end, for the news that the peer has gone. Nothing of the data goes
// through it.
//
// On the loop's thread only. A peer that sends a frame over the limit, or that sends more than is
// asked for, is cut off; memory grows only with what has arrived.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "flow/result.h"
#include "flow/signal.h"
#include "flow/task.h"
#include "net/ids.h"
#include "prod/event_loop.h"

namespace weightlane::prod {

// A numeric IPv4 or IPv6 address (a scope may follow: fe80::1%eth0) and a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // kInvalidArgument. Resolves no names.
  static Result<SocketAddress> parse(const std::string& host, uint16_t port);
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

class FrameSocket {
 public:
  // Takes `fd`, connected or connecting, non-blocking. `max_frame` bytes; at most one frame is ever
  // taken in.
  FrameSocket(EventLoop& loop, int fd, uint32_t max_frame);
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;

  // Begins to connect; whether that works shows later. kUnreachable at once if the address cannot
  // be used.
  static Result<std::shared_ptr<FrameSocket>> connect(EventLoop& loop, const SocketAddress& to,
                                                      uint32_t max_frame);

  // `frame` has its length in front.
  void send(Bytes frame);
  // The peer's frame, without the length. kTimeout; kClosed with the reason.
  // `self` keeps the socket while waiting.
  static flow::Task<Result<Bytes>> receive(std::shared_ptr<FrameSocket> self, Nanos deadline);
  // Returns when all that was sent is the kernel's, the connection has ended, or the deadline has
  // come.
  static flow::Task<void> flush(std::shared_ptr<FrameSocket> self, Nanos deadline);

  // True once the connection has ended, by either side.
  bool closed() const { return closed_.has_value(); }
  const std::string& why_closed() const { return *closed_; }
  // Called once, from the loop, when it ends; must only note and notify.
  void on_close(std::function<void()> callback) { on_close_ = std::move(callback); }
  // Ends it from this side; the peer sees the end. Without on_close.
  void close();

 private:
  void ready();
  bool read_some();
  bool write_some();
  void end(std::string why);

  EventLoop& loop_;
  int fd_;
  uint32_t max_frame_;
  bool frame_taken_ = false;
  Bytes in_;
  Bytes out_;
  size_t out_sent_ = 0;
  std::optional<std::string> closed_;
  std::function<void()> on_close_;
  flow::Signal changed_;
  std::unique_ptr<FdWatch> watch_;
};

}  // namespace weightlane::prod
