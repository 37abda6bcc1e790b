// The source is a child made by fork() before this process has threads; it ends with its pipe.
#include "prod/bench_parts.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

namespace weightlane::prod {

void Unmap::operator()(uint8_t* data) const { munmap(data, bytes); }

BenchMemory allocate_bench_memory(uint64_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return BenchMemory();
  madvise(data, bytes, MADV_HUGEPAGE);
  return BenchMemory(static_cast<uint8_t*>(data), Unmap{bytes});
}

void fill_bench_memory(uint8_t* data, uint64_t bytes, uint64_t seed) {
  uint64_t value = seed;
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    value = value * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(data + at, &value, 8);
  }
}

net::MemoryRange memory_range(const uint8_t* data, uint64_t bytes) {
  net::MemoryRange range;
  range.address = reinterpret_cast<uint64_t>(data);
  range.length = bytes;
  return range;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

net::AcceptDecision BenchAcceptor::on_connect(std::span<const uint8_t> hello,
                                              std::unique_ptr<net::PassiveQueuePair> pair) {
  if (hello.size() != 1 || hello[0] >= regions_.size())
    return Error{ErrorCode::kInvalidArgument, "no such region here"};
  const net::RemoteRegion region = pair->describe(regions_[hello[0]]);
  Bytes payload(sizeof region);
  std::memcpy(payload.data(), &region, sizeof region);
  pairs_.push_back(std::move(pair));
  return net::Accept{std::move(payload)};
}

flow::Task<Result<Done>> connect_bench_link(EventLoop* loop, net::DataPlane* plane,
                                            std::string endpoint, uint8_t region, BenchLink* link) {
  const Nanos deadline = loop->runtime().now() + kBenchPatience;
  Result<net::Connected> connected =
      co_await plane->connect(std::move(endpoint), Bytes{region}, &link->wake, deadline);
  if (!connected) co_return connected.error();
  if (connected->payload.size() != sizeof link->remote)
    co_return Error{ErrorCode::kCorrupt, "the source described no region"};
  std::memcpy(&link->remote, connected->payload.data(), sizeof link->remote);
  link->pair = std::move(connected->pair);
  co_return Done{};
}

flow::Task<Result<double>> read_all(EventLoop* loop, BenchLink* link, BenchTransfer transfer) {
  const auto begin = std::chrono::steady_clock::now();
  uint64_t posted = 0;
  uint64_t in_flight = 0;
  net::ReadWork work;
  work.into = transfer.into;
  work.from = link->remote;
  work.want_checksum = transfer.checksums;
  while (posted < transfer.bytes || in_flight > 0) {
    while (posted < transfer.bytes && in_flight < transfer.depth) {
      work.work_id = posted;
      work.into_offset = work.from_offset = posted;
      work.length = std::min(transfer.slice_bytes, transfer.bytes - posted);
      if (link->pair->post_read(work) != net::PostResult::kPosted)
        co_return Error{ErrorCode::kUnreachable, "a READ was refused"};
      posted += work.length;
      ++in_flight;
    }
    const std::optional<net::Completion> completion = link->pair->poll();
    if (!completion) {
      const Nanos deadline = loop->runtime().now() + kBenchPatience;
      const bool woken = co_await link->wake.wait_until(deadline);
      if (!woken) co_return Error{ErrorCode::kTimeout, "no READ completes"};
      continue;
    }
    if (completion->status != net::CompletionStatus::kSuccess)
      co_return Error{ErrorCode::kUnreachable, net::completion_status_name(completion->status)};
    --in_flight;
  }
  co_return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Result<std::unique_ptr<BenchSource>> BenchSource::fork(const std::function<void(int)>& be_source) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Error{ErrorCode::kResourceExhausted, "no socket pair for the source's process"};
  FileDescriptor ours(ends[0]);
  FileDescriptor theirs(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return Error{ErrorCode::kResourceExhausted, "no process for the source"};
  if (pid == 0) {
    ours.reset();
    be_source(theirs.get());
    _exit(1);
  }
  return std::make_unique<BenchSource>(pid, std::move(ours));
}

BenchSource::~BenchSource() {
  control_.reset();
  waitpid(pid_, nullptr, 0);
}

void serve_until_closed(EventLoop& loop, int control) {
  const std::unique_ptr<FdWatch> watch = loop.watch(control, [&loop, control](FdReady now) {
    char ignored = 0;
    if (now.readable && recv(control, &ignored, 1, MSG_DONTWAIT) == 0) loop.stop();
  });
  loop.run();
  _exit(0);
}

}  // namespace weightlane::prod
