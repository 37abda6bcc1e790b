// What scrapers and strangers send to the metrics port.
//
// It answers with one whole HTTP answer or with nothing, and the page is shown only to who asks for
// it.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "fuzz/target.h"
#include "prod/file_descriptor.h"
#include "prod/metrics_port.h"

namespace weightlane::prod {
namespace {

constexpr std::string_view kPage = "weightlane_open_shards 3\n";

struct World {
  World() : path("/tmp/weightlane-fuzz-metrics-" + std::to_string(getpid())) {
    const auto page = [] { return std::string(kPage); };
    port = MetricsPort::serve(&loop, "unix:" + path, page).value();
  }
  ~World() {
    port.reset();
    unlink(path.c_str());
  }
  std::string path;
  EventLoop loop;
  std::unique_ptr<MetricsPort> port;
};

flow::Task<int> some_turns(flow::Runtime* runtime) {
  for (int i = 0; i < 3; ++i) co_await runtime->sleep_for(nanos(1));
  co_return 0;
}

std::string ask(World& world, std::span<const uint8_t> question) {
  const FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  WL_ASSERT(world.path.size() < sizeof name.sun_path);
  std::memcpy(name.sun_path, world.path.c_str(), world.path.size());
  WL_ASSERT(connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  // It fits into the socket's buffer, or the port has hung up.
  (void)send(fd.get(), question.data(), question.size(), MSG_NOSIGNAL);
  shutdown(fd.get(), SHUT_WR);
  std::string answer;
  for (int turns = 0; turns < 1'000; ++turns) {
    (void)world.loop.run(some_turns(&world.loop.runtime()));
    char piece[1024];
    const ssize_t got = recv(fd.get(), piece, sizeof piece, 0);
    if (got > 0) answer.append(piece, static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN)) return answer;
  }
  WL_ASSERT(!"the end of the answer");
  return answer;
}

}  // namespace
}  // namespace weightlane::prod

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane::prod;
  static World world;
  const std::string answer = ask(world, {data, std::min<size_t>(size, 16'384)});
  if (answer.empty()) return 0;
  WL_ASSERT(answer.starts_with("HTTP/1.1 "));
  const size_t head = answer.find("\r\n\r\n");
  WL_ASSERT(head != std::string::npos);
  const std::string body = answer.substr(head + 4);
  WL_ASSERT(answer.find("Content-Length: " + std::to_string(body.size()) + "\r\n") < head);
  const std::string_view asked(reinterpret_cast<const char*>(data), size);
  WL_ASSERT((body == kPage) == answer.starts_with("HTTP/1.1 200 "));
  if (body == kPage) WL_ASSERT(asked.starts_with("GET /metrics"));
  return 0;
}
