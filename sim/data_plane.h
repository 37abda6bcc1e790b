// The data plane of a simulated world: at least as nasty as RDMA is.
//
// SimDataPlane is one process's registrations, keys, words and acceptors. DataNet holds the queue
// pairs of all (they outlive both ends) and carries out READs; what a READ suffers is in
// queue_pair.h.
//
// Keys are an index and an 8-bit tag (S12): an index freed is used again with the next tag, so a
// stale key fails, until the tag wraps or the fault says otherwise. A new life starts its numbers
// anywhere, or where the old one did (F11).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flow/future.h"
#include "net/data_plane.h"
#include "sim/config.h"
#include "sim/host.h"
#include "sim/network.h"
#include "sim/queue_pair.h"
#include "sim/timer_queue.h"

namespace weightlane::sim {

class World;

// A registration. Memory regions name a part of a range; word regions hold their words.
struct Region {
  net::RegionId id;
  bool live = false;
  bool is_words = false;
  uint32_t range = 0;  // Memory::range
  uint64_t first_granule = 0;
  uint64_t address = 0;
  uint64_t length = 0;  // bytes
  uint32_t key = 0;
  std::vector<uint64_t> words;
};

class SimDataPlane final : public net::DataPlane {
 public:
  explicit SimDataPlane(Host& host) : host_(host) {}
  ~SimDataPlane() override;

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

  Host& host() { return host_; }
  uint32_t live_registrations() const { return live_regions_; }  // words too; for leak checks
  // A life begins; `reuse`: with the numbers that the one before began with.
  void start_life(bool reuse);
  void end_life(CrashKind kind);
  void clear();  // after the life's tasks are gone

  // For the queue pairs. Null: no such region, or not any more.
  Region* find(net::RegionId id);
  const Region* find(net::RegionId id) const;
  // The live region that a key names.
  Region* find_key(uint32_t key);
  // The remote name of a region; may be a stale one (F17).
  net::RemoteRegion describe(net::RegionId id);
  // Bytes of a region as a checksum sees them.
  uint64_t checksum_of(const Region& region, uint64_t offset, uint64_t length) const;
  net::Acceptor* acceptor(uint32_t port) const;
  // The source's ends of queue pairs, by number.
  uint32_t add_passive();
  void drop_passive(uint32_t number);
  bool passive_live(uint32_t number) const;

 private:
  Region& add_region(uint64_t address, uint64_t length);
  void retire(Region& region);
  uint32_t take_key(net::RegionId id);
  void give_back_key(uint32_t key);
  StreamId stream() const { return stream_of(host_.id(), Subsystem::kMemory); }

  struct KeySlot {
    uint8_t tag = 0;
    net::RegionId region;  // 0 = free
  };
  struct Listener {
    uint32_t port = 0;
    net::Acceptor* acceptor = nullptr;
  };

  Host& host_;
  uint32_t live_regions_ = 0;
  uint64_t first_region_ = 1;  // id of regions_[0]; ids go on from life to life
  std::vector<std::unique_ptr<Region>> regions_;
  uint32_t key_base_ = 0x100;  // index of key_slots_[0]
  uint8_t tag_base_ = 0;
  std::vector<KeySlot> key_slots_;
  std::vector<uint32_t> free_keys_;
  uint64_t word_base_ = 0;
  uint64_t next_word_address_ = 0;
  uint32_t passive_base_ = 0x40;
  std::vector<bool> passive_;   // by number - passive_base_
  uint32_t last_passives_ = 0;  // how many the life before had
  // F11: so many numbers of the life before answer in this one too, until it uses them itself.
  uint32_t ghosts_ = 0;
  uint32_t next_port_ = 1;
  std::vector<Listener> listeners_;
};

// A connect under way; outlives the caller, who may be gone when the answer comes.
struct ConnectAttempt {
  explicit ConnectAttempt(Host& reader);
  ~ConnectAttempt();

  DataNet& net;
  HostId reader;
  uint32_t reader_life = 0;
  HostId source;
  uint32_t port = 0;
  Bytes hello;
  Bytes payload;
  std::string refusal;  // empty: accepted
  ErrorCode code = ErrorCode::kRefused;
  QueuePairState* pair = nullptr;  // once accepted
  bool spoken = false;             // the acceptor has answered; the alarm now carries the answer
  bool abandoned = false;          // nobody waits any more
  Alarm alarm;
  flow::Promise<void> arrived;
};

class DataNet {
 public:
  explicit DataNet(World& world);
  ~DataNet();
  DataNet(const DataNet&) = delete;
  DataNet& operator=(const DataNet&) = delete;

  World& world() { return world_; }
  void paths_changed();
  void heal();
  void end_life(HostId host, CrashKind kind);
  // F5: no queue pair of this host finds its path again.
  void lose_addresses(HostId host);
  // F8: wakes every reader of this host, for nothing.
  void wake_readers(HostId host);
  size_t pairs() const { return pairs_.size(); }

  QueuePairState& open(HostId reader, HostId source);
  void remove(QueuePairState& pair);
  std::shared_ptr<ConnectAttempt> begin_connect(Host& reader, HostId source, uint32_t port,
                                                Bytes hello);
  // The caller will not wait any longer; what the source accepted is closed.
  void abandon(ConnectAttempt& attempt);
  Work& allocate_work();
  void release_work(Work& work);
  // Draws what befalls one READ; kNone mostly.
  Fault draw_work_fault(StreamId stream);
  // F22, F28: all queue pairs of this reader's adapter go the same way.
  void adapter_fails(HostId reader, Fault fault);
  // F32: a local error breaks them all, and for a while there are no new ones.
  void storm(HostId reader, Nanos until);
  bool in_storm(HostId reader) const;
  Nanos draw(HostId host, const char* name, SpanRange range);
  Nanos latency(HostId from, HostId to);

 private:
  friend struct ConnectAttempt;
  void on_attempt(ConnectAttempt& attempt);
  void hello_arrives(ConnectAttempt& attempt);
  void answer_arrives(ConnectAttempt& attempt);
  void forget(ConnectAttempt& attempt);
  std::shared_ptr<ConnectAttempt> find_attempt(ConnectAttempt& attempt) const;

  World& world_;
  uint64_t next_pair_ = 1;
  std::vector<std::unique_ptr<QueuePairState>> pairs_;     // in order of opening
  std::vector<std::shared_ptr<ConnectAttempt>> attempts_;  // whose hello or answer is on its way
  std::vector<std::unique_ptr<Work>> works_;
  std::vector<Work*> free_works_;
  std::vector<Fault> work_faults_;  // of class kWork
  std::vector<uint32_t> work_rates_;
  std::array<Nanos, kHostsMost> storm_until_{};
};

}  // namespace weightlane::sim
