// The source's end of the TCP plane: the port, the strangers that come to it, and the pairs they
// become.
//
// Each connection has a thread, first for its handshake and then for what it asks. A stranger has a
// few seconds to say a whole hello; strangers are few at a time (a new one pushes out the oldest),
// and memory grows only with what they send, up to a limit: garbage costs its own connection and
// nothing else. Acceptors decide on the loop's thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/data_plane.h"
#include "prod/tcp_shared.h"
#include "prod/tcp_wire.h"

namespace weightlane::prod {

// One reader, as its source sees it: the streams it opened. Shared by their threads and the
// PassiveQueuePair.
class TcpServedPair final : public RegionUser {
 public:
  explicit TcpServedPair(uint64_t token) : token_(token) {}

  uint64_t token() const { return token_; }
  // False when the pair has ended, or has too many.
  bool add_stream(const std::shared_ptr<TcpSocket>& socket);
  // The others go on: READs posted before the one that failed here are let finish.
  void remove_stream(const std::shared_ptr<TcpSocket>& socket);
  // Ends every stream. When it has returned nothing more is copied out of memory (the fence).
  void stop();
  bool stopped() const { return stopped_.load(); }

  void stop_using_region() override { stop(); }

 private:
  const uint64_t token_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<std::shared_ptr<TcpSocket>> streams_;  // guarded by mutex_
};

class TcpSource : public std::enable_shared_from_this<TcpSource> {
 public:
  TcpSource(std::shared_ptr<TcpShared> shared, Nanos handshake)
      : shared_(std::move(shared)), handshake_(handshake) {}

  // Takes a listening socket and begins to accept. kResourceExhausted.
  Result<Done> start(FileDescriptor listening);
  // No more connections; waits for no thread. Those that have a pair go on until it is dropped.
  void stop();

  // On the loop's thread: `acceptor` is asked for hellos to this id until it is removed.
  uint64_t add_service(net::Acceptor* acceptor);
  void remove_service(net::Acceptor* acceptor);

 private:
  struct Answer;
  void accept_strangers();
  void handle(std::shared_ptr<TcpSocket> socket);
  std::shared_ptr<TcpServedPair> handshake(const std::shared_ptr<TcpSocket>& socket);
  std::shared_ptr<TcpServedPair> make_pair(const std::shared_ptr<TcpSocket>& socket,
                                           const TcpHello& hello, SteadyTime deadline);
  std::shared_ptr<TcpServedPair> join_pair(const std::shared_ptr<TcpSocket>& socket,
                                           const TcpHello& hello, SteadyTime deadline);
  Answer ask_acceptor(const std::shared_ptr<TcpServedPair>& pair, uint64_t service, Bytes hello);
  void decide(const std::shared_ptr<TcpServedPair>& pair, uint64_t service, const Bytes& hello,
              Answer& answer);
  void serve(TcpSocket& socket, TcpServedPair& pair);
  bool serve_one(TcpSocket& socket, TcpServedPair& pair, const TcpRequest& request);

  const std::shared_ptr<TcpShared> shared_;
  const Nanos handshake_;
  FileDescriptor listening_;
  std::map<uint64_t, net::Acceptor*> services_;  // the loop's

  std::mutex mutex_;
  std::condition_variable answered_;
  bool stopping_ = false;                                      // guarded by mutex_
  std::deque<std::shared_ptr<TcpSocket>> strangers_;           // guarded by mutex_, oldest first
  std::map<uint64_t, std::weak_ptr<TcpServedPair>> by_token_;  // guarded by mutex_
};

}  // namespace weightlane::prod
