// Goal: the control plane's contract over real sockets: every kind of address, every end of a call,
// and what a broken, hostile or absent peer may do to us, which is little.
// Method: client and server in one loop, on loopback and Unix sockets, at ports the kernel picks;
// raw sockets play the bad peers. Field reports 6, 27, 28, 31, 32.
#include "prod/rpc.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "flow/combinators.h"
#include "flow/task_set.h"
#include "prod/control_address.h"
#include "prod/file_descriptor.h"

namespace weightlane::prod {
namespace {

using flow::Task;
using net::CallOutcome;
using net::Request;
using net::Response;

Request poll_request(uint64_t sequence) {
  return {{Incarnation{1}, 1, sequence}, net::PollRequest{}};
}

// Answers with what the test says.
class Handler final : public net::RequestHandler {
 public:
  explicit Handler(flow::Runtime& runtime) : runtime_(runtime) {}
  Task<Response> handle(Request request) override { return run(this, std::move(request)); }

  bool hang = false;
  int running = 0;
  std::vector<uint64_t> seen;
  std::string big;

 private:
  struct Running {
    explicit Running(Handler* h) : handler(h) { ++handler->running; }
    ~Running() { --handler->running; }
    Handler* handler;
  };
  static Task<Response> run(Handler* self, Request request) {
    const Running running(self);
    self->seen.push_back(request.header.sequence);
    if (self->hang) co_await self->runtime_.sleep_until(kForever);
    net::Failure failure;
    failure.message = self->big.empty() ? std::to_string(request.header.sequence) : self->big;
    co_return Response{BootId{7}, failure};
  }
  flow::Runtime& runtime_;
};

struct World {
  World()
      : log({LogLevel::kDebug, LogFormat::kKeyValue,
             [this](std::string_view line) { lines.emplace_back(line); }}) {}
  flow::Runtime& runtime() { return loop.runtime(); }
  Nanos in(Nanos span) { return runtime().now() + span; }
  std::string serve(const std::string& address = "127.0.0.1:0") {
    Result<std::unique_ptr<net::Serving>> result = plane.serve(address, &handler);
    if (!result) return "error: " + result.error().message;
    serving = std::move(result).value();
    return serving->address();
  }
  Result<std::unique_ptr<net::Connection>> connect(const std::string& address,
                                                   Nanos span = seconds(5)) {
    return loop.run(plane.connect(address, in(span)));
  }
  CallOutcome call(net::Connection& connection, uint64_t sequence, Nanos span = seconds(5)) {
    return loop.run(connection.call(poll_request(sequence), in(span)));
  }
  void settle(const std::function<bool()>& condition, Nanos span = seconds(10)) {
    loop.run(wait_for(&runtime(), condition, in(span)));
  }
  static Task<void> wait_for(flow::Runtime* runtime, std::function<bool()> condition,
                             Nanos deadline) {
    while (!condition() && runtime->now() < deadline) co_await runtime->sleep_for(micros(200));
  }

  std::vector<std::string> lines;
  Log log;
  EventLoop loop;
  Handler handler{loop.runtime()};
  RpcControlPlane plane{&loop, &log};
  std::unique_ptr<net::Serving> serving;
};

std::string message_of(const CallOutcome& outcome) {
  if (const auto* response = std::get_if<Response>(&outcome)) {
    return std::get<net::Failure>(response->body).message;
  }
  if (const auto* error = std::get_if<Error>(&outcome)) return "error: " + error->message;
  return "unknown: " + std::get<net::OutcomeUnknown>(outcome).why;
}

// A raw client: what the kernel does not refuse, it sends.
class RawClient {
 public:
  explicit RawClient(const std::string& address) {
    const Result<ControlAddress> parsed = parse_control_address(address);
    const std::vector<SocketName> names = resolve(*parsed, false).value();
    fd_ = FileDescriptor(socket(names[0].family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (connect(fd_.get(), names[0].get(), names[0].length) != 0 && errno != EINPROGRESS) abort();
    pollfd writable{fd_.get(), POLLOUT, 0};
    poll(&writable, 1, 5'000);
  }
  ssize_t send_bytes(const std::string& bytes) {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  bool closed() {
    char buffer[4096];
    for (;;) {
      const ssize_t count = recv(fd_.get(), buffer, sizeof buffer, 0);
      if (count == 0) return true;
      if (count < 0) return errno != EAGAIN;
    }
  }

 private:
  FileDescriptor fd_;
};

std::string temporary_path(const char* name) {
  return "/tmp/wl-" + std::to_string(getpid()) + "-" + name;
}

// ---------------------------------------------------------------- addresses

TEST(ControlAddress, Forms) {
  const auto show = [](const std::string& text) {
    const Result<ControlAddress> address = parse_control_address(text);
    if (!address) return "error: " + address.error().message;
    if (address->is_unix()) return "path " + address->path;
    return address->host + " " + std::to_string(address->port);
  };
  const std::string hint = " (like host:7000, [::1]:7000 or unix:/path)";
  EXPECT_EQ(show("host:7000"), "host 7000");
  EXPECT_EQ(show("1.2.3.4:0"), "1.2.3.4 0");
  EXPECT_EQ(show("[::1]:7000"), "::1 7000");
  EXPECT_EQ(show("[fe80::1%eth0]:7000"), "fe80::1%eth0 7000");
  EXPECT_EQ(show("[::ffff:1.2.3.4]:7000"), "::ffff:1.2.3.4 7000");
  EXPECT_EQ(show("unix:/run/weightlane.sock"), "path /run/weightlane.sock");
  EXPECT_EQ(show("2605:340::1:7000"),
            "error: address \"2605:340::1:7000\": an IPv6 address needs brackets" + hint);
  EXPECT_EQ(show("host"), "error: address \"host\": a port is missing" + hint);
  EXPECT_EQ(show(":7000"), "error: address \":7000\": a host is missing" + hint);
  EXPECT_EQ(show("[::1]"), "error: address \"[::1]\": a port is missing" + hint);
  EXPECT_EQ(show("[::1:7000"), "error: address \"[::1:7000\": a ] is missing" + hint);
  EXPECT_EQ(show("[host]:1"),
            "error: address \"[host]:1\": brackets are for IPv6 addresses" + hint);
  EXPECT_EQ(show("host:70000"),
            "error: address \"host:70000\": a port is a number from 0 to 65535" + hint);
  EXPECT_EQ(show("host:7k"),
            "error: address \"host:7k\": a port is a number from 0 to 65535" + hint);
  EXPECT_EQ(show("unix:"), "error: address \"unix:\": a path is missing after unix:" + hint);
  EXPECT_EQ(show(""), "error: address \"\": a port is missing" + hint);
}

class RpcAddresses : public testing::TestWithParam<const char*> {};

TEST_P(RpcAddresses, AreServedAndReached) {
  World world;
  const std::string address = world.serve(GetParam());
  ASSERT_EQ(address.find("error"), std::string::npos) << address;
  EXPECT_EQ(address.find(":0", address.size() - 2), std::string::npos) << address;
  auto connection = world.connect(address);
  ASSERT_TRUE(connection.ok()) << connection.error().message;
  EXPECT_EQ(message_of(world.call(**connection, 41)), "41");
  EXPECT_EQ(message_of(world.call(**connection, 42)), "42");
}

INSTANTIATE_TEST_SUITE_P(All, RpcAddresses,
                         testing::Values("127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0",
                                         "localhost:0"));

// A link-local address of this machine, as "fe80::1%eth0"; empty if there is none.
std::string link_local_address() {
  std::string found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry != nullptr && found.empty(); entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET6) continue;
    const auto* address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (!IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) continue;
    char text[INET6_ADDRSTRLEN] = {};
    inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof text);
    found = std::string(text) + "%" + entry->ifa_name;
  }
  freeifaddrs(list);
  return found;
}

TEST(Rpc, ScopedAddresses) {
  const std::string host = link_local_address();
  if (host.empty()) return;  // no interface here has one: nothing to listen on
  World world;
  const std::string address = world.serve("[" + host + "]:0");
  ASSERT_TRUE(address.starts_with("[" + host + "]:")) << address;
  auto connection = world.connect(address);
  ASSERT_TRUE(connection.ok()) << connection.error().message;
  EXPECT_EQ(message_of(world.call(**connection, 6)), "6");
}

TEST(Rpc, WildcardOfIpv6TakesIpv4Too) {
  World world;
  const std::string address = world.serve("[::]:0");
  ASSERT_TRUE(address.starts_with("[::]:")) << address;
  const std::string port = address.substr(5);
  for (const std::string host : {"127.0.0.1:", "[::1]:", "localhost:"}) {
    auto connection = world.connect(host + port);
    ASSERT_TRUE(connection.ok()) << connection.error().message;
    EXPECT_EQ(message_of(world.call(**connection, 5)), "5");
  }
}

TEST(Rpc, UnixSocketsAndWhatADeadProcessLeaves) {
  const std::string path = temporary_path("rpc.sock");
  unlink(path.c_str());
  {  // bound, never unlinked, nobody listens
    const FileDescriptor dead(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  }
  World world;
  ASSERT_EQ(world.serve("unix:" + path), "unix:" + path);
  auto connection = world.connect("unix:" + path);
  ASSERT_TRUE(connection.ok()) << connection.error().message;
  EXPECT_EQ(message_of(world.call(**connection, 3)), "3");
  const auto second = world.plane.serve("unix:" + path, &world.handler);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(second.error().message, "cannot listen on unix:" + path + ": " + path + " is in use");
  world.serving.reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(Rpc, APortInUseIsOneClearLine) {
  World world;
  const std::string address = world.serve();
  const auto second = world.plane.serve(address, &world.handler);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kResourceExhausted);
  const std::string port = address.substr(address.rfind(':') + 1);
  EXPECT_EQ(second.error().message,
            "cannot listen on " + address + ": port " + port + " is in use");
}

TEST(Rpc, AnAddressOfAnotherMachineCannotBeListenedOn) {
  World world;
  const auto result = world.plane.serve("192.0.2.1:7000", &world.handler);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().message,
            "cannot listen on 192.0.2.1:7000: Cannot assign requested address");
}

// ---------------------------------------------------------------- connecting

TEST(Rpc, NobodyListens) {
  World world;
  const std::string address = world.serve();
  world.serving.reset();
  const auto connection = world.connect(address);
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code, ErrorCode::kUnreachable);
  EXPECT_EQ(connection.error().message,
            "cannot connect to " + address + " (" + address + ": Connection refused)");
}

TEST(Rpc, AnAddressThatAnswersNothingEndsAtTheDeadline) {
  // A listener whose queue is full drops what comes.
  const FileDescriptor silent(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  ASSERT_EQ(bind(silent.get(), reinterpret_cast<sockaddr*>(&name), length), 0);
  ASSERT_EQ(listen(silent.get(), 0), 0);
  getsockname(silent.get(), reinterpret_cast<sockaddr*>(&name), &length);
  std::vector<FileDescriptor> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    (void)connect(fillers.back().get(), reinterpret_cast<sockaddr*>(&name), length);
  }
  World world;
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  const Nanos before = world.runtime().now();
  const auto connection = world.connect(address, millis(300));
  const Nanos took = world.runtime().now() - before;
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code, ErrorCode::kUnreachable);
  EXPECT_EQ(connection.error().message,
            "cannot connect to " + address + " (" + address + ": no answer in time)");
  EXPECT_GE(took, millis(300));
  EXPECT_LT(took, seconds(3));
}

TEST(Rpc, NamesThatDoNotExist) {
  World world;
  const auto connection = world.connect("no-such-host.invalid:7000", seconds(20));
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code, ErrorCode::kUnreachable);
  EXPECT_NE(connection.error().message.find("no-such-host.invalid"), std::string::npos);
}

TEST(Rpc, WrongAddressesAreTheCallersMistake) {
  World world;
  for (const char* address : {"7000", "::1:7000", "127.0.0.1:0", "[::1]"}) {
    const auto connection = world.connect(address);
    ASSERT_FALSE(connection.ok());
    EXPECT_EQ(connection.error().code, ErrorCode::kInvalidArgument);
  }
}

// ---------------------------------------------------------------- calls

Task<void> one_call(net::Connection* connection, uint64_t sequence, Nanos deadline, int* answered) {
  const CallOutcome outcome = co_await connection->call(poll_request(sequence), deadline);
  if (message_of(outcome) == std::to_string(sequence)) ++*answered;
}
Task<void> drain(flow::TaskSet* tasks) { co_await tasks->drain(); }

TEST(Rpc, ManyCallsAtOnceArriveInOrder) {
  World world;
  auto connection = world.connect(world.serve());
  ASSERT_TRUE(connection.ok());
  int answered = 0;
  flow::TaskSet tasks(world.runtime());
  constexpr uint64_t kCalls = 2'000;
  for (uint64_t i = 0; i < kCalls; ++i) {
    tasks.spawn(one_call(connection->get(), i, world.in(seconds(20)), &answered), "call");
  }
  world.loop.run(drain(&tasks));
  EXPECT_EQ(answered, int{kCalls});
  ASSERT_EQ(world.handler.seen.size(), kCalls);
  for (uint64_t i = 0; i < kCalls; ++i) EXPECT_EQ(world.handler.seen[i], i);
}

TEST(Rpc, ACallEndsByItsDeadlineAndTheConnectionGoesOn) {
  World world;
  auto connection = world.connect(world.serve());
  ASSERT_TRUE(connection.ok());
  world.handler.hang = true;
  const Nanos before = world.runtime().now();
  const CallOutcome outcome = world.call(**connection, 1, millis(50));
  EXPECT_GE(world.runtime().now() - before, millis(50));
  EXPECT_EQ(message_of(outcome),
            "unknown: no answer from " + world.serving->address() + " in time");
  world.handler.hang = false;
  EXPECT_EQ(message_of(world.call(**connection, 2)), "2");
  EXPECT_FALSE((*connection)->broken());
}

TEST(Rpc, ADeadlineInThePastCallsNothing) {
  World world;
  auto connection = world.connect(world.serve());
  ASSERT_TRUE(connection.ok());
  const CallOutcome outcome = world.call(**connection, 1, nanos(0));
  EXPECT_TRUE(std::holds_alternative<Error>(outcome));
  EXPECT_TRUE(world.handler.seen.empty());
}

TEST(Rpc, ABrokenConnectionDropsItsHandlers) {
  World world;
  auto connection = world.connect(world.serve());
  ASSERT_TRUE(connection.ok());
  world.handler.hang = true;
  flow::TaskSet tasks(world.runtime());
  int answered = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    tasks.spawn(one_call(connection->get(), i, kForever, &answered), "call");
  }
  world.settle([&] { return world.handler.running == 10; });
  ASSERT_EQ(world.handler.running, 10);
  connection->reset();
  world.settle([&] { return world.handler.running == 0 && tasks.empty(); });
  EXPECT_EQ(world.handler.running, 0);
  EXPECT_TRUE(tasks.empty());
  EXPECT_EQ(answered, 0);
}

TEST(Rpc, AServerThatStopsLeavesTheOutcomeUnknown) {
  World world;
  auto connection = world.connect(world.serve());
  ASSERT_TRUE(connection.ok());
  world.handler.hang = true;
  std::string text;
  flow::TaskSet tasks(world.runtime());
  tasks.spawn(
      [](net::Connection* link, std::string* out) -> Task<void> {
        const CallOutcome outcome = co_await link->call(poll_request(1), kForever);
        *out = message_of(outcome);
      }(connection->get(), &text),
      "call");
  world.settle([&] { return world.handler.running == 1; });
  world.serving.reset();
  world.settle([&] { return !text.empty() && (*connection)->broken(); });
  EXPECT_EQ(world.handler.running, 0);
  EXPECT_TRUE(text.starts_with("unknown: the connection to ")) << text;
  EXPECT_TRUE((*connection)->broken());
  const CallOutcome after = world.call(**connection, 2);
  EXPECT_TRUE(std::holds_alternative<Error>(after));
}

TEST(Rpc, LargeAnswersArrive) {
  World world;
  auto connection = world.connect(world.serve());
  ASSERT_TRUE(connection.ok());
  world.handler.big.assign(20 << 20, 'x');
  const CallOutcome outcome = world.call(**connection, 1, seconds(20));
  EXPECT_EQ(message_of(outcome), world.handler.big);
}

TEST(Rpc, ARequestThatCannotBeDecodedIsRefusedAlone) {
  World world;
  auto connection = world.connect(world.serve());
  ASSERT_TRUE(connection.ok());
  net::GroupCallRequest call;
  call.kind = static_cast<net::CallKind>(9);
  const CallOutcome outcome =
      world.loop.run((*connection)->call(Request{{}, call}, world.in(seconds(5))));
  const Error* error = std::get_if<Error>(&outcome);
  ASSERT_NE(error, nullptr) << message_of(outcome);
  EXPECT_EQ(error->code, ErrorCode::kRefused);
  EXPECT_NE(error->message.find("call kind 9 is unknown"), std::string::npos) << error->message;
  EXPECT_EQ(message_of(world.call(**connection, 2)), "2");
}

TEST(Rpc, ARequestOverTheLimitEndsTheConnectionOnly) {
  World world;
  auto connection = world.connect(world.serve());
  auto other = world.connect(world.serving->address());
  ASSERT_TRUE(connection.ok() && other.ok());
  const Request large{{}, net::ListRequest{std::string(9 << 20, 'x')}};
  const CallOutcome outcome = world.loop.run((*connection)->call(large, world.in(seconds(20))));
  EXPECT_TRUE(std::holds_alternative<net::OutcomeUnknown>(outcome)) << message_of(outcome);
  EXPECT_EQ(message_of(world.call(**other, 2)), "2");
}

// ---------------------------------------------------------------- bad peers

TEST(Rpc, GarbageClosesThatConnectionOnly) {
  World world;
  const std::string address = world.serve();
  auto good = world.connect(address);
  ASSERT_TRUE(good.ok());
  std::string noise(4096, '\0');
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * 167 + 13);
  const std::string one_word_segment("\0\0\0\0\1\0\0\0", 8);
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
      std::string(64, '\xff'),
      noise,
      one_word_segment + std::string(8, '\xff'),
      one_word_segment + std::string("\0\0\0\0\xff\xff\xff\xff", 8),
      std::string("\0\0\0\0\xff\xff\xff\x7f", 8),
  };
  for (const std::string& bytes : garbage) {
    RawClient bad(address);
    ASSERT_GT(bad.send_bytes(bytes), 0);
    bool closed = false;
    world.settle([&] { return closed = bad.closed(); }, seconds(5));
    EXPECT_TRUE(closed) << "after " << bytes.size() << " bytes beginning with "
                        << static_cast<int>(static_cast<unsigned char>(bytes[0]));
    EXPECT_EQ(message_of(world.call(**good, 1)), "1");
  }
}

size_t resident_bytes() {
  size_t pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%*u %zu", &pages) != 1) abort();
  std::fclose(file);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(Rpc, HalfMessagesHoldLittleMemory) {
  World world;
  const std::string address = world.serve();
  auto good = world.connect(address);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(message_of(world.call(**good, 1)), "1");
  const size_t before = resident_bytes();
  std::vector<std::unique_ptr<RawClient>> stalled;
  for (int i = 0; i < 200; ++i) {  // each claims nearly 8 MiB
    stalled.push_back(std::make_unique<RawClient>(address));
    ASSERT_GT(stalled.back()->send_bytes(std::string("\0\0\0\0\xf0\xff\x0f\0", 8) + "half"), 0);
    EXPECT_EQ(message_of(world.call(**good, 2)), "2");
  }
  EXPECT_LT(resident_bytes(), before + (size_t{32} << 20));
  for (auto& client : stalled) EXPECT_FALSE(client->closed());
}

// A peer that only sends, as fast as it can, must neither stop the loop nor fill the memory.
TEST(Rpc, AFloodOfEmptyMessagesLeavesOthersServed) {
  World world;
  const std::string address = world.serve();
  auto good = world.connect(address);
  ASSERT_TRUE(good.ok());
  RawClient bad(address);
  const std::string zeros(1 << 20, '\0');
  const size_t before = resident_bytes();
  for (int i = 0; i < 64; ++i) {
    (void)bad.send_bytes(zeros);
    EXPECT_EQ(message_of(world.call(**good, 3)), "3");
  }
  EXPECT_LT(resident_bytes(), before + (size_t{64} << 20));
}

TEST(Rpc, ConnectionsOverTheLimitAreRefused) {
  World world;
  RpcOptions options;
  options.connections_max = 2;
  RpcControlPlane plane(&world.loop, &world.log, options);
  auto serving = plane.serve("127.0.0.1:0", &world.handler);
  ASSERT_TRUE(serving.ok());
  auto first = world.connect((*serving)->address());
  auto second = world.connect((*serving)->address());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(message_of(world.call(**first, 1)), "1");
  EXPECT_EQ(message_of(world.call(**second, 2)), "2");
  RawClient third((*serving)->address());
  bool closed = false;
  world.settle([&] { return closed = third.closed(); });
  EXPECT_TRUE(closed);
  second->reset();
  std::string answer;
  for (int i = 0; i < 1'000 && answer != "4"; ++i) {
    auto next = world.connect((*serving)->address());
    if (next.ok()) answer = message_of(world.call(**next, 4));
  }
  EXPECT_EQ(answer, "4");
}

}  // namespace
}  // namespace weightlane::prod
