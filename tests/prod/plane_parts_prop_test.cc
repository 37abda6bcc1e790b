// Goal: the parts the planes are made of, over random inputs: a checksum doesn't depend on how
// bytes are cut, a streaming copy copies and touches nothing else, completions keep the order and
// the manners of C2 whatever order threads end in, endpoint texts survive a round trip. Method:
// RapidCheck against plain models.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>

#include "prod/checksum.h"
#include "prod/copy.h"
#include "prod/read_queue.h"
#include "prod/same_host_plane.h"
#include "prod/tcp_plane.h"

namespace weightlane::prod {
namespace {

std::vector<uint8_t> bytes_of(size_t count, uint32_t seed) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(seed >> 24);
  }
  return bytes;
}

// Bit by bit, as the polynomial is written.
uint64_t plain_crc32c(const std::vector<uint8_t>& bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

RC_GTEST_PROP(Checksum, DoesNotDependOnTheCuts, ()) {
  const auto size = *rc::gen::inRange<size_t>(0, 5000);
  const std::vector<uint8_t> bytes = bytes_of(size, *rc::gen::arbitrary<uint32_t>());
  Checksum sum;
  size_t at = 0;
  while (at < size) {
    const auto piece = *rc::gen::inRange<size_t>(1, size - at + 1);
    sum.add(std::span(bytes).subspan(at, piece));
    at += piece;
  }
  RC_ASSERT(sum.value() == plain_crc32c(bytes));
}

RC_GTEST_PROP(CopyStreaming, CopiesAllAndNothingElse, ()) {
  const auto size = *rc::gen::inRange<size_t>(0, 100'000);
  const auto from_offset = *rc::gen::inRange<size_t>(0, 100);
  const auto into_offset = *rc::gen::inRange<size_t>(0, 100);
  const bool summed = *rc::gen::arbitrary<bool>();
  const std::vector<uint8_t> from = bytes_of(size + from_offset, 3);
  std::vector<uint8_t> into(size + into_offset + 100, 0xcc);
  const std::span<const uint8_t> source = std::span(from).subspan(from_offset);
  std::vector<uint8_t> expected = into;
  std::copy(source.begin(), source.end(), expected.begin() + static_cast<ptrdiff_t>(into_offset));
  if (summed) {
    Checksum sum;
    copy_streaming_summed(into.data() + into_offset, source, sum);
    RC_ASSERT(sum.value() == checksum_of(source));
  } else {
    copy_streaming(into.data() + into_offset, source);
  }
  RC_ASSERT(into == expected);
}

flow::Task<bool> yield_task(flow::Runtime* runtime) {
  co_await runtime->sleep_for(nanos(1));
  co_return true;
}

RC_GTEST_PROP(ReadQueue, KeepsTheOrderOfPostingAndFlushesAfterTheFirstError, ()) {
  EventLoop loop;
  SharedArenas arenas;
  MemoryRegistry registry(loop, &arenas);
  std::vector<uint8_t> memory(4096);
  net::MemoryRange range;
  range.address = reinterpret_cast<uint64_t>(memory.data());
  range.length = memory.size();
  const net::RegionId region = *registry.add(range);
  net::Capabilities capabilities;
  capabilities.max_outstanding_reads = 8;
  capabilities.max_read_bytes = 1000;
  flow::Signal wake(loop.runtime());
  auto queue = std::make_shared<ReadQueue>(loop, &wake, capabilities);

  const auto count = *rc::gen::inRange<uint64_t>(1, 9);
  std::vector<std::unique_ptr<PendingRead>> pending;
  std::vector<bool> fails;
  for (uint64_t i = 0; i < count; ++i) {
    net::ReadWork work;
    work.work_id = i;
    work.into = region;
    work.length = 8;
    std::unique_ptr<PendingRead> read;
    RC_ASSERT(queue->post(registry, nullptr, work, read) == net::PostResult::kPosted);
    pending.push_back(std::move(read));
    fails.push_back(*rc::gen::weightedElement<bool>({{4, false}, {1, true}}));
  }
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  for (size_t i = count - 1; i > 0; --i) {
    std::swap(order[i], order[*rc::gen::inRange<size_t>(0, i + 1)]);
  }
  uint64_t next = 0;
  bool flushing = false;
  for (const size_t which : order) {
    queue->finish(std::move(pending[which]), fails[which] ? net::CompletionStatus::kRemoteAccess
                                                          : net::CompletionStatus::kSuccess);
    while (const std::optional<net::Completion> completion = queue->poll()) {
      RC_ASSERT(completion->work_id == next);
      const auto expected = flushing      ? net::CompletionStatus::kFlushed
                            : fails[next] ? net::CompletionStatus::kRemoteAccess
                                          : net::CompletionStatus::kSuccess;
      RC_ASSERT(completion->status == expected);
      flushing = flushing || fails[next];
      ++next;
    }
  }
  RC_ASSERT(next == count);
  RC_ASSERT(queue->broken() == flushing);
  queue->close();
  loop.run(yield_task(&loop.runtime()));
  const Result<Done> drained = loop.run(ReadQueue::drained(queue, "test", kForever));
  RC_ASSERT(drained.ok());
}

RC_GTEST_PROP(Endpoints, SurviveARoundTrip, ()) {
  SameHostEndpoint same_host;
  same_host.boot = "boot-" + std::to_string(*rc::gen::arbitrary<uint32_t>());
  same_host.pid = *rc::gen::arbitrary<uint64_t>();
  same_host.start_time = *rc::gen::arbitrary<uint64_t>();
  same_host.socket = "name";
  same_host.service = *rc::gen::arbitrary<uint64_t>();
  const Result<SameHostEndpoint> again = SameHostEndpoint::parse(same_host.text());
  RC_ASSERT(again.ok());
  RC_ASSERT(again->text() == same_host.text());
  TcpEndpoint tcp;
  tcp.service = *rc::gen::arbitrary<uint64_t>();
  const auto count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    const bool six = *rc::gen::arbitrary<bool>();
    const auto port = *rc::gen::arbitrary<uint16_t>();
    tcp.addresses.push_back(*TcpAddress::from_host(six ? "fd00::7" : "10.1.2.3", port));
  }
  const Result<TcpEndpoint> parsed = TcpEndpoint::parse(tcp.text());
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed->text() == tcp.text());
}

RC_GTEST_PROP(Endpoints, AnyTextIsAnErrorOrAnEndpointNeverACrash, (const std::string& text)) {
  const Result<TcpEndpoint> tcp = TcpEndpoint::parse(text);
  if (tcp) RC_ASSERT(!tcp->addresses.empty());
  const Result<SameHostEndpoint> same_host = SameHostEndpoint::parse(text);
  if (same_host) RC_ASSERT(!same_host->socket.empty());
}

}  // namespace
}  // namespace weightlane::prod
