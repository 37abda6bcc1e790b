// The same-host plane on memory of both kinds: shared (copied out of a mapping) and plain
// (process_vm_readv, here of the test's own process).
#include <unistd.h>

#include "prod/process_identity.h"
#include "prod/same_host_plane.h"
#include "tests/conformance/prod_world.h"

namespace weightlane::conformance {
namespace {

// A socket that takes connections and answers nothing, named as this process's own.
class Silence {
 public:
  Silence() : name_("weightlane-silence-" + std::to_string(getpid())) {
    Result<prod::FileDescriptor> listening = prod::listen_abstract(name_);
    WL_ASSERT(listening.ok());
    listening_ = std::move(*listening);
  }
  std::string endpoint() const {
    const uint64_t started = prod::process_start_time(getpid()).value_or(0);
    return prod::boot_id() + "/" + std::to_string(getpid()) + "/" + std::to_string(started) + "/" +
           name_ + "/00";
  }

 private:
  std::string name_;
  prod::FileDescriptor listening_;
};

Factory same_host(std::string name, bool shared) {
  Factory factory;
  factory.name = std::move(name);
  factory.make = [shared] {
    static const Silence silence;
    const auto make = [](prod::EventLoop& loop,
                         prod::SharedArenas& arenas) -> std::unique_ptr<net::DataPlane> {
      prod::SameHostOptions options;
      options.arenas = &arenas;
      Result<std::unique_ptr<prod::SameHostPlane>> plane =
          prod::SameHostPlane::create(loop, options);
      WL_ASSERT(plane.ok());
      return std::move(*plane);
    };
    const std::string nobody = prod::boot_id() + "/1/1/weightlane-nobody/00";
    return std::make_unique<ProdWorld>(make, nobody, silence.endpoint(), shared);
  };
  return factory;
}

}  // namespace

std::vector<Factory> factories() {
  return {same_host("PlainMemory", false), same_host("SharedMemory", true)};
}

}  // namespace weightlane::conformance
