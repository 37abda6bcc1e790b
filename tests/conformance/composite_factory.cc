// The composite plane: of same-host and TCP, where same-host is taken; and of TCP alone, as when it
// is forced.
#include "prod/composite_plane.h"
#include "prod/same_host_plane.h"
#include "prod/tcp_plane.h"
#include "tests/conformance/prod_world.h"

namespace weightlane::conformance {
namespace {

Factory composite(std::string name, bool same_host) {
  Factory factory;
  factory.name = std::move(name);
  factory.make = [same_host] {
    const auto make = [same_host](prod::EventLoop& loop, prod::SharedArenas& arenas) {
      auto plane = std::make_unique<prod::CompositePlane>(loop, arenas, prod::CompositeOptions{});
      if (same_host) {
        prod::SameHostOptions options;
        options.arenas = &arenas;
        Result<std::unique_ptr<prod::SameHostPlane>> part =
            prod::SameHostPlane::create(loop, options);
        WL_ASSERT(part.ok());
        plane->add("same-host", std::move(*part));
      }
      prod::TcpOptions options;
      options.host = "127.0.0.1";
      plane->add("tcp", std::make_unique<prod::TcpPlane>(loop, options));
      return plane;
    };
    return std::make_unique<ProdWorld>(make, "tcp=127.0.0.1:1/00", "tcp=192.0.2.1:7000/00", false);
  };
  return factory;
}

}  // namespace

std::vector<Factory> factories() {
  return {composite("SameHostAndTcp", true), composite("TcpForced", false)};
}

}  // namespace weightlane::conformance
