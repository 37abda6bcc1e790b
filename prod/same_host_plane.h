// SameHostPlane: the data plane between processes of one machine: no protocol, no copy but one.
//
// The reader's threads copy straight from the source's memory: non-temporally where that memory is
// shared (prod/shared_memory.h), by process_vm_readv otherwise; the source's processor takes no
// part. A Unix socket carries hello and payload, hands over what can be mapped, and tells each side
// by its end that the other has gone. Control blocks are always shared memory, so words are read
// whole (C1).
//
// Connecting reads a word across: where the system forbids that (another user, a container),
// connect() ends with kUnreachable and says so, and TCP is the transport. Nobody can revoke what
// another process may read, so capabilities say fences = false; see same_host_board.h for what is
// done instead.
//
// Endpoints: "<boot id>/<pid>/<start time>/<socket>/<service>".
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "flow/task_set.h"
#include "net/data_plane.h"
#include "prod/adopts_words.h"
#include "prod/arena_cache.h"
#include "prod/helper_threads.h"
#include "prod/memory_registry.h"
#include "prod/same_host_reader.h"

namespace weightlane::prod {

struct SameHostOptions {
  SharedArenas* arenas =
      nullptr;                   // the application's shared memory; outlives the plane. Null: none
  unsigned copy_threads = 2;     // for all of a process's READs
  Nanos handshake = seconds(5);  // for a stranger to say its hello
};

struct SameHostEndpoint {
  std::string boot;
  uint64_t pid = 0;
  uint64_t start_time = 0;
  std::string socket;
  uint64_t service = 0;

  // kInvalidArgument.
  static Result<SameHostEndpoint> parse(const std::string& text);
  std::string text() const;
};

class SameHostPlane final : public net::DataPlane, public AdoptsWords {
 public:
  // `loop` outlives the plane. kResourceExhausted.
  static Result<std::unique_ptr<SameHostPlane>> create(EventLoop& loop, SameHostOptions options);
  ~SameHostPlane() override;

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

  const ArenaCache& mapped() const { return mapped_; }

 private:
  class Served;
  class PassivePair;
  struct Connecting;

  SameHostPlane(EventLoop& loop, SameHostOptions options);
  Result<net::RegionId> published(Result<net::RegionId> region);
  Result<Done> open_socket();
  void accept_strangers();
  flow::Task<void> expire(std::weak_ptr<Served> stranger);
  void decide(const std::shared_ptr<Served>& served, uint64_t service, const Bytes& hello);
  flow::Task<Result<net::Connected>> connect_to(SameHostEndpoint endpoint, Bytes hello,
                                                flow::Signal* wake, Nanos deadline);
  flow::Task<Result<FileDescriptor>> reach(SameHostEndpoint endpoint, Nanos deadline);
  std::unique_ptr<net::QueuePair> make_pair(const std::shared_ptr<Connecting>& connecting,
                                            flow::Signal* wake);

  EventLoop& loop_;
  const SameHostOptions options_;
  SharedArenas own_arenas_;  // for words, where the application has none
  SharedArenas* arenas_;
  MemoryRegistry registry_;
  std::unique_ptr<SourceBoard> board_;
  SameHostEndpoint here_;  // the socket is empty until the first listen()
  std::map<uint64_t, net::Acceptor*> services_;
  std::set<std::shared_ptr<Served>> strangers_;
  std::vector<std::weak_ptr<SameHostReader>> readers_;
  ArenaCache mapped_;  // memory of peers
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  FileDescriptor listening_;
  std::unique_ptr<FdWatch> listening_watch_;
  std::unique_ptr<HelperThreads> copies_;
  flow::TaskSet tasks_;
};

}  // namespace weightlane::prod
