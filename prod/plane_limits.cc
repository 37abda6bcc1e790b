// Timing starts when every thread is ready and every connection made, and ends with the last byte.
#include "prod/plane_limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weightlane::prod {
namespace {

using Clock = std::chrono::steady_clock;

// Calls move(thread, offset, length) for every block, dealt out to the threads in turn.
double deal(uint64_t bytes, LimitShape shape,
            const std::function<void(unsigned, uint64_t, uint64_t)>& move) {
  Clock::time_point begin;
  // The last to be ready says when it began: this thread may well be given no time before the end.
  std::barrier ready(static_cast<ptrdiff_t>(shape.threads),
                     [&begin]() noexcept { begin = Clock::now(); });
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < shape.threads; ++t) {
    threads.emplace_back([&, t] {
      ready.arrive_and_wait();
      for (uint64_t at = t * shape.block; at < bytes; at += shape.threads * shape.block) {
        move(t, at, std::min(shape.block, bytes - at));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void stream(uint8_t* into, const uint8_t* from, uint64_t bytes) {
  for (uint64_t at = 0; at + 64 <= bytes; at += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(into + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(into + at + 32), b);
  }
  _mm_sfence();
}
#endif

struct SendOrder {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t block = 0;
};

bool receive_exactly(int fd, uint8_t* into, uint64_t length, uint64_t block) {
  while (length > 0) {
    const ssize_t got = recv(fd, into, std::min(length, block), 0);
    if (got <= 0) return false;
    into += got;
    length -= static_cast<uint64_t>(got);
  }
  return true;
}

FileDescriptor connect_to_loopback(uint16_t port) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return FileDescriptor();
  }
  return fd;
}

FileDescriptor listen_on_loopback(uint16_t& port) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), 64) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return FileDescriptor();
  }
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

Result<double> limit_vm_read(pid_t pid, uint64_t from, uint8_t* into, uint64_t bytes,
                             LimitShape shape) {
  std::atomic<int> error{0};
  const double seconds = deal(bytes, shape, [&](unsigned, uint64_t at, uint64_t length) {
    const iovec local{into + at, length};
    const iovec remote{reinterpret_cast<void*>(from + at), length};
    if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(length)) {
      error.store(errno == 0 ? EIO : errno);
    }
  });
  if (error.load() != 0) {
    return Error{ErrorCode::kUnreachable,
                 std::string("process_vm_readv: ") + std::strerror(error.load())};
  }
  return seconds;
}

double limit_streaming_copy(const uint8_t* from, uint8_t* into, uint64_t bytes, LimitShape shape) {
  return deal(bytes, shape, [&](unsigned, uint64_t at, uint64_t length) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return stream(into + at, from + at, length);
#endif
    std::memcpy(into + at, from + at, length);
  });
}

Result<std::unique_ptr<PlainSender>> PlainSender::start(const uint8_t* data, uint64_t bytes) {
  auto sender = std::unique_ptr<PlainSender>(new PlainSender(data, bytes));
  sender->listening_ = listen_on_loopback(sender->port_);
  PlainSender* const self = sender.get();
  const bool started = sender->listening_ && sender->threads_.start("plain-accept", [self] {
    for (;;) {
      const int fd = accept4(self->listening_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      if (!self->threads_.start("plain-send", [self, fd] { self->serve(fd); })) close(fd);
    }
  });
  if (!started) return Error{ErrorCode::kResourceExhausted, "no socket on loopback"};
  return sender;
}

PlainSender::~PlainSender() {
  shutdown(listening_.get(), SHUT_RDWR);
  threads_.join_all();  // each ends with its connection
}

void PlainSender::serve(int fd) const {
  const FileDescriptor owned(fd);
  SendOrder order;
  while (receive_exactly(fd, reinterpret_cast<uint8_t*>(&order), sizeof order, sizeof order)) {
    if (order.offset > bytes_ || order.length > bytes_ - order.offset || order.block == 0) return;
    const uint8_t* from = data_ + order.offset;
    while (order.length > 0) {
      const ssize_t sent = send(fd, from, std::min(order.length, order.block), MSG_NOSIGNAL);
      if (sent <= 0) return;
      from += sent;
      order.length -= static_cast<uint64_t>(sent);
    }
  }
}

Result<double> limit_sockets(uint16_t port, uint8_t* into, uint64_t bytes, LimitShape shape) {
  const Error failed{ErrorCode::kUnreachable, "plain sockets over loopback failed"};
  std::vector<FileDescriptor> sockets;
  for (unsigned i = 0; i < shape.threads; ++i) {
    sockets.push_back(connect_to_loopback(port));
    if (!sockets.back()) return failed;
  }
  std::atomic<bool> ok{true};
  LimitShape shares = shape;
  shares.block = (bytes + shape.threads - 1) / shape.threads;  // one order for each
  const double seconds = deal(bytes, shares, [&](unsigned thread, uint64_t at, uint64_t length) {
    const int fd = sockets[thread].get();
    const SendOrder order{at, length, shape.block};
    if (send(fd, &order, sizeof order, MSG_NOSIGNAL) != sizeof order ||
        !receive_exactly(fd, into + at, length, shape.block)) {
      ok.store(false);
    }
  });
  if (!ok.load()) return failed;
  return seconds;
}

Result<double> limit_iperf3(unsigned streams, uint64_t bytes) {
  const Error missing{ErrorCode::kUnreachable, "iperf3 did not run"};
  uint16_t port = 0;
  if (!listen_on_loopback(port)) return missing;  // free a moment ago
  const std::string where = std::to_string(port);
  // The server is asked until it listens; nothing here outlasts 20 seconds.
  const std::string command =
      "command -v iperf3 >/dev/null || exit 1; timeout 20 iperf3 -s -1 -B 127.0.0.1 -p " + where +
      " >/dev/null 2>&1 & server=$!; for i in $(seq 50); do timeout 10 iperf3 -c 127.0.0.1 -p " +
      where + " -P " + std::to_string(streams) + " -n " + std::to_string(bytes / streams) +
      " -J 2>/dev/null && break; sleep 0.1; done; kill $server 2>/dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return missing;
  std::string text;
  std::array<char, 4096> piece;
  while (const size_t got = fread(piece.data(), 1, piece.size(), pipe))
    text.append(piece.data(), got);
  pclose(pipe);
  // Failed tries print too; the last one counts.
  const size_t sum = text.rfind("\"sum_received\"");
  const size_t rate =
      text.find("\"bits_per_second\":", sum == std::string::npos ? text.size() : sum);
  if (rate == std::string::npos) return missing;
  const double bits = std::strtod(text.c_str() + rate + sizeof "\"bits_per_second\":" - 1, nullptr);
  return bits / 8 / static_cast<double>(1ull << 30);
}

}  // namespace weightlane::prod
