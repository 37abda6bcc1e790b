// The reader's end of a TCP connection: several streams, a thread on each that receives straight
// into the destination.
//
// A READ goes whole to the stream with the fewest bytes before it. Requests are sent by the loop
// (40 bytes; they always fit), responses come in the order of the requests of that stream.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/data_plane.h"
#include "prod/read_queue.h"
#include "prod/tcp_shared.h"
#include "prod/tcp_wire.h"

namespace weightlane::prod {

// Shared by the pair and its threads.
class TcpReader final : public RegionUser, public std::enable_shared_from_this<TcpReader> {
 public:
  TcpReader(std::shared_ptr<TcpShared> shared, flow::Signal* wake, net::Capabilities capabilities,
            std::vector<std::shared_ptr<TcpSocket>> sockets);

  // kResourceExhausted: no threads; then the reader is stopped.
  Result<Done> start();
  net::PostResult post(const net::ReadWork& work);
  ReadQueue& queue() { return *queue_; }
  // Every thread returns soon; READs under way end with an error.
  void stop();
  // stop(), and wait until no thread touches a destination.
  static flow::Task<Result<Done>> destroy(std::shared_ptr<TcpReader> reader, Nanos deadline);

  void stop_using_region() override { stop(); }

 private:
  struct Stream {
    std::shared_ptr<TcpSocket> socket;
    std::atomic<uint64_t> queued_bytes{0};
    std::mutex mutex;
    std::deque<std::unique_ptr<PendingRead>> expected;  // guarded by mutex
    bool ended = false;                                 // guarded by mutex
  };
  void run(Stream& stream);
  bool receive_one(Stream& stream);
  std::unique_ptr<PendingRead> take_expected(Stream& stream);
  net::CompletionStatus receive_body(Stream& stream, PendingRead& read, uint64_t& checksum);
  void end(Stream& stream);

  const std::shared_ptr<TcpShared> shared_;
  const std::shared_ptr<ReadQueue> queue_;
  std::string peer_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

// Takes over a started reader.
std::unique_ptr<net::QueuePair> make_tcp_queue_pair(std::shared_ptr<TcpReader> reader,
                                                    net::Capabilities capabilities);

}  // namespace weightlane::prod
