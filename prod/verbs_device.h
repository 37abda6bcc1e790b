// VerbsDevice, VerbsPair, VerbsRegion: libibverbs' objects as owners, and nothing else: no loop, no
// thread, no protocol.
//
// A VerbsPair is one RC queue pair, one-shot (R6): made, connected once, to the error state,
// destroyed; never reset. The reader's kind has its own completion queue and channel, so that an
// overrun or a destruction concerns it alone (F22), and no access from outside. The source's kind
// may only be READ from and never posts, so it never completes anything.
//
// Functions marked *blocks* may take milliseconds, or as long as an address takes to resolve: call
// them on a helper thread. One object is used by one thread at a time; different objects by any
// threads (libibverbs promises that).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "flow/result.h"
#include "flow/time.h"
#include "prod/verbs_wire.h"

namespace weightlane::prod {

struct VerbsOptions {
  std::string device;       // "mlx5_0"; empty: the first with an active port
  uint8_t port = 1;         // of the device, from 1
  int gid_index = -1;       // -1: RoCE v2 over IPv4, else RoCE v2, else the first entry
  std::string host;         // numeric address for the exchange over TCP; empty: that of the GID
  uint16_t port_first = 0;  // TCP ports to listen on, both included; 0: any free one
  uint16_t port_last = 0;
  uint8_t timeout = 16;  // 4.096 us x 2^timeout until a packet is sent again: 0.27 s
  uint8_t retries =
      3;  // a dead peer shows after (retries + 1) x timeout: 1.1 s. 7 means for ever on rxe
  uint32_t queue_depth = 64;  // READs posted and not yet polled, per queue pair
  uint8_t reads_at_once =
      16;  // READs in flight on the wire, per queue pair, if both devices can (S8)
  uint64_t max_read_bytes = 1ull << 30;  // per READ, if both ports can (S10)
  Nanos handshake = seconds(5);          // how long a stranger may take to say what it wants
};

class VerbsDevice {
 public:
  // kUnreachable: no such device, or no active port. kInvalidArgument: options that cannot be.
  static Result<std::shared_ptr<VerbsDevice>> open(const VerbsOptions& options);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const VerbsOptions& options() const { return options_; }
  const std::string& name() const { return name_; }
  const PairLimits& limits() const { return limits_; }
  // The address of the GID as text, if it is an IP address; else empty.
  std::string ip_address() const;
  // After an event that says that addresses changed: new pairs use the new ones (NCCL #2157).
  void refresh_address();
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }

 private:
  friend class VerbsPair;
  explicit VerbsDevice(const VerbsOptions& options) : options_(options) {}
  // Where this end is, as far as the port goes.
  struct Source {
    ibv_gid gid{};
    int gid_index = 0;
    uint16_t lid = 0;
  };
  Result<Done> choose_port();
  Source choose_source(const ibv_port_attr& port) const;
  Source source() const;

  VerbsOptions options_;
  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_cq* silent_queue_ = nullptr;  // of all sources' queue pairs: nothing ever completes there
  PairLimits limits_;
  mutable std::mutex mutex_;
  Source source_;  // guarded by mutex_
};

class VerbsPair {
 public:
  enum class Kind : uint8_t { kReader, kSource };
  // kResourceExhausted. Blocks.
  static Result<std::shared_ptr<VerbsPair>> create(std::shared_ptr<VerbsDevice> device, Kind kind,
                                                   uint32_t packet_sequence);
  // Destroys what is left, without a word about success.
  ~VerbsPair() { destroy(); }
  VerbsPair(const VerbsPair&) = delete;
  VerbsPair& operator=(const VerbsPair&) = delete;

  PairAddress address() const;
  // A source can serve, a reader can post, after this. kUnreachable. Blocks.
  Result<Done> connect(const PairAddress& peer, const PairLimits& limits);
  // Everything posted completes, flushed; nothing new is served. Idempotent.
  void to_error();
  // 0, or errno: then the NIC may still use the memory of what was posted. Blocks. Idempotent after
  // success.
  int destroy();

  // The reader's kind only.
  int channel_fd() const { return channel_->fd; }
  // 0, or errno (ENOMEM: no slot in the send queue).
  int post_read(uint64_t id, const ibv_sge& into, uint64_t remote_address, uint32_t remote_key);
  // How many completions were written to `out`; negative: the completion queue is dead.
  int poll(std::span<ibv_wc> out);
  // Takes the events out of the channel and acknowledges them, then asks for the next: call poll
  // afterwards, since a completion between the last poll and this makes no event (F25).
  void take_events_and_arm();

  const ibv_qp* queue_pair() const { return pair_; }
  const ibv_cq* queue() const { return queue_; }

 private:
  VerbsPair(std::shared_ptr<VerbsDevice> device, Kind kind)
      : device_(std::move(device)), kind_(kind) {}
  Result<Done> make(uint32_t packet_sequence);
  int to_init();
  int to_ready_to_receive(const PairAddress& peer, const PairLimits& limits);
  int to_ready_to_send(const PairLimits& limits);

  std::shared_ptr<VerbsDevice> device_;
  Kind kind_;
  VerbsDevice::Source source_;  // as it was when the pair was made
  uint32_t packet_sequence_ = 0;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
};

// Registered memory; deregistered when destroyed.
class VerbsRegion {
 public:
  // kResourceExhausted, with the reason that helps. Blocks.
  static Result<std::shared_ptr<VerbsRegion>> create(std::shared_ptr<VerbsDevice> device,
                                                     uint64_t address, uint64_t length,
                                                     bool on_gpu);
  // Blocks.
  ~VerbsRegion();
  VerbsRegion(const VerbsRegion&) = delete;
  VerbsRegion& operator=(const VerbsRegion&) = delete;

  uint64_t address() const { return address_; }
  uint64_t length() const { return length_; }  // bytes
  bool on_gpu() const { return on_gpu_; }
  uint32_t local_key() const { return region_->lkey; }
  uint32_t remote_key() const { return region_->rkey; }

 private:
  VerbsRegion(std::shared_ptr<VerbsDevice> device, ibv_mr* region, uint64_t address,
              uint64_t length, bool on_gpu)
      : device_(std::move(device)),
        region_(region),
        address_(address),
        length_(length),
        on_gpu_(on_gpu) {}

  std::shared_ptr<VerbsDevice> device_;
  ibv_mr* region_;
  uint64_t address_;
  uint64_t length_;
  bool on_gpu_;
};

}  // namespace weightlane::prod
