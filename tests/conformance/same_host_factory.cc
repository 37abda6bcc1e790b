// The same-host plane on memory of both kinds: shared (copied out of a mapping) and plain
// (process_vm_readv, here of the test's own process).
#include "prod/process_identity.h"
#include "prod/same_host_plane.h"
#include "tests/conformance/prod_world.h"

namespace weightlane::conformance {
namespace {

// The arenas outlive the world.
struct SharedWorld final : World {
  explicit SharedWorld(bool shared) {
    prod::SameHostOptions options;
    options.arenas = &arenas;
    const auto make = [options](prod::EventLoop& loop) -> std::unique_ptr<net::DataPlane> {
      Result<std::unique_ptr<prod::SameHostPlane>> plane =
          prod::SameHostPlane::create(loop, options);
      WL_ASSERT(plane.ok());
      return std::move(*plane);
    };
    const std::string nobody = prod::boot_id() + "/1/1/weightlane-nobody/00";
    world = std::make_unique<ProdWorld>(make, nobody, "", shared ? &arenas : nullptr);
  }
  Host& source() override { return world->source(); }
  Host& reader() override { return world->reader(); }
  bool run(flow::Task<void> task, Nanos limit) override {
    return world->run(std::move(task), limit);
  }
  std::string refused_endpoint() override { return world->refused_endpoint(); }
  std::string silent_endpoint() override { return world->silent_endpoint(); }

  prod::SharedArenas arenas;
  std::unique_ptr<ProdWorld> world;
};

Factory same_host(std::string name, bool shared) {
  Factory factory;
  factory.name = std::move(name);
  factory.make = [shared] { return std::make_unique<SharedWorld>(shared); };
  return factory;
}

}  // namespace

std::vector<Factory> factories() {
  return {same_host("PlainMemory", false), same_host("SharedMemory", true)};
}

}  // namespace weightlane::conformance
