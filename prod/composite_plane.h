// CompositePlane: all the transports that a process has, as one data plane.
//
// Memory is registered with every part; an endpoint lists every part's own
// ("same-host=...;tcp=..."); connect() tries what both sides have, best first (the order of add()),
// and tells `on_choice` what it took and why it passed over the better ones: there is no silent
// fallback (FIELD 26). One part alone is how a transport is forced: with nothing in common
// connect() says so and fails.
//
// Words are allocated once, in shared memory, and adopted by every part, so that one control block
// serves readers of every transport.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "flow/task_set.h"
#include "net/data_plane.h"
#include "prod/adopts_words.h"
#include "prod/memory_registry.h"

namespace weightlane::prod {

struct TransportChoice {
  std::string transport;    // "tcp"
  std::string passed_over;  // "same-host: it is on another machine"; empty when the best was taken
};

struct CompositeOptions {
  std::function<void(const TransportChoice&)> on_choice;  // for each connection; may be empty
};

class CompositePlane final : public net::DataPlane {
 public:
  // `loop` and `arenas` outlive the plane. Parts are added before anything else is called.
  CompositePlane(EventLoop& loop, SharedArenas& arenas, CompositeOptions options);
  ~CompositePlane() override;

  // Best first. `name` is the part's transport(), without ';' or '='.
  template <typename Plane>
  void add(std::string name, std::unique_ptr<Plane> plane) {
    AdoptsWords* const words = plane.get();
    add_part(std::move(name), std::move(plane), words);
  }

  flow::Task<Result<net::RegionId>> register_memory(net::MemoryRange range) override;
  flow::Task<void> deregister(net::RegionId region) override;
  Result<net::RegionId> allocate_words(uint32_t count) override;
  void free_words(net::RegionId words) override;
  void store_word(net::RegionId words, uint32_t index, uint64_t value) override;
  uint64_t load_word(net::RegionId words, uint32_t index) const override;
  flow::Task<Result<uint64_t>> checksum(net::RegionId region, uint64_t offset,
                                        uint64_t length) override;
  Result<std::string> listen(net::Acceptor* acceptor) override;
  void stop_listening(net::Acceptor* acceptor) override;
  flow::Task<Result<net::Connected>> connect(std::string endpoint, Bytes hello, flow::Signal* wake,
                                             Nanos deadline) override;

  // "same-host, tcp"
  std::string transports() const;

 private:
  struct Part {
    std::string name;
    std::unique_ptr<net::DataPlane> plane;
    AdoptsWords* words = nullptr;
  };
  // Our region, as each part knows it; an id of 0 where a part can't have it.
  struct Region {
    std::vector<net::RegionId> parts;
    net::RegionId words;  // in words_; 0 for memory of the application's
  };
  // Shared with queue pairs, which may be dropped after the plane.
  struct Regions {
    std::map<net::RegionId, Region> by_id;
    uint64_t last_id = 0;
    net::RegionId of_part(net::RegionId ours, size_t part) const;
  };
  class PartAcceptor;
  class PassivePair;
  class Pair;
  class Undo;

  void add_part(std::string name, std::unique_ptr<net::DataPlane> plane, AdoptsWords* words);
  net::RegionId insert(Region region);
  flow::Task<void> deregister_parts(Region region);
  flow::Task<Result<net::Connected>> connect_part(size_t part, std::string endpoint, Bytes hello,
                                                  flow::Signal* wake, Nanos deadline);

  EventLoop& loop_;
  const CompositeOptions options_;
  MemoryRegistry words_;
  std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
  std::map<net::Acceptor*, std::vector<std::unique_ptr<PartAcceptor>>> acceptors_;
  std::vector<Part> parts_;
  flow::TaskSet tasks_;
};

}  // namespace weightlane::prod
