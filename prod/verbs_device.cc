// libibverbs' own calls, one by one; what each may fail with becomes one line that names the
// device.
#include "prod/verbs_device.h"

#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "flow/assert.h"

namespace weightlane::prod {
namespace {

constexpr uint8_t kV4Mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_v4_mapped(const ibv_gid& gid) {
  return std::memcmp(gid.raw, kV4Mapped, sizeof kV4Mapped) == 0;
}
bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

std::string reason(int code) { return std::strerror(code); }

struct DeviceList {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  ~DeviceList() {
    if (devices != nullptr) ibv_free_device_list(devices);
  }
};

bool port_is_active(ibv_context* context, uint8_t port) {
  ibv_port_attr attributes{};
  return ibv_query_port(context, port, &attributes) == 0 && attributes.state == IBV_PORT_ACTIVE;
}

Result<Done> check(const VerbsOptions& options) {
  if (options.retries > 6) {
    return Error{ErrorCode::kInvalidArgument,
                 "verbs retries are 0 to 6 (7 means for ever on some devices)"};
  }
  if (options.timeout < 1 || options.timeout > 31) {
    return Error{ErrorCode::kInvalidArgument,
                 "verbs timeout is an exponent, 1 to 31 (0 means for ever)"};
  }
  if (options.queue_depth == 0 || options.reads_at_once == 0 || options.max_read_bytes == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "verbs queue depth, reads at once and bytes per READ are at least 1"};
  }
  return Done{};
}

}  // namespace

Result<std::shared_ptr<VerbsDevice>> VerbsDevice::open(const VerbsOptions& options) {
  Result<Done> sane = check(options);
  if (!sane.ok()) return sane.error();
  const DeviceList list;
  std::shared_ptr<VerbsDevice> device(new VerbsDevice(options));
  for (int i = 0; i < list.count && device->context_ == nullptr; ++i) {
    const char* name = ibv_get_device_name(list.devices[i]);
    if (!options.device.empty() && options.device != name) continue;
    ibv_context* context = ibv_open_device(list.devices[i]);
    if (context == nullptr) continue;
    if (options.device.empty() && !port_is_active(context, options.port)) {
      ibv_close_device(context);
      continue;
    }
    device->context_ = context;
    device->name_ = name;
  }
  if (device->context_ == nullptr) {
    return Error{ErrorCode::kUnreachable,
                 options.device.empty()
                     ? "no RDMA device with an active port on this machine"
                     : "no RDMA device " + options.device + " that can be opened on this machine"};
  }
  Result<Done> port = device->choose_port();
  if (!port.ok()) return port.error();
  // From Linux 5.12 a fork copies pinned pages and this costs nothing; before it, a child's writes
  // would part us from them.
  ibv_fork_init();
  device->domain_ = ibv_alloc_pd(device->context_);
  if (device->domain_ != nullptr)
    device->silent_queue_ = ibv_create_cq(device->context_, 1, nullptr, nullptr, 0);
  if (device->silent_queue_ == nullptr) {
    return Error{ErrorCode::kResourceExhausted,
                 device->name_ + ": no protection domain or queue: " + reason(errno)};
  }
  // The loop takes events until there are none.
  fcntl(device->context_->async_fd, F_SETFL,
        fcntl(device->context_->async_fd, F_GETFL) | O_NONBLOCK);
  return device;
}

Result<Done> VerbsDevice::choose_port() {
  ibv_device_attr device{};
  ibv_port_attr port{};
  if (ibv_query_device(context_, &device) != 0 ||
      ibv_query_port(context_, options_.port, &port) != 0) {
    return Error{ErrorCode::kUnreachable, name_ + " has no port " + std::to_string(options_.port)};
  }
  if (port.state != IBV_PORT_ACTIVE) {
    return Error{ErrorCode::kUnreachable, name_ + " port " + std::to_string(options_.port) +
                                              " is " + ibv_port_state_str(port.state) +
                                              ", not active"};
  }
  source_ = choose_source(port);
  options_.queue_depth =
      std::min(options_.queue_depth, static_cast<uint32_t>(std::max(device.max_qp_wr, 2)) - 1);
  limits_.mtu = static_cast<uint8_t>(port.active_mtu);
  // One number for both roles, so that either end may be the reader.
  const int at_once = std::min(device.max_qp_init_rd_atom, device.max_qp_rd_atom);
  limits_.reads_at_once =
      static_cast<uint8_t>(std::clamp(at_once, 1, static_cast<int>(options_.reads_at_once)));
  limits_.max_message =
      std::min<uint64_t>(options_.max_read_bytes, std::max<uint32_t>(port.max_msg_sz, 1));
  return Done{};
}

// The order of the table is the kernel's and changes when addresses do (NCCL #2157), so entries are
// looked for, not counted.
VerbsDevice::Source VerbsDevice::choose_source(const ibv_port_attr& port) const {
  Source source;
  source.lid = port.lid;
  int best = -1;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context_, options_.port, static_cast<uint32_t>(i), &entry, 0) != 0)
      continue;
    int rank = 0;
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2)
      rank = is_v4_mapped(entry.gid) ? 3 : is_link_local(entry.gid) ? 1 : 2;
    if (options_.gid_index >= 0) rank = options_.gid_index == i ? 4 : -1;
    if (rank <= best) continue;
    best = rank;
    source.gid = entry.gid;
    source.gid_index = i;
  }
  return source;
}

void VerbsDevice::refresh_address() {
  ibv_port_attr port{};
  if (ibv_query_port(context_, options_.port, &port) != 0) return;
  const Source source = choose_source(port);
  const std::lock_guard lock(mutex_);
  source_ = source;
}

VerbsDevice::Source VerbsDevice::source() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

VerbsDevice::~VerbsDevice() {
  if (silent_queue_ != nullptr) ibv_destroy_cq(silent_queue_);
  if (domain_ != nullptr) ibv_dealloc_pd(domain_);
  if (context_ != nullptr) ibv_close_device(context_);
}

std::string VerbsDevice::ip_address() const {
  const ibv_gid gid = source().gid;
  char text[INET6_ADDRSTRLEN] = {};
  if (is_v4_mapped(gid)) {
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  } else if ((gid.raw[0] & 0xe0) == 0x20 ||
             (gid.raw[0] & 0xfe) == 0xfc) {  // global, or unique local
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  }
  return text;
}

Result<std::shared_ptr<VerbsPair>> VerbsPair::create(std::shared_ptr<VerbsDevice> device, Kind kind,
                                                     uint32_t packet_sequence) {
  std::shared_ptr<VerbsPair> pair(new VerbsPair(std::move(device), kind));
  Result<Done> made = pair->make(packet_sequence);
  if (!made.ok()) return made.error();
  return pair;
}

Result<Done> VerbsPair::make(uint32_t packet_sequence) {
  packet_sequence_ = packet_sequence & 0xffffff;
  source_ = device_->source();
  const uint32_t depth = kind_ == Kind::kReader ? device_->options_.queue_depth : 1;
  if (kind_ == Kind::kReader) {
    channel_ = ibv_create_comp_channel(device_->context_);
    // One more than can be posted: it cannot overrun (F22).
    if (channel_ != nullptr) {
      fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
      queue_ = ibv_create_cq(device_->context_, static_cast<int>(depth) + 1, nullptr, channel_, 0);
    }
  }
  if (kind_ == Kind::kSource || (queue_ != nullptr && ibv_req_notify_cq(queue_, 0) == 0)) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = kind_ == Kind::kReader ? queue_ : device_->silent_queue_;
    attributes.recv_cq = attributes.send_cq;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = depth;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_wr = 1;
    attributes.cap.max_recv_sge = 1;
    attributes.sq_sig_all = 0;
    pair_ = ibv_create_qp(device_->domain_, &attributes);
  }
  const int failed = pair_ == nullptr ? errno : to_init();
  if (failed != 0) {
    return Error{ErrorCode::kResourceExhausted,
                 device_->name_ + ": no further queue pair: " + reason(failed)};
  }
  return Done{};
}

PairAddress VerbsPair::address() const {
  PairAddress address;
  std::memcpy(address.gid.data(), source_.gid.raw, address.gid.size());
  address.lid = source_.lid;
  address.queue_pair = pair_->qp_num;
  address.packet_sequence = packet_sequence_;
  return address;
}

int VerbsPair::to_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_->options_.port;
  attributes.qp_access_flags = kind_ == Kind::kSource ? IBV_ACCESS_REMOTE_READ : 0;
  return ibv_modify_qp(pair_, &attributes,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int VerbsPair::to_ready_to_receive(const PairAddress& peer, const PairLimits& limits) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(limits.mtu);
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.packet_sequence;
  attributes.max_dest_rd_atomic = limits.reads_at_once;
  attributes.min_rnr_timer = 12;  // 0.64 ms; READs need no receive, so it never counts
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = device_->options_.port;
  attributes.ah_attr.dlid = peer.lid;
  std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(source_.gid_index);
  attributes.ah_attr.grh.hop_limit = 64;
  return ibv_modify_qp(pair_, &attributes,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int VerbsPair::to_ready_to_send(const PairLimits& limits) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = device_->options_.timeout;
  attributes.retry_cnt = device_->options_.retries;
  attributes.rnr_retry = 3;  // never 7: for ever
  attributes.sq_psn = packet_sequence_;
  attributes.max_rd_atomic = limits.reads_at_once;
  return ibv_modify_qp(pair_, &attributes,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

Result<Done> VerbsPair::connect(const PairAddress& peer, const PairLimits& limits) {
  int failed = to_ready_to_receive(peer, limits);
  // A source never sends: ready to receive is all it needs to answer READs.
  if (failed == 0 && kind_ == Kind::kReader) failed = to_ready_to_send(limits);
  if (failed != 0) {
    return Error{ErrorCode::kUnreachable,
                 device_->name_ + ": the peer's queue pair cannot be reached: " + reason(failed)};
  }
  return Done{};
}

void VerbsPair::to_error() {
  if (pair_ == nullptr) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(pair_, &attributes, IBV_QP_STATE);
}

int VerbsPair::destroy() {
  if (pair_ != nullptr) {
    const int failed = ibv_destroy_qp(pair_);
    if (failed != 0) return failed;
    pair_ = nullptr;
  }
  // Nothing can land any more; what follows only gives back memory.
  if (queue_ != nullptr && ibv_destroy_cq(queue_) == 0) queue_ = nullptr;
  if (queue_ == nullptr && channel_ != nullptr && ibv_destroy_comp_channel(channel_) == 0)
    channel_ = nullptr;
  return 0;
}

int VerbsPair::post_read(uint64_t id, const ibv_sge& into, uint64_t remote_address,
                         uint32_t remote_key) {
  ibv_sge place = into;
  ibv_send_wr work{};
  work.wr_id = id;
  work.sg_list = &place;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_READ;
  work.send_flags = IBV_SEND_SIGNALED;
  work.wr.rdma.remote_addr = remote_address;
  work.wr.rdma.rkey = remote_key;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(pair_, &work, &bad);
}

int VerbsPair::poll(std::span<ibv_wc> out) {
  return ibv_poll_cq(queue_, static_cast<int>(out.size()), out.data());
}

void VerbsPair::take_events_and_arm() {
  ibv_cq* which = nullptr;
  void* context = nullptr;
  unsigned taken = 0;
  while (ibv_get_cq_event(channel_, &which, &context) == 0) ++taken;
  // Each acknowledgement takes a lock, so all in one; before it destroy() would wait for ever.
  if (taken != 0) ibv_ack_cq_events(queue_, taken);
  ibv_req_notify_cq(queue_, 0);
}

Result<std::shared_ptr<VerbsRegion>> VerbsRegion::create(std::shared_ptr<VerbsDevice> device,
                                                         uint64_t address, uint64_t length,
                                                         bool on_gpu) {
  // GPU memory needs a peer-memory module under libibverbs (nvidia-peermem), and nothing else here.
  ibv_mr* region = ibv_reg_mr(device->domain(), reinterpret_cast<void*>(address), length,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  if (region == nullptr) {
    const int failed = errno;
    std::string message = device->name() + ": " + std::to_string(length) +
                          " bytes cannot be registered: " + reason(failed);
    if (on_gpu) message += " (GPU memory needs the module nvidia-peermem)";
    if (!on_gpu && failed == ENOMEM) message += " (see ulimit -l)";
    return Error{ErrorCode::kResourceExhausted, std::move(message)};
  }
  return std::shared_ptr<VerbsRegion>(
      new VerbsRegion(std::move(device), region, address, length, on_gpu));
}

VerbsRegion::~VerbsRegion() { ibv_dereg_mr(region_); }

}  // namespace weightlane::prod
