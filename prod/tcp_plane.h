// TcpPlane: the data plane where there is nothing but sockets.
//
// It moves bytes straight from registered memory into registered memory (no buffers of ours), over
// several streams per connection with a thread on each end of each; the loop only posts and polls.
// Both sides check: the source every (region, offset, length), the reader every response.
// Connecting verifies whom one reached: an endpoint names a service by a random id, so a restarted
// worker on the same port refuses (FIELD 12).
//
// Dropping a PassiveQueuePair shuts its sockets, after which nothing more is copied out of memory,
// so this plane fences.
//
// Endpoints: "10.0.0.1:7000,[fd00::1]:7000/0123456789abcdef": where to try, in order, and the
// service.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/data_plane.h"
#include "prod/adopts_words.h"
#include "prod/tcp_reader.h"
#include "prod/tcp_shared.h"
#include "prod/tcp_source.h"

namespace weightlane::prod {

struct TcpOptions {
  std::string host;         // numeric, where to listen; empty: everywhere, IPv6 and IPv4
  uint16_t port_first = 0;  // 0: any free port
  uint16_t port_last = 0;   // with port_first: the range, tried in order (FIELD 28)
  // "host:port" or "host" as peers should use them; empty: `host`, or the interfaces' addresses.
  std::vector<std::string> advertise;
  unsigned streams = 2;          // per connection; measured: more gain nothing on two cores
  Nanos handshake = seconds(5);  // for a stranger to say its hello
};

struct TcpEndpoint {
  std::vector<TcpAddress> addresses;
  uint64_t service = 0;

  // kInvalidArgument.
  static Result<TcpEndpoint> parse(const std::string& text);
  std::string text() const;
};

class TcpPlane final : public net::DataPlane, public AdoptsWords {
 public:
  // `loop` outlives the plane, and queue pairs don't outlive the loop. The port is opened by the
  // first listen().
  TcpPlane(EventLoop& loop, TcpOptions options);
  // Ends every connection and waits for the threads.
  ~TcpPlane() override;

  flow::Task<Result<net::RegionId>> register_memory(net::MemoryRange range) override;
  flow::Task<void> deregister(net::RegionId region) override;
  Result<net::RegionId> allocate_words(uint32_t count) override;
  Result<net::RegionId> adopt_words(net::MemoryRange words) override;
  void free_words(net::RegionId words) override;
  void store_word(net::RegionId words, uint32_t index, uint64_t value) override;
  uint64_t load_word(net::RegionId words, uint32_t index) const override;
  flow::Task<Result<uint64_t>> checksum(net::RegionId region, uint64_t offset,
                                        uint64_t length) override;
  Result<std::string> listen(net::Acceptor* acceptor) override;
  void stop_listening(net::Acceptor* acceptor) override;
  flow::Task<Result<net::Connected>> connect(std::string endpoint, Bytes hello, flow::Signal* wake,
                                             Nanos deadline) override;

  MemoryRegistry& registry() { return shared_->registry; }
  uint16_t port() const { return port_; }  // 0 until the first listen()

 private:
  Result<Done> open_port();
  Result<std::vector<TcpAddress>> advertised() const;

  const TcpOptions options_;
  const std::shared_ptr<TcpShared> shared_;
  const std::shared_ptr<TcpSource> source_;
  uint16_t port_ = 0;
};

}  // namespace weightlane::prod
