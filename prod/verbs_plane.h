// VerbsPlane: the data plane over libibverbs: RC queue pairs, one-sided READ.
//
// Connections are set up over TCP: the reader connects to the source's port, each side tells the
// other where its queue pair is and what its device can do, and hello and payload travel along
// (verbs_wire.h). The TCP connection then stays, silent; its end means that the other side is gone,
// which is faster than waiting for retries to run out, but nothing is built on it.
//
// What only hardware decides stays as it is: statuses come from the device unchanged, the source's
// processor takes no part in a READ, and dropping a PassiveQueuePair destroys its queue pair
// (capabilities: fences). Memory is registered once, by the page, on helper threads; GPU memory too
// where the peer-memory module is loaded.
//
// Endpoints: "verbs://10.0.0.1:7001/3", "verbs://[fd00::1]:7001/3": the TCP address, and which
// acceptor there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "flow/task_set.h"
#include "net/data_plane.h"
#include "prod/adopts_words.h"
#include "prod/event_loop.h"
#include "prod/verbs_device.h"
#include "prod/verbs_memory.h"
#include "prod/verbs_queue_pair.h"
#include "prod/verbs_socket.h"

namespace weightlane::prod {

struct VerbsEndpoint {
  std::string host;
  uint16_t port = 0;
  uint32_t acceptor = 0;

  // kInvalidArgument.
  static Result<VerbsEndpoint> parse(const std::string& text);
  std::string text() const;
};

class VerbsPlane final : public net::DataPlane, public AdoptsWords {
 public:
  // `loop` outlives the plane. Errors as VerbsDevice::open's.
  static Result<std::unique_ptr<VerbsPlane>> open(EventLoop& loop, const VerbsOptions& options);
  ~VerbsPlane() override;

  flow::Task<Result<net::RegionId>> register_memory(net::MemoryRange range) override {
    return memory_->add(range);
  }
  flow::Task<void> deregister(net::RegionId region) override { return memory_->remove(region); }
  Result<net::RegionId> allocate_words(uint32_t count) override {
    return memory_->add_words(count);
  }
  Result<net::RegionId> adopt_words(net::MemoryRange words) override {
    return memory_->adopt_words(words);
  }
  void free_words(net::RegionId words) override { memory_->remove_words(words); }
  void store_word(net::RegionId words, uint32_t index, uint64_t value) override;
  uint64_t load_word(net::RegionId words, uint32_t index) const override;
  flow::Task<Result<uint64_t>> checksum(net::RegionId region, uint64_t offset,
                                        uint64_t length) override {
    return memory_->checksum(region, offset, length);
  }
  Result<std::string> listen(net::Acceptor* acceptor) override;
  void stop_listening(net::Acceptor* acceptor) override;
  flow::Task<Result<net::Connected>> connect(std::string endpoint, Bytes hello, flow::Signal* wake,
                                             Nanos deadline) override;

  const VerbsDevice& device() const { return *device_; }

 private:
  using MadePair = Result<std::shared_ptr<VerbsPair>>;

  VerbsPlane(EventLoop& loop, std::shared_ptr<VerbsDevice> device);
  Result<Done> open_port();
  flow::Task<void> accept_strangers();
  flow::Task<void> serve(std::shared_ptr<FrameSocket> socket);
  flow::Task<MadePair> make_source_pair(PairAddress peer, PairLimits limits);
  ConnectReply decide(const ConnectRequest& request, const PairLimits& limits,
                      std::shared_ptr<VerbsSource> source);
  flow::Task<Result<net::Connected>> attach(VerbsEndpoint endpoint, Bytes hello, flow::Signal* wake,
                                            Nanos deadline);
  net::Capabilities capabilities(const PairLimits& limits) const;
  void on_device_events();
  void on_device_event(const ibv_async_event& event);

  EventLoop& loop_;
  std::shared_ptr<VerbsDevice> device_;
  std::shared_ptr<VerbsMemory> memory_;
  std::vector<std::weak_ptr<VerbsReader>> readers_;
  std::map<uint32_t, net::Acceptor*> acceptors_;
  uint32_t last_acceptor_ = 0;
  VerbsEndpoint here_;  // acceptor 0; port 0 until the first listen()
  int listening_ = -1;
  size_t strangers_ = 0;  // connections that have not said yet what they want
  flow::Signal arrived_;  // the listening socket has connections to accept
  std::unique_ptr<FdWatch> device_watch_;
  std::unique_ptr<FdWatch> listening_watch_;
  flow::TaskSet tasks_;
};

}  // namespace weightlane::prod
