// How fast one reader of the verbs plane reads from one source, to stand beside ib_read_bw -e in
// the same guest: same message size, same depth, completions by event. Source and reader are two
// processes, as ib_read_bw's are. Prints one figure, in ib_read_bw's unit (2^20 bytes a second);
// tests/rxe/bench takes the two in turns.
//   verbs_bench SIZE DEPTH COUNT [READER-DEVICE [SOURCE-DEVICE]]
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/rxe/verbs_peer.h"

namespace weightlane::rxe {
namespace {

struct Load {
  uint64_t size = 0;   // bytes a READ
  uint64_t depth = 0;  // READs posted at once
  uint64_t count = 0;  // READs in all
};

// Nothing when a READ failed.
flow::Task<bool> read_all(const Reading* reading, net::RegionId into, flow::Signal* wake,
                          Load load) {
  uint64_t posted = 0;
  for (uint64_t done = 0; done < load.count; ++done) {
    while (posted < load.count && posted - done < load.depth) {
      net::ReadWork work;
      work.work_id = posted;
      work.into = into;
      work.into_offset = work.from_offset = posted % load.depth * load.size;
      work.from = reading->region;
      work.length = load.size;
      if (reading->pair->post_read(work) != net::PostResult::kPosted) co_return false;
      ++posted;
    }
    const std::optional<net::Completion> completion =
        co_await next(reading->pair.get(), wake, kForever);
    if (!completion.has_value() || completion->status != net::CompletionStatus::kSuccess)
      co_return false;
  }
  co_return true;
}

int run(Load load, const char* reader_device, const char* source_device) {
  const uint64_t bytes = load.size * load.depth;
  Result<Peer> peer = Peer::start(source_device, bytes);
  prod::EventLoop loop;
  prod::VerbsOptions options;
  options.device = reader_device;
  Result<std::unique_ptr<prod::VerbsPlane>> plane = prod::VerbsPlane::open(loop, options);
  if (!peer.ok() || !plane.ok()) {
    std::fprintf(stderr, "verbs_bench: %s\n",
                 (peer.ok() ? plane.error() : peer.error()).message.c_str());
    return 1;
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Result<net::RegionId> region = loop.run(
      (*plane)->register_memory({.address = reinterpret_cast<uint64_t>(memory), .length = bytes}));
  flow::Signal wake(loop.runtime());
  Result<Reading> reading =
      loop.run(connect(plane->get(), peer->endpoint(), &wake, loop.runtime().now() + seconds(5)));
  if (!region.ok() || !reading.ok()) {
    std::fprintf(stderr, "verbs_bench: %s\n",
                 (region.ok() ? reading.error() : region.error()).message.c_str());
    return 1;
  }
  const Nanos start = loop.runtime().now();
  const bool good = loop.run(read_all(&*reading, *region, &wake, load));
  const double took = to_seconds(loop.runtime().now() - start);
  Result<Done> destroyed = loop.run(reading->pair->destroy(loop.runtime().now() + seconds(5)));
  if (!good || !destroyed.ok()) {
    std::fprintf(stderr, "verbs_bench: a READ failed\n");
    return 1;
  }
  std::printf("%.2f\n", static_cast<double>(load.size * load.count) / took / (1 << 20));
  return 0;
}

}  // namespace
}  // namespace weightlane::rxe

int main(int argc, char** argv) {
  using weightlane::rxe::Load;
  if (argc == 4 && std::strcmp(argv[1], "--peer") == 0) {
    return weightlane::rxe::run_peer(argv[2], std::strtoull(argv[3], nullptr, 10));
  }
  if (argc < 4) {
    std::fprintf(stderr, "verbs_bench SIZE DEPTH COUNT [READER-DEVICE [SOURCE-DEVICE]]\n");
    return 2;
  }
  const Load load{.size = std::strtoull(argv[1], nullptr, 10),
                  .depth = std::strtoull(argv[2], nullptr, 10),
                  .count = std::strtoull(argv[3], nullptr, 10)};
  const char* const reader = argc > 4 ? argv[4] : "rxe0";
  return weightlane::rxe::run(load, reader, argc > 5 ? argv[5] : reader);
}
