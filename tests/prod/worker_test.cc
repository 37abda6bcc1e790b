// Goal: the blocking face end to end: publish, replicate, update, unpublish and close from ordinary
// threads, over a real server and real sockets; deadlines; errors in words.
// Method: a server and several workers in this process, each with its own thread, on loopback, over
// TCP; the bytes are compared.
#include "prod/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "prod/event_loop.h"
#include "prod/rpc.h"
#include "ros/server.h"

namespace weightlane::prod {
namespace {

class ServerThread {
 public:
  explicit ServerThread(ros::ServerOptions options = {}) {
    std::promise<std::pair<EventLoop*, std::string>> started;
    auto result = started.get_future();
    thread_ = std::thread([&started, options] {
      Log log({LogLevel::kWarning, LogFormat::kKeyValue, {}});
      EventLoop loop;
      RpcControlPlane control(&loop, &log);
      const auto server =
          ros::Server::start(&loop.runtime(), &control, "127.0.0.1:0", options, nullptr).value();
      started.set_value({&loop, server->address()});
      loop.run();
    });
    std::tie(loop_, address_) = result.get();
  }
  ~ServerThread() {
    loop_->stop();
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  EventLoop* loop_ = nullptr;
  std::string address_;
  std::thread thread_;
};

// One shard's worth of weights in shared memory.
struct Weights {
  Weights(Worker& worker, uint64_t bytes) : memory(worker.allocate(bytes).value()) {}
  void fill(uint8_t seed) {
    for (uint64_t i = 0; i < memory.size(); ++i) {
      memory.data()[i] = static_cast<uint8_t>(seed + i * 31 + (i >> 12));
    }
  }
  bool equals(const Weights& other) const {
    return std::memcmp(memory.data(), other.memory.data(), memory.size()) == 0;
  }
  std::vector<ros::TensorSpec> tensors() const {
    const auto at = reinterpret_cast<uint64_t>(memory.data());
    const uint64_t head = memory.size() / 4;
    return {{"head", "U8", {head}, {at, head}},
            {"body", "U8", {memory.size() - head}, {at + head, memory.size() - head}}};
  }
  SharedMemory memory;
};

struct Peer {
  Peer(const ServerThread& server, const std::string& replica, uint32_t shard = 0,
       uint32_t shards = 1, uint64_t bytes = 8 << 20, const std::string& transport = "tcp") {
    WorkerOptions options;
    options.transport = transport;
    options.data_host = "127.0.0.1";
    worker = Worker::start(options).value();
    weights = std::make_unique<Weights>(*worker, bytes);
    ros::OpenOptions open;
    open.model = "model";
    open.replica = replica;
    open.shard.value = shard;
    open.num_shards = shards;
    open.servers = {server.address()};
    handle = worker->open(open, seconds(10)).value();
    const Result<Done> done = handle->register_tensors(weights->tensors());
    if (!done) ADD_FAILURE() << done.error().message;
  }
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<WorkerHandle> handle;
};

template <typename T>
std::string text(const Result<T>& result) {
  return result ? "ok"
                : std::string(error_code_name(result.error().code)) + ": " + result.error().message;
}

TEST(Worker, PublishReplicateUpdateUnpublishClose) {
  const ServerThread server;
  Peer trainer(server, "trainer");
  Peer rollout(server, "rollout");
  trainer.weights->fill(1);
  ASSERT_EQ(text(trainer.handle->publish(VersionId{1}, seconds(10))), "ok");
  EXPECT_EQ(trainer.handle->holds(), VersionId{1});

  const Result<VersionId> got = rollout.handle->replicate({}, seconds(20));
  ASSERT_EQ(text(got), "ok");
  EXPECT_EQ(*got, VersionId{1});
  EXPECT_TRUE(rollout.weights->equals(*trainer.weights));
  EXPECT_EQ(rollout.handle->state(), ros::HandleState::kPublished);
  EXPECT_EQ(rollout.handle->progress().sealed_bytes, uint64_t{8} << 20);

  // Nothing newer: nothing is done.
  const auto nothing = rollout.handle->update({}, seconds(20));
  ASSERT_EQ(text(nothing), "ok");
  EXPECT_EQ(*nothing, std::nullopt);

  ASSERT_EQ(text(trainer.handle->unpublish(seconds(10))), "ok");
  trainer.weights->fill(2);
  ASSERT_EQ(text(trainer.handle->publish(VersionId{2}, seconds(10))), "ok");
  const auto newer = rollout.handle->update({}, seconds(20));
  ASSERT_EQ(text(newer), "ok");
  EXPECT_EQ(*newer, VersionId{2});
  EXPECT_TRUE(rollout.weights->equals(*trainer.weights));

  const auto listed = trainer.worker->list(server.address(), "model", seconds(5));
  ASSERT_EQ(text(listed), "ok");
  EXPECT_EQ(listed->replicas.size(), 2U);
  EXPECT_EQ(text(trainer.handle->close(seconds(10))), "ok");
  EXPECT_EQ(text(rollout.handle->close(seconds(10))), "ok");
  EXPECT_EQ(rollout.handle->registered_bytes(), 0U);
}

class WorkerTransports : public testing::TestWithParam<std::pair<const char*, const char*>> {};

// Who forces a transport and who takes any can read from each other.
TEST_P(WorkerTransports, CarryAVersion) {
  const ServerThread server;
  Peer trainer(server, "trainer", 0, 1, 8 << 20, GetParam().first);
  Peer rollout(server, "rollout", 0, 1, 8 << 20, GetParam().second);
  trainer.weights->fill(9);
  ASSERT_EQ(text(trainer.handle->publish(VersionId{1}, seconds(10))), "ok");
  ASSERT_EQ(text(rollout.handle->replicate({}, seconds(20))), "ok");
  EXPECT_TRUE(rollout.weights->equals(*trainer.weights));
  EXPECT_EQ(text(rollout.handle->close(seconds(10))), "ok");
  EXPECT_EQ(text(trainer.handle->close(seconds(10))), "ok");
}

INSTANTIATE_TEST_SUITE_P(All, WorkerTransports,
                         testing::Values(std::pair("auto", "auto"), std::pair("auto", "tcp"),
                                         std::pair("same-host", "auto"),
                                         std::pair("same-host", "same-host"),
                                         std::pair("tcp", "auto")));

TEST(Worker, TwoShardsOfAReplicaFromTwoThreads) {
  const ServerThread server;
  std::vector<std::unique_ptr<Peer>> trainers;
  std::vector<std::unique_ptr<Peer>> rollouts;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    trainers.push_back(std::make_unique<Peer>(server, "trainer", shard, 2, 3 << 20));
    rollouts.push_back(std::make_unique<Peer>(server, "rollout", shard, 2, 3 << 20));
    trainers[shard]->weights->fill(static_cast<uint8_t>(10 + shard));
  }
  std::vector<std::thread> threads;
  for (auto& peer : rollouts) {
    threads.emplace_back([&peer] {  // waits for what is published after it has asked
      const auto got = peer->handle->replicate({}, seconds(30));
      EXPECT_EQ(text(got), "ok");
    });
  }
  for (auto& peer : trainers) {
    threads.emplace_back(
        [&peer] { EXPECT_EQ(text(peer->handle->publish(VersionId{7}, seconds(10))), "ok"); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t shard = 0; shard < 2; ++shard) {
    EXPECT_TRUE(rollouts[shard]->weights->equals(*trainers[shard]->weights));
    EXPECT_EQ(rollouts[shard]->handle->holds(), VersionId{7});
  }
}

TEST(Worker, ACallersDeadlineIsKept) {
  ros::ServerOptions options;
  options.missing_member = seconds(3);
  const ServerThread server(options);
  Peer alone(server, "trainer", 0, 2);
  // Its other shard never calls: replicate ends by the group's time, and names it.
  const auto result = alone.handle->replicate({}, millis(500));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kTimeout) << text(result);
}

TEST(Worker, CallsThatTheStateForbidsSayWhichStateItIs) {
  const ServerThread server;
  Peer trainer(server, "trainer");
  const Result<Done> result = trainer.handle->unpublish(seconds(5));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kWrongState);
  EXPECT_NE(result.error().message.find("registered"), std::string::npos) << text(result);
}

TEST(Worker, OpenWithoutAServerEndsInTime) {
  WorkerOptions options;
  options.transport = "tcp";
  const auto worker = Worker::start(options).value();
  ros::OpenOptions open;
  open.model = "model";
  open.replica = "r";
  open.servers = {"127.0.0.1:1"};
  const auto before = std::chrono::steady_clock::now();
  const auto handle = worker->open(open, millis(400));
  ASSERT_FALSE(handle.ok());
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(handle.error().code, ErrorCode::kServerLost) << text(handle);
}

TEST(Worker, ATransportThatIsNoneIsRefused) {
  WorkerOptions options;
  options.transport = "pigeon";
  const auto worker = Worker::start(options);
  ASSERT_FALSE(worker.ok());
  EXPECT_EQ(worker.error().message,
            "transport \"pigeon\" is not one of auto, same-host, tcp, verbs");
}

TEST(Worker, AHandleDroppedWithoutCloseAndProgressFromAnotherThread) {
  const ServerThread server;
  Peer trainer(server, "trainer", 0, 1, 64 << 20);
  Peer rollout(server, "rollout", 0, 1, 64 << 20);
  trainer.weights->fill(3);
  ASSERT_EQ(text(trainer.handle->publish(VersionId{1}, seconds(10))), "ok");
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    while (!stop) (void)rollout.handle->progress();
  });
  EXPECT_EQ(text(rollout.handle->replicate({}, seconds(60))), "ok");
  stop = true;
  watcher.join();
  trainer.handle.reset();
  rollout.handle.reset();
}

}  // namespace
}  // namespace weightlane::prod
