// The TCP plane on loopback: with one stream, with several, and over IPv6 alone (FIELD 27).
#include "prod/tcp_plane.h"
#include "tests/conformance/prod_world.h"

namespace weightlane::conformance {
namespace {

Factory tcp(std::string name, std::string host, unsigned streams) {
  const bool ipv6 = host.find(':') != std::string::npos;
  Factory factory;
  factory.name = std::move(name);
  factory.make = [host, streams, ipv6] {
    prod::TcpOptions options;
    options.host = host;
    options.streams = streams;
    const auto make = [options](prod::EventLoop& loop, prod::SharedArenas&) {
      return std::make_unique<prod::TcpPlane>(loop, options);
    };
    // Port 1 is nobody's; 192.0.2.0/24 and 2001:db8::/32 are for documentation, and answer nothing.
    const std::string refused = (ipv6 ? "[::1]" : "127.0.0.1") + std::string(":1/00");
    const std::string silent = (ipv6 ? "[2001:db8::1]" : "192.0.2.1") + std::string(":7000/00");
    return std::make_unique<ProdWorld>(make, refused, silent, false);
  };
  return factory;
}

}  // namespace

std::vector<Factory> factories() {
  return {tcp("Tcp2Streams", "127.0.0.1", 2), tcp("Tcp1Stream", "127.0.0.1", 1),
          tcp("TcpIpv6", "::1", 3)};
}

}  // namespace weightlane::conformance
