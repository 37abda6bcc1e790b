// Sockets block: a thread of its own drives each. While there is a deadline, poll() waits first and
// the calls themselves don't.
#include "prod/tcp_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

namespace weightlane::prod {
namespace {

constexpr uint64_t kBlobPiece = 64 * 1024;
constexpr int kRequestBuffer = 200 * 1024;
constexpr int kDeadPeerMs = 10'000;  // bytes unacknowledged for so long: the peer's host is gone

void set_option(int fd, int level, int name, int value) {
  // Tuning only: the connection works without.
  setsockopt(fd, level, name, &value, sizeof value);
}

void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kDeadPeerMs);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

}  // namespace

TcpSocket::TcpSocket(FileDescriptor fd) : fd_(std::move(fd)) { tune(fd_.get()); }

Result<std::shared_ptr<TcpSocket>> TcpSocket::create(int family) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) {
    return Error{ErrorCode::kResourceExhausted, std::string("no socket: ") + std::strerror(errno)};
  }
  // A reader's requests never wait: 64 of them fit, each with the kernel's overhead.
  set_option(fd.get(), SOL_SOCKET, SO_SNDBUF, kRequestBuffer);
  return std::make_shared<TcpSocket>(std::move(fd));
}

bool TcpSocket::wait_for(short events, SteadyTime deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() < 0 || stopped()) return false;
    pollfd entry{};
    entry.fd = fd_.get();
    entry.events = events;
    const auto wait = std::min<int64_t>(left.count() + 1, 200);  // stop() is never missed for long
    const int ready = poll(&entry, 1, static_cast<int>(wait));
    if (ready > 0) return !stopped();
    if (ready < 0 && errno != EINTR) return false;
  }
}

Result<Done> TcpSocket::connect(const TcpAddress& to, SteadyTime deadline) {
  const int flags = fcntl(fd_.get(), F_GETFL);
  fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
  const auto failed = [&to](const std::string& why) {
    return Error{ErrorCode::kUnreachable, to.text() + ": " + why};
  };
  if (::connect(fd_.get(), to.get(), to.length) != 0) {
    if (errno != EINPROGRESS) return failed(std::strerror(errno));
    if (!wait_for(POLLOUT, deadline)) return failed(stopped() ? "given up" : "no answer in time");
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return failed(std::strerror(error));
  fcntl(fd_.get(), F_SETFL, flags);
  // On loopback a connection to a port of the ephemeral range can meet itself.
  TcpAddress self;
  self.length = sizeof self.storage;
  getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&self.storage), &self.length);
  if (self.text() == to.text()) return failed("connected to itself: nobody listens there");
  return Done{};
}

bool TcpSocket::send_all(std::span<const uint8_t> bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool TcpSocket::receive_all(std::span<uint8_t> bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got < 0 && errno == EAGAIN) {
      if (!wait_for(POLLIN, deadline)) return false;
    } else if (got == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool TcpSocket::receive_blob(Bytes& into, uint64_t length, SteadyTime deadline) {
  into.clear();
  while (into.size() < length) {
    const size_t before = into.size();
    const size_t piece = std::min(length - before, std::max<uint64_t>(kBlobPiece, before));
    into.resize(before + piece);
    if (!receive_all(std::span(into).subspan(before), deadline)) return false;
  }
  return true;
}

bool TcpSocket::send(std::span<const uint8_t> header, std::span<const uint8_t> body) {
  while (!header.empty() || !body.empty()) {
    iovec parts[2] = {{const_cast<uint8_t*>(header.data()), header.size()},
                      {const_cast<uint8_t*>(body.data()), body.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    const auto bytes = static_cast<size_t>(sent);
    const size_t of_header = std::min(bytes, header.size());
    header = header.subspan(of_header);
    body = body.subspan(bytes - of_header);
  }
  return true;
}

size_t TcpSocket::receive_some(std::span<uint8_t> bytes) {
  for (;;) {
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) return 0;
  }
}

bool TcpSocket::receive(std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const size_t got = receive_some(bytes);
    if (got == 0) return false;
    bytes = bytes.subspan(got);
  }
  return true;
}

bool TcpSocket::send_now(std::span<const uint8_t> bytes) {
  const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(bytes.size());
}

void TcpSocket::stop() {
  stopped_.store(true);
  ::shutdown(fd_.get(), SHUT_RDWR);
}

std::string TcpSocket::peer() const {
  TcpAddress address;
  address.length = sizeof address.storage;
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return "a peer that has gone";
  }
  return TcpAddress::from_sockaddr(address.get(), address.length).text();
}

}  // namespace weightlane::prod
