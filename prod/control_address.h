// Addresses of the control plane as people write them, and sockets made from them.
//
//     host:port  1.2.3.4:port  [::1]:port  [fe80::1%eth0]:port  [::ffff:1.2.3.4]:port  unix:/path
//
// An IPv6 address without brackets is refused with the right spelling, never guessed at: it would
// be read as host and port somewhere (Mooncake #470).
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flow/result.h"
#include "prod/file_descriptor.h"

namespace weightlane::prod {

struct ControlAddress {
  std::string host;   // a name or a numeric address without brackets; empty for Unix
  uint16_t port = 0;  // 0 to listen: any free one
  std::string path;   // Unix sockets only
  bool is_unix() const { return !path.empty(); }
};

// kInvalidArgument, one line that says what would be right.
Result<ControlAddress> parse_control_address(const std::string& text);

struct SocketName {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::string text() const;  // "1.2.3.4:7000", "[::1]:7000", "unix:/path"
};

// Where `address` may be reached, in the order to try. Blocks on the name service unless it is
// numeric or Unix. kUnreachable.
Result<std::vector<SocketName>> resolve(const ControlAddress& address, bool to_listen);
// Whether resolve() would not block.
bool is_numeric(const ControlAddress& address);

struct Listener {
  FileDescriptor socket;  // non-blocking
  SocketName name;        // as bound: port 0 has become a real one
};
// kInvalidArgument, kResourceExhausted ("port 7000 is in use"). A Unix path left behind by a dead
// process is taken over.
Result<Listener> listen_on(const std::string& text);

}  // namespace weightlane::prod
