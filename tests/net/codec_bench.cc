// What a message costs on its way to the wire and back: the simulator encodes every message in a
// part of its seeds, and the server each one.
#include <benchmark/benchmark.h>

#include "net/codec.h"

namespace weightlane::net {
namespace {

Request poll() { return {{Incarnation{0x1234567890abcdef}, 1, 77}, PollRequest{5, 1 << 30, {}}}; }

Response assigned() {
  AssignedEvent event;
  event.content = {Generation{1}, VersionId{12}, ContentId{0xfeedfacecafebeef}};
  event.source = {"trainer-0", Incarnation{99}, "tcp:10.0.0.7:31234", "f3a0c1", true};
  return {BootId{4}, EventsResponse{{Event{3, event}}}};
}

void encode_poll(benchmark::State& state) {
  const Request request = poll();
  for (auto _ : state) benchmark::DoNotOptimize(encode(request));
}
void decode_poll(benchmark::State& state) {
  const Bytes bytes = encode(poll());
  for (auto _ : state) benchmark::DoNotOptimize(decode_request(bytes));
}
void encode_assigned(benchmark::State& state) {
  const Response response = assigned();
  for (auto _ : state) benchmark::DoNotOptimize(encode(response));
}
void decode_assigned(benchmark::State& state) {
  const Bytes bytes = encode(assigned());
  for (auto _ : state) benchmark::DoNotOptimize(decode_response(bytes));
}

BENCHMARK(encode_poll);
BENCHMARK(decode_poll);
BENCHMARK(encode_assigned);
BENCHMARK(decode_assigned);

}  // namespace
}  // namespace weightlane::net

BENCHMARK_MAIN();
