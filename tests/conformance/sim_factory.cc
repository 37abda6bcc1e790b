// The simulator's plane in worlds without faults. Its memory is symbolic, so here a granule is one
// byte and its tag is that byte. Several ready orders and seeds. Only with fences: a simulated plane
// without them goes on serving for some milliseconds after its end was dropped, which is nastier
// than C5 and is for the protocol to survive.
#include "flow/task_set.h"
#include "sim/data_plane.h"
#include "sim/world.h"
#include "tests/conformance/conformance.h"

namespace weightlane::conformance {
namespace {

class SimHost final : public Host {
 public:
  explicit SimHost(sim::Host& host) : host_(host) {}
  flow::Runtime& runtime() override { return host_; }
  net::DataPlane& plane() override { return host_.data(); }
  net::MemoryRange allocate(uint64_t bytes) override {
    net::MemoryRange range;
    range.address = host_.memory().allocate(bytes);
    range.length = bytes;
    return range;
  }
  void free_memory(net::MemoryRange range) override { host_.memory().free(range.address); }
  void write(net::MemoryRange range, uint64_t offset, std::span<const uint8_t> bytes) override {
    if (bytes.empty()) return;
    const std::vector<uint64_t> tags(bytes.begin(), bytes.end());
    host_.memory().write(range.address + offset, tags);
  }
  Bytes read(net::MemoryRange range, uint64_t offset, uint64_t length) override {
    Bytes bytes(length);
    const sim::Memory& memory = host_.memory();
    const sim::Memory::Range& inside = memory.range(memory.find(range.address, range.length));
    const uint64_t first = range.address - inside.address + offset;
    for (uint64_t i = 0; i < length; ++i) bytes[i] = static_cast<uint8_t>(inside.tags[first + i]);
    return bytes;
  }

 private:
  sim::Host& host_;
};

class SimWorld final : public World {
 public:
  SimWorld(const sim::WorldConfig& config, uint64_t seed)
      : choices_(seed), world_(config, choices_) {
    for (sim::Host* host : {&source_host_, &reader_host_, &silent_host_}) {
      host->start(wait(host), "process");
    }
    silent_host_.crash(sim::CrashKind::kMachine);
  }
  ~SimWorld() override { world_.end(); }

  Host& source() override { return source_; }
  Host& reader() override { return reader_; }
  bool run(flow::Task<void> task, Nanos limit) override {
    bool done = false;
    flow::TaskSet tasks(reader_host_);
    tasks.spawn(finish(std::move(task), &done), "test");
    world_.run_until(world_.now() + limit, ~0ull, [&done] { return done; });
    return done;
  }
  std::string refused_endpoint() override { return "sim/1/99999"; }
  std::string silent_endpoint() override { return "sim/3/1"; }

 private:
  static flow::Task<void> wait(sim::Host* host) { co_await host->sleep_until(kForever); }
  static flow::Task<void> finish(flow::Task<void> task, bool* done) {
    co_await std::move(task);
    *done = true;
  }

  sim::ChoiceSource choices_;
  sim::World world_;
  sim::Host& source_host_ = world_.add_host({.name = "source"});
  sim::Host& reader_host_ = world_.add_host({.name = "reader"});
  sim::Host& silent_host_ = world_.add_host({.name = "silent"});
  SimHost source_{source_host_};
  SimHost reader_{reader_host_};
};

Factory simulated(std::string name, sim::ReadyOrder order, uint64_t seed) {
  Factory factory;
  factory.name = std::move(name);
  factory.sparse_memory = false;  // eight bytes a byte
  factory.memory_limit_bytes = 256ull << 20;
  factory.make = [order, seed] {
    sim::WorldConfig config;
    config.order = order;
    config.data.granule_bytes = 1;
    config.data.registration = {micros(1), micros(100)};
    return std::make_unique<SimWorld>(config, seed);
  };
  return factory;
}

}  // namespace

std::vector<Factory> factories() {
  // Two are enough: a byte costs eight here, and the suite moves many.
  return {simulated("SimRandom", sim::ReadyOrder::kRandom, 2),
          simulated("SimStarveOne", sim::ReadyOrder::kStarveOne, 3)};
}

}  // namespace weightlane::conformance
