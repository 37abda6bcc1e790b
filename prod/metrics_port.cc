// One coroutine per connection, over its descriptor's watch.
#include "prod/metrics_port.h"

#include <errno.h>
#include <sys/socket.h>

#include <array>
#include <string_view>
#include <utility>

#include "flow/signal.h"
#include "flow/task_set.h"
#include "prod/control_address.h"
#include "prod/file_descriptor.h"

namespace weightlane::prod {
namespace {

using flow::Task;

constexpr size_t kRequestBytes = 8 * 1024;
constexpr size_t kConnections = 64;
constexpr Nanos kPatience = seconds(10);

std::string http_answer(const char* status, const std::string& type, const std::string& body) {
  return std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" +
         body;
}

std::string answer_to(std::string_view request, const std::function<std::string()>& page) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  if (!line.starts_with("GET ") || line.find(" HTTP/1.") == std::string_view::npos) {
    return http_answer("400 Bad Request", "text/plain", "GET /metrics is all there is\n");
  }
  const std::string_view path = line.substr(4, line.find(' ', 4) - 4);
  if (path != "/metrics" && !path.starts_with("/metrics?")) {
    return http_answer("404 Not Found", "text/plain", "the metrics are at /metrics\n");
  }
  return http_answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", page());
}

Task<void> serve_one(EventLoop* loop, FileDescriptor socket,
                     const std::function<std::string()>* page) {
  flow::Signal changed(loop->runtime());
  const auto watch = loop->watch(socket.get(), [&changed](FdReady) { changed.notify_all(); });
  const Nanos deadline = deadline_after(loop->runtime().now(), kPatience);
  std::string request;
  while (request.find("\r\n\r\n") == std::string::npos) {
    std::array<char, kRequestBytes> piece;
    const ssize_t count = recv(socket.get(), piece.data(), piece.size() - request.size(), 0);
    if (count > 0) {
      request.append(piece.data(), static_cast<size_t>(count));
      if (request.size() == kRequestBytes) co_return;  // no scraper asks so long a question
    } else if (count == 0 || errno != EAGAIN) {
      co_return;
    } else {
      const bool in_time = co_await changed.wait_until(deadline);
      if (!in_time) co_return;
    }
  }
  const std::string answer = answer_to(request, *page);
  size_t sent = 0;
  while (sent < answer.size()) {
    const ssize_t count =
        send(socket.get(), answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno != EAGAIN) {
      co_return;
    } else {
      const bool in_time = co_await changed.wait_until(deadline);
      if (!in_time) co_return;
    }
  }
}

}  // namespace

struct MetricsPort::Impl {
  Impl(EventLoop* l, Listener from, std::function<std::string()> p)
      : loop(l), listener(std::move(from)), page(std::move(p)), tasks(l->runtime()) {
    watch = loop->watch(listener.socket.get(), [this](FdReady) { accept_all(); });
  }
  void accept_all() {
    for (;;) {
      FileDescriptor socket(
          accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket && errno != EINTR && errno != ECONNABORTED) return;
      if (socket && tasks.size() < kConnections) {
        tasks.spawn(serve_one(loop, std::move(socket), &page), "metrics.connection");
      }
    }
  }

  EventLoop* loop;
  Listener listener;
  std::function<std::string()> page;
  std::unique_ptr<FdWatch> watch;
  flow::TaskSet tasks;
};

MetricsPort::MetricsPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsPort::~MetricsPort() = default;
std::string MetricsPort::address() const { return impl_->listener.name.text(); }

Result<std::unique_ptr<MetricsPort>> MetricsPort::serve(EventLoop* loop, const std::string& address,
                                                        std::function<std::string()> page) {
  Result<Listener> listener = listen_on(address);
  if (!listener) return listener.error();
  return std::unique_ptr<MetricsPort>(
      new MetricsPort(std::make_unique<Impl>(loop, std::move(listener).value(), std::move(page))));
}

}  // namespace weightlane::prod
