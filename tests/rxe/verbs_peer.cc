// Both halves speak lines over pipes; only the peer's half runs a loop, in its own process.
#include "tests/rxe/verbs_peer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

extern char** environ;

namespace weightlane::rxe {
namespace {

class AcceptAll final : public net::Acceptor {
 public:
  explicit AcceptAll(net::RegionId region) : region_(region) {}
  net::AcceptDecision on_connect(std::span<const uint8_t>,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override {
    const net::RemoteRegion described = pair->describe(region_);
    pairs.push_back(std::move(pair));
    net::Accept accept;
    accept.payload.resize(sizeof described);
    std::memcpy(accept.payload.data(), &described, sizeof described);
    return accept;
  }

  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs;

 private:
  net::RegionId region_;
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// False when the input has ended.
flow::Task<bool> obey(net::DataPlane* plane, AcceptAll* acceptor, net::RegionId region,
                      flow::Signal* input) {
  char order = 0;
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, &order, 1);
    if (got == 0) co_return false;
    if (got < 0) {
      co_await input->wait();
      continue;
    }
    if (order == Peer::kFence) acceptor->pairs.clear();
    if (order == Peer::kDeregister) co_await plane->deregister(region);
    const auto closed = std::count_if(acceptor->pairs.begin(), acceptor->pairs.end(),
                                      [](const auto& pair) { return pair->closed(); });
    say(std::to_string(closed));
  }
}

}  // namespace

int run_peer(const std::string& device, uint64_t bytes) {
  prod::EventLoop loop;
  prod::VerbsOptions options;
  options.device = device;
  Result<std::unique_ptr<prod::VerbsPlane>> plane = prod::VerbsPlane::open(loop, options);
  if (!plane.ok()) {
    say(plane.error().message);
    return 1;
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (uint64_t i = 0; i < bytes; ++i) static_cast<uint8_t*>(memory)[i] = pattern(i);
  Result<net::RegionId> region = loop.run(
      (*plane)->register_memory({.address = reinterpret_cast<uint64_t>(memory), .length = bytes}));
  if (!region.ok()) {
    say(region.error().message);
    return 1;
  }
  AcceptAll acceptor(*region);
  Result<std::string> endpoint = (*plane)->listen(&acceptor);
  say(endpoint.ok() ? *endpoint : endpoint.error().message);
  fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
  flow::Signal input(loop.runtime());
  const std::unique_ptr<prod::FdWatch> watch =
      loop.watch(STDIN_FILENO, [&input](prod::FdReady) { input.notify_all(); });
  loop.run(obey(plane->get(), &acceptor, *region, &input));
  (*plane)->stop_listening(&acceptor);
  acceptor.pairs.clear();
  return 0;
}

Result<Peer> Peer::start(const std::string& device, uint64_t bytes) {
  int to[2] = {}, from[2] = {};
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
    return Error{ErrorCode::kResourceExhausted, "no pipes"};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  const std::string size = std::to_string(bytes);
  const char* arguments[] = {"/proc/self/exe", "--peer", device.c_str(), size.c_str(), nullptr};
  Peer peer;
  const int failed = posix_spawn(&peer.child_, "/proc/self/exe", &actions, nullptr,
                                 const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(to[0]);
  ::close(from[1]);
  peer.to_ = to[1];
  peer.from_ = from[0];
  if (failed != 0) {
    peer.child_ = 0;
    return Error{ErrorCode::kResourceExhausted, std::strerror(failed)};
  }
  peer.endpoint_ = peer.read_line();
  if (!peer.endpoint_.starts_with("verbs://"))
    return Error{ErrorCode::kUnreachable, peer.endpoint_};
  return peer;
}

Peer& Peer::operator=(Peer&& other) noexcept {
  if (this == &other) return *this;
  stop();
  child_ = std::exchange(other.child_, 0);
  to_ = std::exchange(other.to_, -1);
  from_ = std::exchange(other.from_, -1);
  endpoint_ = std::move(other.endpoint_);
  return *this;
}

std::string Peer::read_line() const {
  std::string line;
  char c = 0;
  while (::read(from_, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

std::string Peer::order(char what) {
  if (::write(to_, &what, 1) != 1) return "gone";
  return read_line();
}

void Peer::signal(int number) const { ::kill(child_, number); }

void Peer::stop() {
  if (child_ != 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  if (to_ >= 0) ::close(std::exchange(to_, -1));
  if (from_ >= 0) ::close(std::exchange(from_, -1));
}

flow::Task<Result<Reading>> connect(net::DataPlane* plane, std::string endpoint, flow::Signal* wake,
                                    Nanos deadline) {
  Result<net::Connected> connected =
      co_await plane->connect(std::move(endpoint), Bytes(), wake, deadline);
  if (!connected.ok()) co_return connected.error();
  Reading reading;
  reading.pair = std::move(connected->pair);
  WL_ASSERT(connected->payload.size() == sizeof reading.region);
  std::memcpy(&reading.region, connected->payload.data(), sizeof reading.region);
  co_return reading;
}

flow::Task<std::optional<net::Completion>> next(net::QueuePair* pair, flow::Signal* wake,
                                                Nanos deadline) {
  for (;;) {
    std::optional<net::Completion> completion = pair->poll();
    if (completion.has_value()) co_return completion;
    const bool notified = co_await wake->wait_until(deadline);
    if (!notified) co_return pair->poll();
  }
}

}  // namespace weightlane::rxe
