// Parsing by hand: there is one bracketed form, one Unix form, and host:port with a single colon.
#include "prod/control_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace weightlane::prod {
namespace {

constexpr int kBacklog = 1024;
constexpr std::string_view kUnixPrefix = "unix:";

Error invalid(const std::string& text, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          "address \"" + text + "\": " + what + " (like host:7000, [::1]:7000 or unix:/path)"};
}

Result<uint16_t> parse_port(std::string_view text) {
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port > 65535) {
    return Error{ErrorCode::kInvalidArgument, "a port is a number from 0 to 65535"};
  }
  return static_cast<uint16_t>(port);
}

Result<SocketName> unix_name(const std::string& path) {
  SocketName name;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kInvalidArgument,
                 "unix:" + path + ": a Unix socket's path has at most 107 bytes"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  std::memcpy(&name.storage, &address, sizeof address);
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return name;
}

FileDescriptor make_socket(int family) {
  return FileDescriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// A socket file on which nobody listens any more: its process died.
bool is_dead_socket(const SocketName& name, const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  const FileDescriptor probe = make_socket(AF_UNIX);
  return probe && connect(probe.get(), name.get(), name.length) != 0 && errno == ECONNREFUSED;
}

Error cannot_listen(const std::string& text, const ControlAddress& address, int error) {
  if (error == EADDRINUSE) {
    const std::string what =
        address.is_unix() ? address.path : "port " + std::to_string(address.port);
    return {ErrorCode::kResourceExhausted, "cannot listen on " + text + ": " + what + " is in use"};
  }
  const bool local = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
  return {local ? ErrorCode::kResourceExhausted : ErrorCode::kInvalidArgument,
          "cannot listen on " + text + ": " + std::strerror(error)};
}

}  // namespace

Result<ControlAddress> parse_control_address(const std::string& text) {
  ControlAddress address;
  const std::string_view view = text;
  // The C library would read up to the first NUL and accept what it finds there.
  if (view.find('\0') != std::string_view::npos) return invalid(text.c_str(), "a NUL behind it");
  if (view.starts_with(kUnixPrefix)) {
    address.path = view.substr(kUnixPrefix.size());
    if (address.path.empty()) return invalid(text, "a path is missing after unix:");
    return address;
  }
  std::string_view port;
  if (view.starts_with("[")) {
    const size_t close = view.find(']');
    if (close == std::string_view::npos) return invalid(text, "a ] is missing");
    address.host = view.substr(1, close - 1);
    if (address.host.find(':') == std::string::npos) {
      return invalid(text, "brackets are for IPv6 addresses");
    }
    const std::string_view rest = view.substr(close + 1);
    if (!rest.starts_with(":")) return invalid(text, "a port is missing");
    port = rest.substr(1);
  } else {
    const size_t colon = view.rfind(':');
    if (colon == std::string_view::npos) return invalid(text, "a port is missing");
    if (view.find(':') != colon) return invalid(text, "an IPv6 address needs brackets");
    address.host = view.substr(0, colon);
    if (address.host.empty()) return invalid(text, "a host is missing");
    port = view.substr(colon + 1);
  }
  const Result<uint16_t> number = parse_port(port);
  if (!number) return invalid(text, number.error().message);
  address.port = *number;
  return address;
}

std::string SocketName::text() const {
  if (family() == AF_UNIX) {
    const auto* address = reinterpret_cast<const sockaddr_un*>(&storage);
    return std::string(kUnixPrefix) + address->sun_path;
  }
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int failed =
      getnameinfo(get(), length, host.data(), static_cast<socklen_t>(host.size()), port.data(),
                  static_cast<socklen_t>(port.size()), NI_NUMERICHOST | NI_NUMERICSERV);
  if (failed != 0) return "unknown";
  if (family() == AF_INET6) return std::string("[") + host.data() + "]:" + port.data();
  return std::string(host.data()) + ":" + port.data();
}

Result<std::vector<SocketName>> resolve(const ControlAddress& address, bool to_listen) {
  if (address.is_unix()) {
    Result<SocketName> name = unix_name(address.path);
    if (!name) return name.error();
    return std::vector<SocketName>{*name};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int failed =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (failed != 0) {
    return Error{ErrorCode::kUnreachable,
                 "cannot resolve \"" + address.host + "\": " + gai_strerror(failed)};
  }
  std::vector<SocketName> names;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketName name;
    std::memcpy(&name.storage, entry->ai_addr, entry->ai_addrlen);
    name.length = entry->ai_addrlen;
    names.push_back(name);
  }
  freeaddrinfo(list);
  return names;
}

bool is_numeric(const ControlAddress& address) {
  if (address.is_unix()) return true;
  in6_addr ignored{};
  if (inet_pton(AF_INET, address.host.c_str(), &ignored) == 1) return true;
  return address.host.find(':') != std::string::npos;  // IPv6, perhaps with a scope
}

Result<Listener> listen_on(const std::string& text) {
  const Result<ControlAddress> address = parse_control_address(text);
  if (!address) return address.error();
  Result<std::vector<SocketName>> names = resolve(*address, true);
  if (!names) return Error{ErrorCode::kInvalidArgument, names.error().message};
  SocketName name = names->front();
  if (address->is_unix() && is_dead_socket(name, address->path)) unlink(address->path.c_str());

  Listener listener;
  listener.socket = make_socket(name.family());
  const int fd = listener.socket.get();
  if (fd < 0) return cannot_listen(text, *address, errno);
  const int on = 1;
  const int off = 0;
  if (!address->is_unix()) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // [::] takes IPv4 too, whatever the system's default is.
  if (name.family() == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(fd, name.get(), name.length) != 0 || listen(fd, kBacklog) != 0) {
    return cannot_listen(text, *address, errno);
  }
  listener.name = name;
  if (!address->is_unix()) {
    listener.name.length = sizeof listener.name.storage;
    WL_ASSERT(getsockname(fd, reinterpret_cast<sockaddr*>(&listener.name.storage),
                          &listener.name.length) == 0);
  }
  return listener;
}

}  // namespace weightlane::prod
