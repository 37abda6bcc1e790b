// Goal: show that a program in the Soft-RoCE guest meets real verbs, and which statuses it must be
// ready for. Method: an owner process registers memory and obeys one-letter orders; the reader
// posts single RC READs into its own buffer and compares the completion with what verbs promise.
// Only libibverbs, nothing of the project: when a test of the verbs plane fails and this passes,
// the plane is to blame and not the guest.
//   smoke [READER-DEVICE [OWNER-DEVICE]]    with two devices the link between them is cut and
//   healed too (rxe-link)
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#define REQUIRE(condition)                                                                        \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "smoke: %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
      _exit(1);                                                                                   \
    }                                                                                             \
  } while (0)

namespace {

constexpr size_t kBytes = 64 * 1024;
constexpr uint8_t kTimeout = 14;  // 4.096 us x 2^14 = 67 ms for each of 1 + kRetries tries: 0.27 s
constexpr uint8_t kRetries = 3;   // never 7: on rxe that means for ever

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint8_t pattern(size_t i) { return static_cast<uint8_t>((i * 2654435761u) >> 11); }

struct Address {
  ibv_gid gid;
  uint32_t queue_pair, psn, key;
  uint64_t memory;
};

// One device opened, with a queue pair and a registered buffer.
struct End {
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* queue = nullptr;
  ibv_qp* pair = nullptr;
  ibv_mr* region = nullptr;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(kBytes);
  ibv_gid gid{};
  uint8_t gid_index = 0;

  explicit End(const char* name) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    REQUIRE(devices != nullptr && count > 0);
    for (int i = 0; i < count && context == nullptr; ++i) {
      if (strcmp(ibv_get_device_name(devices[i]), name) == 0) context = ibv_open_device(devices[i]);
    }
    REQUIRE(context != nullptr);
    ibv_free_device_list(devices);
    find_gid();
    REQUIRE((domain = ibv_alloc_pd(context)) != nullptr);
    REQUIRE((channel = ibv_create_comp_channel(context)) != nullptr);
    REQUIRE((queue = ibv_create_cq(context, 16, nullptr, channel, 0)) != nullptr);
    REQUIRE((region = ibv_reg_mr(domain, bytes.data(), kBytes,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)));
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = queue;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {.max_send_wr = 8,
                      .max_recv_wr = 1,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_data = 0};
    REQUIRE((pair = ibv_create_qp(domain, &attributes)) != nullptr);
  }

  // The index of the IPv4-mapped RoCE v2 entry isn't fixed, so it is looked for.
  void find_gid() {
    static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    for (uint8_t i = 0; i < 16; ++i) {
      ibv_gid_entry entry{};
      if (ibv_query_gid_ex(context, 1, i, &entry, 0) != 0) continue;
      if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 ||
          memcmp(entry.gid.raw, kMapped, sizeof kMapped) != 0)
        continue;
      gid = entry.gid;
      gid_index = i;
      return;
    }
    fprintf(stderr, "smoke: no IPv4 RoCE v2 address on %s\n", ibv_get_device_name(context->device));
    _exit(1);
  }

  Address address() const {
    return {gid, pair->qp_num, 1000, region->rkey, reinterpret_cast<uint64_t>(bytes.data())};
  }

  void connect(const Address& peer) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_READ;
    REQUIRE(!ibv_modify_qp(pair, &a,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    a = {};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_4096;
    a.dest_qp_num = peer.queue_pair;
    a.rq_psn = peer.psn;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = peer.gid;
    a.ah_attr.grh.sgid_index = gid_index;
    a.ah_attr.grh.hop_limit = 64;
    REQUIRE(!ibv_modify_qp(pair, &a,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    a = {};
    a.qp_state = IBV_QPS_RTS;
    a.timeout = kTimeout;
    a.retry_cnt = kRetries;
    a.rnr_retry = 1;
    a.sq_psn = 1000;
    a.max_rd_atomic = 4;
    REQUIRE(!ibv_modify_qp(pair, &a,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
  }

  int read(const Address& peer, uint32_t key) {
    ibv_sge place{reinterpret_cast<uint64_t>(bytes.data()), kBytes, region->lkey};
    ibv_send_wr work{};
    work.sg_list = &place;
    work.num_sge = 1;
    work.opcode = IBV_WR_RDMA_READ;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma = {.remote_addr = peer.memory, .rkey = key};
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(pair, &work, &bad) == 0);
    return completion(20);
  }

  // Sleeps on the channel: a busy poll takes the processor from the soft interrupt that does the
  // transfer.
  int completion(double limit) {
    const double end = seconds() + limit;
    for (;;) {
      ibv_wc wc{};
      REQUIRE(ibv_req_notify_cq(queue, 0) == 0);
      if (ibv_poll_cq(queue, 1, &wc) == 1) return wc.status;
      pollfd ready{channel->fd, POLLIN, 0};
      const int left = static_cast<int>((end - seconds()) * 1000);
      if (left <= 0) return -1;
      if (poll(&ready, 1, left) == 1) {
        ibv_cq* which = nullptr;
        void* context_of = nullptr;
        REQUIRE(ibv_get_cq_event(channel, &which, &context_of) == 0);
        ibv_ack_cq_events(which, 1);
      }
    }
  }
};

void send_all(int fd, const void* data, size_t size) {
  REQUIRE(write(fd, data, size) == static_cast<ssize_t>(size));
}
void receive_all(int fd, void* data, size_t size) {
  REQUIRE(recv(fd, data, size, MSG_WAITALL) == static_cast<ssize_t>(size));
}

[[noreturn]] void owner(int fd, const char* device) {
  End end(device);
  for (size_t i = 0; i < kBytes; ++i) end.bytes[i] = pattern(i);
  Address mine = end.address(), peer{};
  send_all(fd, &mine, sizeof mine);
  receive_all(fd, &peer, sizeof peer);
  end.connect(peer);
  char order = 'r';
  do {
    if (order == 'd') REQUIRE(ibv_dereg_mr(end.region) == 0);
    send_all(fd, &order, 1);
  } while (recv(fd, &order, 1, 0) == 1);
  _exit(0);
}

// A reader and its owner process.
struct Session {
  int fd = -1;
  pid_t child = 0;
  Address peer{};
  std::vector<End> end;

  Session(const char* reader, const char* other) {
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    fflush(stdout);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(sockets[0]);
      owner(sockets[1], other);
    }
    close(sockets[1]);
    fd = sockets[0];
    end.emplace_back(reader);
    Address mine = end[0].address();
    receive_all(fd, &peer, sizeof peer);
    send_all(fd, &mine, sizeof mine);
    end[0].connect(peer);
    char ready = 0;
    receive_all(fd, &ready, 1);
  }
  ~Session() {
    kill_owner();
    close(fd);
  }
  void kill_owner() {
    if (child == 0) return;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    child = 0;
  }
  void order(char c) {
    send_all(fd, &c, 1);
    receive_all(fd, &c, 1);
  }
  int read() { return end[0].read(peer, peer.key); }
  bool right() const {
    for (size_t i = 0; i < kBytes; ++i) {
      if (end[0].bytes[i] != pattern(i)) return false;
    }
    return true;
  }
};

int failures = 0;
void expect(const char* what, bool holds, int status, double took) {
  printf("smoke: %s %s: %s, %.3f s\n", holds ? "ok  " : "FAIL", what,
         status < 0 ? "no completion" : ibv_wc_status_str(static_cast<ibv_wc_status>(status)),
         took);
  failures += holds ? 0 : 1;
}

struct Outcome {
  int status;
  double took;
};
Outcome timed_read(Session& session) {
  const double start = seconds();
  const int status = session.read();
  return {status, seconds() - start};
}

void retries_run_out(const char* what, Session& session) {
  const double nominal = 4.096e-6 * (1 << kTimeout) * (kRetries + 1);
  const Outcome outcome = timed_read(session);
  expect(what,
         outcome.status == IBV_WC_RETRY_EXC_ERR && outcome.took > nominal * 0.5 &&
             outcome.took < nominal * 4 + 2,
         outcome.status, outcome.took);
}

}  // namespace

int main(int argc, char** argv) {
  const char* reader = argc > 1 ? argv[1] : "rxe0";
  const char* other = argc > 2 ? argv[2] : reader;
  {
    Session session(reader, other);
    Outcome outcome = timed_read(session);
    expect("READ of 64 KiB, every byte right", outcome.status == IBV_WC_SUCCESS && session.right(),
           outcome.status, outcome.took);
    kill(session.child, SIGSTOP);
    outcome = timed_read(session);
    expect("a stopped owner still serves READs (F12)", outcome.status == IBV_WC_SUCCESS,
           outcome.status, outcome.took);
  }
  {
    Session session(reader, other);
    REQUIRE(session.read() == IBV_WC_SUCCESS);
    session.order('d');
    Outcome outcome = timed_read(session);
    expect("a key deregistered (F16)", outcome.status == IBV_WC_REM_ACCESS_ERR, outcome.status,
           outcome.took);
    outcome = timed_read(session);
    expect("the queue pair is dead after it (S2)", outcome.status == IBV_WC_WR_FLUSH_ERR,
           outcome.status, outcome.took);
  }
  {
    Session session(reader, other);
    REQUIRE(session.read() == IBV_WC_SUCCESS);
    session.kill_owner();
    retries_run_out("a dead owner (F10)", session);
  }
  if (strcmp(reader, other) != 0) {
    Session session(reader, other);
    REQUIRE(session.read() == IBV_WC_SUCCESS);
    REQUIRE(system("rxe-link cut") == 0);
    retries_run_out("a link that is cut (F4)", session);
    REQUIRE(system("rxe-link heal") == 0);
    Session again(reader, other);
    const Outcome outcome = timed_read(again);
    expect("healed, with a new queue pair", outcome.status == IBV_WC_SUCCESS && again.right(),
           outcome.status, outcome.took);
  }
  printf("smoke: %s\n", failures == 0 ? "PASSED" : "FAILED");
  return failures == 0 ? 0 : 1;
}
