// What the loop costs: a yield, a sleep that is due at once, a helper's round trip, a call over
// Cap'n Proto RPC on loopback with one and with many in flight. The server of the calls runs in a
// thread of its own, as in life; "one loop" has both in one thread.
#include <benchmark/benchmark.h>

#include <future>
#include <thread>

#include "flow/task_set.h"
#include "prod/event_loop.h"
#include "prod/rpc.h"

namespace weightlane::prod {
namespace {

using flow::Task;

Task<int> yield_times(flow::Runtime* runtime, int times) {
  for (int i = 0; i < times; ++i) co_await runtime->yield();
  co_return times;
}
void yields(benchmark::State& state) {
  EventLoop loop;
  for (auto _ : state) loop.run(yield_times(&loop.runtime(), 10'000));
  state.SetItemsProcessed(state.iterations() * 10'000);
}

Task<int> sleep_times(flow::Runtime* runtime, int times, Nanos span) {
  for (int i = 0; i < times; ++i) co_await runtime->sleep_for(span);
  co_return times;
}
void sleeps_of_no_time(benchmark::State& state) {
  EventLoop loop;
  for (auto _ : state) loop.run(sleep_times(&loop.runtime(), 10'000, nanos(0)));
  state.SetItemsProcessed(state.iterations() * 10'000);
}
// How late a sleep of 100 us wakes, as the time of an iteration.
void sleeps_of_100_us(benchmark::State& state) {
  EventLoop loop;
  for (auto _ : state) loop.run(sleep_times(&loop.runtime(), 1, micros(100)));
}

Task<int> ask_helper(EventLoop* loop) {
  const int answer = co_await loop->run_on_helper<int>([] { return 1; });
  co_return answer;
}
void helper_round_trips(benchmark::State& state) {
  EventLoop loop;
  for (auto _ : state) loop.run(ask_helper(&loop));
  state.SetItemsProcessed(state.iterations());
}

class Accepting final : public net::RequestHandler {
 public:
  Task<net::Response> handle(net::Request) override { return answer(); }

 private:
  static Task<net::Response> answer() {
    co_return net::Response{BootId{1}, net::AcceptedResponse{}};
  }
};

class ServerThread {
 public:
  ServerThread() {
    std::promise<std::pair<EventLoop*, std::string>> started;
    auto result = started.get_future();
    thread_ = std::thread([&started] {
      Log log({});
      EventLoop loop;
      Accepting handler;
      RpcControlPlane plane(&loop, &log);
      auto serving = plane.serve("127.0.0.1:0", &handler).value();
      started.set_value({&loop, serving->address()});
      loop.run();
    });
    std::tie(loop_, address_) = result.get();
  }
  ~ServerThread() {
    loop_->stop();
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  EventLoop* loop_ = nullptr;
  std::string address_;
  std::thread thread_;
};

Task<void> calls_in_a_row(net::Connection* connection, int count) {
  for (int i = 0; i < count; ++i) {
    net::Request request{{Incarnation{1}, 1, 1}, net::PollRequest{}};
    const net::CallOutcome outcome = co_await connection->call(std::move(request), kForever);
    WL_ASSERT(std::holds_alternative<net::Response>(outcome));
  }
}
Task<int> calls_beside_each_other(flow::Runtime* runtime, net::Connection* connection,
                                  int in_flight, int each) {
  flow::TaskSet tasks(*runtime);
  for (int i = 0; i < in_flight; ++i) tasks.spawn(calls_in_a_row(connection, each), "calls");
  co_await tasks.drain();
  co_return in_flight* each;
}
void measure_calls(benchmark::State& state, EventLoop& loop, const std::string& address) {
  Log log({});
  RpcControlPlane plane(&loop, &log);
  auto connection = loop.run(plane.connect(address, kForever)).value();
  const int in_flight = static_cast<int>(state.range(0));
  const int each = in_flight == 1 ? 2'000 : 100;
  int64_t calls = 0;
  for (auto _ : state) {
    calls += loop.run(calls_beside_each_other(&loop.runtime(), connection.get(), in_flight, each));
  }
  state.SetItemsProcessed(calls);
}
void calls_to_another_thread(benchmark::State& state) {
  ServerThread server;
  EventLoop loop;
  measure_calls(state, loop, server.address());
}
void calls_within_one_loop(benchmark::State& state) {
  Log log({});
  EventLoop loop;
  Accepting handler;
  RpcControlPlane plane(&loop, &log);
  auto serving = plane.serve("127.0.0.1:0", &handler).value();
  measure_calls(state, loop, serving->address());
}

BENCHMARK(yields)->UseRealTime();
BENCHMARK(sleeps_of_no_time)->UseRealTime();
BENCHMARK(sleeps_of_100_us)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(helper_round_trips)->UseRealTime();
BENCHMARK(calls_to_another_thread)->Arg(1)->Arg(64)->Arg(512)->UseRealTime();
BENCHMARK(calls_within_one_loop)->Arg(1)->Arg(64)->Arg(512)->UseRealTime();

}  // namespace
}  // namespace weightlane::prod

BENCHMARK_MAIN();
