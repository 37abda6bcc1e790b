// The reference server's whole mind, fed with any requests in any order.
//
// The script is a sequence of requests of a few handles, honest and not (numbers of calls, events,
// assignments and sessions made up; times at their limits), and of steps of time. After each the
// invariants of tests/ros must hold (P2, P4, P7, nothing dangling). At the end everyone falls
// silent, and within a bound the server must have forgotten everything (FIELD 7).
#include <array>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "ros/directory.h"
#include "tests/ros/invariants.h"

namespace weightlane::ros {
namespace {

using fuzz::Script;

constexpr size_t kHandles = 8;
constexpr int kStepsMax = 400;
constexpr std::array<const char*, 3> kReplicas{"a", "b", "c"};
constexpr Nanos kMost{std::numeric_limits<int64_t>::max()};
constexpr Nanos kLeast{std::numeric_limits<int64_t>::min()};
constexpr std::array<Nanos, 8> kSpans{kZeroNanos,  nanos(1),    millis(400), seconds(1),
                                      seconds(11), seconds(70), kMost,       kLeast};
// Time goes on by a sane amount: the server's clock is its own.
constexpr std::array<Nanos, 4> kSteps{millis(100), seconds(1), seconds(11), seconds(70)};

// One open handle, as far as its owner remembers.
struct Handle {
  net::RequestHeader header;
  uint64_t next_call = 1;
  uint64_t acknowledged = 0;
  std::vector<net::AssignedEvent> assigned;
  net::Request last;
};

class Play {
 public:
  Play(Script script, bool pipelining)
      : script_(script), directory_(options(pipelining), BootId{7}, now_, &silent_) {}

  void run() {
    for (int i = 0; i < kStepsMax && !script_.empty(); ++i) {
      step();
      check();
    }
    everyone_goes();
  }

 private:
  static ServerOptions options(bool pipelining) {
    ServerOptions result;
    result.pipelining = pipelining;
    return result;
  }

  void step() {
    const uint32_t what = script_.pick(16);
    Handle& handle = handles_[script_.pick(kHandles)];
    switch (what) {
      case 0:
      case 1:
        return open(handle);
      case 2:
      case 3:
      case 4:
        return call(handle);
      case 5:
      case 6:
        return poll(handle, true);
      case 7:
        return release(handle, net::ReleaseKind::kComplete);
      case 8:
        return release(handle, static_cast<net::ReleaseKind>(script_.pick(5)));
      case 9:
      case 10:
        return pass(kSteps[script_.pick(kSteps.size())]);
      case 11:
        directory_.apply(handle.last, now_);
        return;
      case 12:
        return poll(handle, false);
      case 13:
        return odd(handle);
      case 14:
        ask(handle, net::CloseRequest{});
        return;
      default:
        directory_.apply({{}, net::ListRequest{script_.u8() % 2 != 0 ? "m" : ""}}, now_);
    }
  }

  net::ResponseBody ask(Handle& handle, net::RequestBody body) {
    if (!std::holds_alternative<net::PollRequest>(body)) ++handle.header.sequence;
    handle.last = net::Request{handle.header, std::move(body)};
    return directory_.apply(handle.last, now_).body;
  }

  void open(Handle& handle) {
    net::OpenRequest open;
    open.model = "m";
    const uint8_t shape = script_.u8();
    open.replica = kReplicas[shape % kReplicas.size()];
    open.num_shards = 1 + shape / 4 % 3;
    open.shard.value = shape / 16 % 4;
    open.node = shape >= 128 ? "n1" : "n2";
    const uint8_t wish = script_.u8();
    if (wish % 16 == 0) open.num_shards = std::numeric_limits<uint32_t>::max();
    open.retain.latest = wish / 16 % 4;
    if (wish % 16 == 1) open.retain.versions = {{1u + wish / 64u}};
    open.spot = wish >= 192;
    if (wish % 2 != 0) open.on_offload_failure = net::OffloadFailure::kDrop;
    // Of an offload that this handle was asked for; the last one, so that its shards may meet.
    if (wish % 8 == 2 && asked_.token != 0) {
      open.offload = asked_.token;
      open.replica = asked_.replica;
    }
    open.datacenter = shape % kReplicas.size() % 2 == 0 ? "near" : "far";
    handle = Handle{};
    handle.header = {Incarnation{next_incarnation_++}, 1, 0};
    net::ResponseBody answer = ask(handle, std::move(open));
    if (const auto* opened = std::get_if<net::OpenedResponse>(&answer)) {
      handle.next_call = opened->next_call.value;
    }
  }

  void call(Handle& handle) {
    net::GroupCallRequest call;
    const uint8_t what = script_.u8();
    call.kind = static_cast<net::CallKind>(what % 4);
    const uint64_t version = 1 + what / 4 % 4;
    const bool exact = call.kind == net::CallKind::kPublish || what >= 128;
    call.version.kind = exact ? net::VersionKind::kExact : net::VersionKind::kLatest;
    call.version.exact.value = exact ? version : 0;
    if (!exact) call.version.back = static_cast<uint32_t>(version - 1) / 2;
    const uint8_t more = script_.u8();
    call.timeout = kSpans[more % kSpans.size()];
    call.layout = {more / 64u, 1, 2, 4096};
    call.number.value = more % 64 == 63 ? script_.u16() : handle.next_call++;
    ask(handle, call);
  }

  void poll(Handle& handle, bool honest) {
    const uint64_t acknowledged = honest ? handle.acknowledged : script_.u16();
    net::ResponseBody answer =
        ask(handle, net::PollRequest{acknowledged, 0, kSpans[honest ? 0 : 6]});
    const auto* events = std::get_if<net::EventsResponse>(&answer);
    if (events == nullptr) return;
    for (const net::Event& event : events->events) {
      if (honest) handle.acknowledged = event.number;
      if (const auto* body = std::get_if<net::AssignedEvent>(&event.body)) {
        handle.assigned.push_back(*body);
      }
      if (const auto* body = std::get_if<net::OffloadEvent>(&event.body)) asked_ = *body;
    }
  }

  // Of an assignment it was given, or of one it made up.
  void release(Handle& handle, net::ReleaseKind kind) {
    AssignmentId id{script_.u8()};
    if (id.value < 240 && !handle.assigned.empty()) {
      id = handle.assigned[id.value % handle.assigned.size()].assignment;
    }
    ask(handle, net::ReleaseRequest{id, kind, script_.u8(), "said the fuzzer"});
  }

  void odd(Handle& handle) {
    switch (script_.pick(9)) {
      case 5:
        ask(handle, net::WithdrawRequest{CallNumber{script_.u8()}});
        return;
      case 6:
        ask(handle, net::OffloadFailedRequest{asked_.token, "no memory"});
        return;
      case 7:
        directory_.apply({{}, net::RewindRequest{"m", Generation{script_.u8()}, script_.u8()}},
                         now_);
        return;
      case 8:
        directory_.apply({{}, net::WaitRequest{"m", {}, kSpans[0]}}, now_);
        return;
      case 0:
        handle.header.session = script_.u8();
        return;
      case 1:
        handle.header.sequence = script_.u16();
        return;
      case 2:  // as somebody else
        handle.header.incarnation = handles_[script_.pick(kHandles)].header.incarnation;
        return;
      case 3:
        ask(handle, net::AbortRequest{CallNumber{script_.u8()}, ErrorCode::kTimeout, "no"});
        return;
      default:
        ask(handle, net::PollRequest{std::numeric_limits<uint64_t>::max(), 1, kLeast});
    }
  }

  void pass(Nanos span) {
    now_ = now_ + span;
    if (directory_.next_deadline() <= now_) tick();
  }
  void tick() {
    directory_.tick(now_);
    if (directory_.next_deadline() <= now_) broken("it would never sleep");
  }

  void check() {
    std::string trouble = testing::Invariants(directory_).broken();
    if (!trouble.empty()) broken(trouble);
    directory_.take_woken();
  }

  void everyone_goes() {
    for (int i = 0; i < 1'000; ++i) {
      if (directory_.next_deadline() == kForever) break;
      now_ = std::max(now_, directory_.next_deadline());
      tick();
      check();
    }
    if (directory_.next_deadline() != kForever) broken("it never comes to rest");
    if (directory_.clients() != 0) broken("a client is left");
    if (directory_.assignments() != 0) broken("an assignment is left");
    if (directory_.contents() != 0) broken("a content is left");
    if (!directory_.groups().empty()) broken("a group is left");
    if (!directory_.all_offloads().empty()) broken("an offload is left");
    if (directory_.rewound_models() != 0) broken("a model is left");
  }

  void broken(const std::string& what) const {
    std::fprintf(stderr, "directory at %lld ns: %s\n", static_cast<long long>(now_.count),
                 what.c_str());
    WL_ASSERT(!"an invariant of the directory");
  }

  Script script_;
  ServerObserver silent_;
  Nanos now_ = seconds(100);
  Directory directory_;
  uint64_t next_incarnation_ = 1;
  net::OffloadEvent asked_;
  std::array<Handle, kHandles> handles_;
};

}  // namespace
}  // namespace weightlane::ros

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weightlane::fuzz::Script script(data, size);
  const bool pipelining = script.pick(4) != 0;
  weightlane::ros::Play(script, pipelining).run();
  return 0;
}
