// Two plane objects on one event loop, with memory of mmap: the worlds of the production planes.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "flow/combinators.h"
#include "prod/event_loop.h"
#include "prod/shared_memory.h"
#include "tests/conformance/conformance.h"

namespace weightlane::conformance {

class ProdHost final : public Host {
 public:
  // With `arenas`, memory comes from there, so that the peer can map it.
  ProdHost(prod::EventLoop& loop, std::unique_ptr<net::DataPlane> plane, prod::SharedArenas* arenas)
      : loop_(loop), plane_(std::move(plane)), arenas_(arenas) {}
  ~ProdHost() override {
    plane_.reset();
    for (const auto& [address, length] : mapped_) munmap(reinterpret_cast<void*>(address), length);
  }

  flow::Runtime& runtime() override { return loop_.runtime(); }
  net::DataPlane& plane() override { return *plane_; }
  net::MemoryRange allocate(uint64_t bytes) override {
    net::MemoryRange range;
    range.length = bytes;
    if (arenas_ != nullptr) {
      Result<prod::SharedMemory> memory = prod::SharedMemory::allocate(*arenas_, bytes);
      WL_ASSERT(memory.ok());
      range.address = reinterpret_cast<uint64_t>(memory->data());
      shared_.emplace(range.address, std::move(*memory));
      return range;
    }
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WL_ASSERT(data != MAP_FAILED);
    range.address = reinterpret_cast<uint64_t>(data);
    mapped_[range.address] = bytes;
    return range;
  }
  void free_memory(net::MemoryRange range) override {
    if (shared_.erase(range.address) != 0) return;
    munmap(reinterpret_cast<void*>(range.address), range.length);
    mapped_.erase(range.address);
  }
  void write(net::MemoryRange range, uint64_t offset, std::span<const uint8_t> bytes) override {
    if (bytes.empty()) return;
    std::memcpy(reinterpret_cast<uint8_t*>(range.address) + offset, bytes.data(), bytes.size());
  }
  Bytes read(net::MemoryRange range, uint64_t offset, uint64_t length) override {
    const auto* data = reinterpret_cast<const uint8_t*>(range.address) + offset;
    return Bytes(data, data + length);
  }

 private:
  prod::EventLoop& loop_;
  std::unique_ptr<net::DataPlane> plane_;
  prod::SharedArenas* arenas_;
  std::map<uint64_t, uint64_t> mapped_;
  std::map<uint64_t, prod::SharedMemory> shared_;
};

// The arenas are shared by both hosts, as they are by the planes of one process.
class ProdWorld final : public World {
 public:
  using MakePlane =
      std::function<std::unique_ptr<net::DataPlane>(prod::EventLoop&, prod::SharedArenas&)>;
  ProdWorld(const MakePlane& make, std::string refused, std::string silent, bool shared_memory)
      : refused_(std::move(refused)),
        silent_(std::move(silent)),
        source_(loop_, make(loop_, arenas_), shared_memory ? &arenas_ : nullptr),
        reader_(loop_, make(loop_, arenas_), shared_memory ? &arenas_ : nullptr) {}

  Host& source() override { return source_; }
  Host& reader() override { return reader_; }
  bool run(flow::Task<void> task, Nanos limit) override {
    const Nanos deadline = deadline_after(loop_.runtime().now(), limit);
    return loop_.run(flow::with_timeout(loop_.runtime(), deadline, std::move(task)));
  }
  std::string refused_endpoint() override { return refused_; }
  std::string silent_endpoint() override { return silent_; }

 private:
  prod::SharedArenas arenas_;
  prod::EventLoop loop_;
  std::string refused_;
  std::string silent_;
  ProdHost source_;
  ProdHost reader_;
};

}  // namespace weightlane::conformance
