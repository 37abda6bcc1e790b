// A descriptor travels with the first byte of its frame; a Unix stream never joins the bytes before
// it to those after, so whoever reads a frame's header gets that frame's descriptor.
#include "prod/unix_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace weightlane::prod {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kReadPiece = 64 * 1024;

socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

FileDescriptor take_descriptor(msghdr& message) {
  FileDescriptor file;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      file = FileDescriptor(fd);  // more than one is not ours: the last is kept, the others closed
    }
  }
  return file;
}

}  // namespace

Result<FileDescriptor> listen_abstract(const std::string& name) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return Error{ErrorCode::kResourceExhausted,
                 "Unix socket @" + name + ": " + std::strerror(errno)};
  }
  return fd;
}

FileDescriptor connect_abstract(const std::string& name) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0)
    return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

UnixChannel::UnixChannel(FileDescriptor fd, uint64_t body_max, Callbacks callbacks)
    : fd_(std::move(fd)), body_max_(body_max), callbacks_(std::move(callbacks)) {}

UnixChannel::~UnixChannel() { watch_.reset(); }

std::shared_ptr<UnixChannel> UnixChannel::open(EventLoop& loop, FileDescriptor fd,
                                               uint64_t body_max, Callbacks callbacks) {
  std::shared_ptr<UnixChannel> channel(
      new UnixChannel(std::move(fd), body_max, std::move(callbacks)));
  std::weak_ptr<UnixChannel> weak = channel;
  channel->watch_ = loop.watch(channel->fd_.get(), [weak](FdReady now) {
    if (const std::shared_ptr<UnixChannel> self = weak.lock()) self->ready(now);
  });
  return channel;
}

void UnixChannel::send(uint32_t kind, uint64_t a, uint64_t b, std::span<const uint8_t> body,
                       int file) {
  if (closed()) return;
  UnixFrame frame;
  frame.kind = kind;
  frame.a = a;
  frame.b = b;
  frame.length = body.size();
  Outgoing outgoing;
  outgoing.bytes.resize(sizeof frame + body.size());
  std::memcpy(outgoing.bytes.data(), &frame, sizeof frame);
  if (!body.empty()) std::memcpy(outgoing.bytes.data() + sizeof frame, body.data(), body.size());
  if (file >= 0) outgoing.file = FileDescriptor(fcntl(file, F_DUPFD_CLOEXEC, 0));
  out_.push_back(std::move(outgoing));
  // A fault shows at the next look; the caller isn't in a place to be told of it.
  write_some();
}

bool UnixChannel::write_some() {
  while (!out_.empty()) {
    Outgoing& front = out_.front();
    iovec part{front.bytes.data() + front.sent, front.bytes.size() - front.sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (front.sent == 0 && front.file) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = front.file.get();
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN;
    }
    front.sent += static_cast<size_t>(sent);
    if (front.sent == front.bytes.size()) out_.pop_front();
  }
  return true;
}

// False at the end of the stream, or when the peer broke the format.
bool UnixChannel::read_some() {
  while (!closed()) {
    const size_t have = in_.size();
    const size_t want = in_body_ ? frame_.length : sizeof frame_;
    if (have == want) {
      if (!take_frame()) return false;
      continue;
    }
    in_.resize(std::min(want, have + kReadPiece));
    iovec part{in_.data() + have, in_.size() - have};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const int error = errno;
    in_.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0) {
      FileDescriptor file = take_descriptor(message);
      if (file) frame_file_ = std::move(file);
    } else if (got == 0 || (error != EINTR && error != EAGAIN)) {
      return false;
    } else if (error == EAGAIN) {
      return true;
    }
  }
  return true;
}

// A whole header or a whole body is in `in_`.
bool UnixChannel::take_frame() {
  if (!in_body_) {
    std::memcpy(&frame_, in_.data(), sizeof frame_);
    if (frame_.magic != UnixFrame{}.magic || frame_.length > body_max_) return false;
    in_.clear();
    in_body_ = true;
    if (frame_.length > 0) return true;
  }
  in_body_ = false;
  callbacks_.on_frame(frame_, std::exchange(in_, Bytes{}), std::move(frame_file_));
  return true;
}

void UnixChannel::ready(FdReady now) {
  if (now.writable && !write_some()) return end();
  if (now.readable && !closed() && !read_some()) end();
}

void UnixChannel::end() {
  if (closed()) return;
  close();
  const std::function<void()> on_close = std::move(callbacks_.on_close);
  if (on_close) on_close();
}

void UnixChannel::close() {
  watch_.reset();
  fd_.reset();
  out_.clear();
}

}  // namespace weightlane::prod
