// Verbs: two planes on one loop, each with its own device context, over real kernel verbs. Made to
// run in the Soft-RoCE guest (tests/rxe/guest): rxe0 alone, or rxe0 and rxe1 with the devices named
// in WL_SOURCE_DEVICE and WL_READER_DEVICE.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "flow/combinators.h"
#include "prod/event_loop.h"
#include "prod/verbs_plane.h"
#include "tests/conformance/conformance.h"

namespace weightlane::conformance {
namespace {

class VerbsHost final : public Host {
 public:
  VerbsHost(prod::EventLoop& loop, const char* variable) : loop_(loop) {
    prod::VerbsOptions options;
    const char* const device = std::getenv(variable);
    options.device = device != nullptr ? device : "rxe0";
    Result<std::unique_ptr<prod::VerbsPlane>> plane = prod::VerbsPlane::open(loop, options);
    if (!plane.ok()) {
      std::fprintf(stderr, "%s; run this by tests/rxe/guest\n", plane.error().message.c_str());
      std::exit(77);
    }
    plane_ = std::move(*plane);
  }
  flow::Runtime& runtime() override { return loop_.runtime(); }
  net::DataPlane& plane() override { return *plane_; }
  std::string address() const { return plane_->device().ip_address(); }

  net::MemoryRange allocate(uint64_t bytes) override {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    WL_ASSERT(memory != MAP_FAILED);
    return {.address = reinterpret_cast<uint64_t>(memory), .length = bytes};
  }
  void free_memory(net::MemoryRange range) override { munmap(pointer(range, 0), range.length); }
  void write(net::MemoryRange range, uint64_t offset, std::span<const uint8_t> bytes) override {
    std::memcpy(pointer(range, offset), bytes.data(), bytes.size());
  }
  Bytes read(net::MemoryRange range, uint64_t offset, uint64_t length) override {
    Bytes bytes(length);
    std::memcpy(bytes.data(), pointer(range, offset), length);
    return bytes;
  }

 private:
  static void* pointer(net::MemoryRange range, uint64_t offset) {
    return reinterpret_cast<void*>(range.address + offset);
  }

  prod::EventLoop& loop_;
  std::unique_ptr<prod::VerbsPlane> plane_;
};

class VerbsWorld final : public World {
 public:
  Host& source() override { return source_; }
  Host& reader() override { return reader_; }
  bool run(flow::Task<void> task, Nanos limit) override {
    flow::Runtime& runtime = loop_.runtime();
    return loop_.run(flow::with_timeout(runtime, runtime.now() + limit, std::move(task)));
  }
  // The discard service's port: nobody listens there in the guest.
  std::string refused_endpoint() override { return "verbs://" + source_.address() + ":9/1"; }
  // In the network of the guest's device, and no such host: packets vanish.
  std::string silent_endpoint() override { return "verbs://10.0.0.77:7000/1"; }

 private:
  prod::EventLoop loop_;
  VerbsHost source_{loop_, "WL_SOURCE_DEVICE"};
  VerbsHost reader_{loop_, "WL_READER_DEVICE"};
};

}  // namespace

std::vector<Factory> factories() {
  Factory factory;
  factory.name = "verbs";
  factory.memory_limit_bytes = 256ull << 20;
  factory.sparse_memory = false;  // registering pins every page
  factory.make = [] { return std::make_unique<VerbsWorld>(); };
  return {factory};
}

}  // namespace weightlane::conformance
