// getaddrinfo with AI_NUMERICHOST does the reading: it knows scopes, and asks nobody.
#include "prod/tcp_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <charconv>
#include <cstring>

namespace weightlane::prod {
namespace {

Error bad(std::string_view text, const char* why) {
  return Error{ErrorCode::kInvalidArgument, "address '" + std::string(text) + "': " + why +
                                                "; write 10.0.0.1:7000 or [::1]:7000"};
}

bool is_reachable_from_outside(const TcpAddress& address) {
  if (address.family() == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address.storage);
    const uint32_t host = ntohl(in.sin_addr.s_addr);
    return host >> 24 != 127 && host >> 16 != 0xa9fe;
  }
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return !IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) && !IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr);
}

}  // namespace

Result<TcpAddress> TcpAddress::from_host(std::string host, uint16_t port) {
  // The C library would read up to the first NUL and accept what it finds there.
  if (host.find('\0') != std::string::npos) return bad(host.c_str(), "a NUL behind it");
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) {
    return bad(host, "not a numeric IPv4 or IPv6 address");
  }
  TcpAddress address = from_sockaddr(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  address.set_port(port);
  return address;
}

TcpAddress TcpAddress::from_sockaddr(const sockaddr* from, socklen_t length) {
  TcpAddress address;
  std::memcpy(&address.storage, from, length);
  address.length = length;
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  if (address.family() != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) return address;
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = in6.sin6_port;
  std::memcpy(&in.sin_addr, in6.sin6_addr.s6_addr + 12, 4);
  return from_sockaddr(reinterpret_cast<const sockaddr*>(&in), sizeof in);
}

Result<TcpAddress> TcpAddress::parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad(text, "no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size())
    return bad(text, "no such port");
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad(text, "an IPv6 address needs brackets");
  }
  return from_host(std::string(host), port);
}

uint16_t TcpAddress::port() const {
  // Both families have it in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void TcpAddress::set_port(uint16_t port) {
  reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
}

bool TcpAddress::is_wildcard() const {
  if (family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr == INADDR_ANY;
  }
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
}

std::string TcpAddress::text() const {
  char host[NI_MAXHOST] = "?";
  getnameinfo(get(), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  const std::string number = std::to_string(port());
  if (family() == AF_INET6) return "[" + std::string(host) + "]:" + number;
  return std::string(host) + ":" + number;
}

std::vector<TcpAddress> interface_addresses(size_t limit) {
  std::vector<TcpAddress> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const TcpAddress address = TcpAddress::from_sockaddr(entry->ifa_addr, length);
    if (is_reachable_from_outside(address) && addresses.size() < limit)
      addresses.push_back(address);
  }
  freeifaddrs(list);
  return addresses;
}

}  // namespace weightlane::prod
