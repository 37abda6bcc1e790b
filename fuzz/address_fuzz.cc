// Addresses: what people write on a command line, and the endpoints that a server passes from one
// worker to another, which are as hostile as that worker.
//
// What parses must print to what parses to the same, and mean nothing that the text does not say
// (Mooncake #470: IPv6 cut at the wrong colon).
#include <string>

#include "fuzz/target.h"
#include "prod/control_address.h"
#include "prod/same_host_plane.h"
#include "prod/tcp_plane.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane;
  using namespace weightlane::prod;
  const std::string text(data, data + size);
  if (const Result<TcpEndpoint> endpoint = TcpEndpoint::parse(text)) {
    WL_ASSERT(text.find('\0') == std::string::npos);
    const Result<TcpEndpoint> again = TcpEndpoint::parse(endpoint->text());
    WL_ASSERT(again.ok());
    WL_ASSERT(again->text() == endpoint->text());
    WL_ASSERT(again->service == endpoint->service);
    WL_ASSERT(again->addresses.size() == endpoint->addresses.size());
  }
  if (const Result<SameHostEndpoint> endpoint = SameHostEndpoint::parse(text)) {
    const Result<SameHostEndpoint> again = SameHostEndpoint::parse(endpoint->text());
    WL_ASSERT(again.ok());
    WL_ASSERT(again->text() == endpoint->text());
  }
  if (const Result<ControlAddress> address = parse_control_address(text)) {
    WL_ASSERT(text.find('\0') == std::string::npos);
    WL_ASSERT(address->is_unix() || !address->host.empty());
    // The rest may ask a name server.
    if (is_numeric(*address)) {
      const Result<std::vector<SocketName>> names = resolve(*address, false);
      if (names.ok()) WL_ASSERT(!names->empty());
    }
  }
  return 0;
}
