// Garbage on the reference server's port: framing, Cap'n Proto's RPC protocol, our request.
//
// The first byte says in what pieces the rest arrives on a connection of its own. Whatever it is,
// only that connection may suffer: afterwards an honest client on another one is still answered.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "fuzz/target.h"
#include "prod/file_descriptor.h"
#include "prod/rpc.h"

namespace weightlane::prod {
namespace {

using flow::Task;

constexpr size_t kInputMax = 16'384;

class Answers final : public net::RequestHandler {
 public:
  Task<net::Response> handle(net::Request request) override { return run(std::move(request)); }

 private:
  static Task<net::Response> run(net::Request request) {
    net::Failure failure;
    failure.message = std::to_string(request.header.sequence);
    co_return net::Response{BootId{7}, failure};
  }
};

struct World {
  World() {
    path = "/tmp/weightlane-fuzz-rpc-" + std::to_string(getpid());
    serving = plane.serve("unix:" + path, &handler).value();
    honest = loop.run(plane.connect("unix:" + path, soon())).value();
  }
  Nanos soon() { return loop.runtime().now() + seconds(5); }

  std::string path;
  Log log{{LogLevel::kError, LogFormat::kKeyValue, [](std::string_view) {}}};
  EventLoop loop;
  Answers handler;
  RpcControlPlane plane{&loop, &log};
  std::unique_ptr<net::Serving> serving;
  std::unique_ptr<net::Connection> honest;
  uint64_t calls = 0;
};

Task<int> some_turns(flow::Runtime* runtime) {
  for (int i = 0; i < 3; ++i) co_await runtime->sleep_for(nanos(1));
  co_return 0;
}

FileDescriptor connect_raw(const std::string& path) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  WL_ASSERT(path.size() < sizeof name.sun_path);
  std::memcpy(name.sun_path, path.c_str(), path.size());
  WL_ASSERT(connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  return fd;
}

// False when the server has hung up.
bool hear(const FileDescriptor& fd) {
  for (;;) {
    uint8_t ignored[4096];
    const ssize_t got = recv(fd.get(), ignored, sizeof ignored, 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN;
  }
}

void say(World& world, std::span<const uint8_t> bytes, size_t piece) {
  const FileDescriptor fd = connect_raw(world.path);
  while (!bytes.empty()) {
    const size_t now = std::min(bytes.size(), piece);
    const ssize_t sent = send(fd.get(), bytes.data(), now, MSG_NOSIGNAL);
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
    (void)world.loop.run(some_turns(&world.loop.runtime()));
    if (!hear(fd)) break;
  }
  (void)world.loop.run(some_turns(&world.loop.runtime()));
  hear(fd);
}

}  // namespace
}  // namespace weightlane::prod

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane;
  using namespace weightlane::prod;
  static World world;
  fuzz::Script script(data, std::min(size, kInputMax));
  // One byte at a time only for short ones: a turn of the loop costs more than a byte.
  const size_t piece = std::max<size_t>({1, script.u8() * size_t{64}, size / 16});
  say(world, script.rest(), piece);
  net::Request request;
  request.header.sequence = ++world.calls;
  const net::CallOutcome outcome = world.loop.run(world.honest->call(request, world.soon()));
  const auto* response = std::get_if<net::Response>(&outcome);
  WL_ASSERT(response != nullptr);
  WL_ASSERT(std::get<net::Failure>(response->body).message == std::to_string(world.calls));
  return 0;
}
