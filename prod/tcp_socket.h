// TcpSocket: one connection of the TCP plane, driven by the one thread that has it, and stopped by
// any other.
//
// Every wait ends: by its deadline where there is one, by stop() otherwise. stop() may be called
// from any thread, at any time while the object lives; afterwards every call fails. An error closes
// the connection for good: it is never used again (FIELD 31).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "flow/result.h"
#include "net/ids.h"
#include "prod/file_descriptor.h"
#include "prod/tcp_address.h"

namespace weightlane::prod {

using SteadyTime = std::chrono::steady_clock::time_point;

class TcpSocket {
 public:
  // Takes a connected, blocking socket.
  explicit TcpSocket(FileDescriptor fd);

  // A socket for that family, not yet connected: so that it can be stopped while it connects.
  static Result<std::shared_ptr<TcpSocket>> create(int family);
  // kUnreachable with the reason.
  Result<Done> connect(const TcpAddress& to, SteadyTime deadline);

  // For the handshake: all of it, by the deadline, or false.
  bool send_all(std::span<const uint8_t> bytes, SteadyTime deadline);
  bool receive_all(std::span<uint8_t> bytes, SteadyTime deadline);
  // Memory grows with what arrives, never with what was announced.
  bool receive_blob(Bytes& into, uint64_t length, SteadyTime deadline);

  // For the data: as long as it takes. The header goes out with the first bytes of the body.
  bool send(std::span<const uint8_t> header, std::span<const uint8_t> body);
  bool receive(std::span<uint8_t> bytes);
  // One piece, at least one byte; 0 at the end of the stream or an error.
  size_t receive_some(std::span<uint8_t> bytes);
  // What fits at once without waiting, or false.
  bool send_now(std::span<const uint8_t> bytes);

  // Ends the connection in both directions. When it has returned no send() copies anything more.
  void stop();
  bool stopped() const { return stopped_.load(); }
  std::string peer() const;

 private:
  bool wait_for(short events, SteadyTime deadline);

  const FileDescriptor fd_;
  std::atomic<bool> stopped_{false};
};

}  // namespace weightlane::prod
