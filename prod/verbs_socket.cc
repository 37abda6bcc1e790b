// The descriptor's callback reads and writes until EAGAIN, then tells whoever waits to look again.
#include "prod/verbs_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "prod/verbs_wire.h"

namespace weightlane::prod {
namespace {

// A silent peer whose host has gone is noticed after 5 + 3 x 5 s; a process that ends, at once.
void keep_alive(int fd) {
  const int on = 1, idle_seconds = 5, interval_seconds = 5, probes = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof interval_seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

uint32_t length_of(const Bytes& bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < kVerbsFrameHeader; ++i)
    length |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  return length;
}

}  // namespace

Result<SocketAddress> SocketAddress::parse(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "\"" + host + "\" is no numeric IPv4 or IPv6 address"};
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

FrameSocket::FrameSocket(EventLoop& loop, int fd, uint32_t max_frame)
    : loop_(loop), fd_(fd), max_frame_(max_frame), changed_(loop.runtime()) {
  keep_alive(fd_);
  watch_ = loop_.watch(fd_, [this](FdReady) { ready(); });
}

FrameSocket::~FrameSocket() { close(); }

Result<std::shared_ptr<FrameSocket>> FrameSocket::connect(EventLoop& loop, const SocketAddress& to,
                                                          uint32_t max_frame) {
  const int fd = ::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return Error{ErrorCode::kResourceExhausted,
                 std::string("no further socket: ") + std::strerror(errno)};
  if (::connect(fd, to.get(), to.length) != 0 && errno != EINPROGRESS) {
    const std::string why = std::strerror(errno);
    ::close(fd);
    return Error{ErrorCode::kUnreachable, why};
  }
  return std::make_shared<FrameSocket>(loop, fd, max_frame);
}

void FrameSocket::send(Bytes frame) {
  if (closed()) return;
  if (out_.empty()) {
    out_ = std::move(frame);
  } else {
    out_.insert(out_.end(), frame.begin(), frame.end());
  }
  write_some();
}

flow::Task<Result<Bytes>> FrameSocket::receive(std::shared_ptr<FrameSocket> self, Nanos deadline) {
  for (;;) {
    if (self->in_.size() >= kVerbsFrameHeader &&
        self->in_.size() == kVerbsFrameHeader + length_of(self->in_)) {
      Bytes frame(self->in_.begin() + kVerbsFrameHeader, self->in_.end());
      self->in_ = Bytes();
      self->frame_taken_ = true;
      co_return frame;
    }
    if (self->closed()) co_return Error{ErrorCode::kClosed, self->why_closed()};
    const bool notified = co_await self->changed_.wait_until(deadline);
    if (!notified) co_return Error{ErrorCode::kTimeout, "no answer in time"};
  }
}

flow::Task<void> FrameSocket::flush(std::shared_ptr<FrameSocket> self, Nanos deadline) {
  while (!self->closed() && self->out_sent_ < self->out_.size()) {
    const bool notified = co_await self->changed_.wait_until(deadline);
    if (!notified) co_return;
  }
}

void FrameSocket::ready() {
  if (closed()) return;
  if (read_some()) write_some();
  changed_.notify_all();
}

// False when the connection has ended.
bool FrameSocket::read_some() {
  for (;;) {
    uint8_t buffer[16 * 1024];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      // ENOTCONN: still connecting.
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN) return true;
      end(std::strerror(errno));
      return false;
    }
    if (got == 0) {
      end("the peer closed the connection");
      return false;
    }
    in_.insert(in_.end(), buffer, buffer + got);
    const bool has_length = in_.size() >= kVerbsFrameHeader;
    const bool too_long = has_length && (length_of(in_) > max_frame_ ||
                                         in_.size() > kVerbsFrameHeader + length_of(in_));
    if (frame_taken_ || too_long) {
      end("the peer sent what is no frame of this protocol");
      return false;
    }
  }
}

bool FrameSocket::write_some() {
  while (out_sent_ < out_.size()) {
    const ssize_t sent =
        ::send(fd_, out_.data() + out_sent_, out_.size() - out_sent_, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN) return true;
      end(std::strerror(errno));
      return false;
    }
    out_sent_ += static_cast<size_t>(sent);
  }
  out_ = Bytes();
  out_sent_ = 0;
  return true;
}

void FrameSocket::end(std::string why) {
  if (closed()) return;
  std::function<void()> callback = std::move(on_close_);
  close();
  closed_ = std::move(why);
  changed_.notify_all();
  if (callback) callback();
}

void FrameSocket::close() {
  if (fd_ < 0) return;
  on_close_ = nullptr;
  closed_ = "closed here";
  watch_.reset();
  ::close(fd_);
  fd_ = -1;
}

}  // namespace weightlane::prod
