// Addresses of the TCP plane, numeric only, so that reading one never waits for a name server:
// "10.0.0.1:7000", "[::1]:7000", "[fe80::1%eth0]:7000" (FIELD 27).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.h"

namespace weightlane::prod {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // kInvalidArgument, with an example of what would be right. A v4-mapped address becomes IPv4.
  static Result<TcpAddress> parse(std::string_view text);
  // "10.0.0.1", "::1", "fe80::1%eth0" and a port.
  static Result<TcpAddress> from_host(std::string host, uint16_t port);
  static TcpAddress from_sockaddr(const sockaddr* address, socklen_t length);

  std::string text() const;
  uint16_t port() const;
  void set_port(uint16_t port);
  int family() const { return storage.ss_family; }
  bool is_wildcard() const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// The addresses of this machine's interfaces that others may reach: not loopback, not link-local.
// At most `limit`; port 0.
std::vector<TcpAddress> interface_addresses(size_t limit);

}  // namespace weightlane::prod
