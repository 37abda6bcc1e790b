// See pair.h.
#include "tests/conformance/pair.h"

#include <utility>

namespace weightlane::conformance {

namespace {
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}
}  // namespace

Bytes pattern(uint64_t seed, uint64_t offset, uint64_t length) {
  Bytes bytes(length);
  uint64_t word = 0;
  for (uint64_t i = 0; i < length; ++i) {
    const uint64_t at = offset + i;
    if (i == 0 || at % 8 == 0) word = mix(mix(seed + 1) + at / 8);
    bytes[i] = static_cast<uint8_t>(word >> (at % 8 * 8));
  }
  return bytes;
}

net::AcceptDecision TestAcceptor::on_connect(std::span<const uint8_t> hello,
                                             std::unique_ptr<net::PassiveQueuePair> pair) {
  last_hello.assign(hello.begin(), hello.end());
  if (refusal) return *refusal;
  pairs.push_back(std::move(pair));
  return net::Accept{payload};
}

void Conformance::SetUp() {
  world_ = GetParam().make();
  Result<std::string> endpoint = source().plane().listen(&acceptor_);
  ASSERT_TRUE(endpoint.ok()) << endpoint.error().message;
  endpoint_ = std::move(endpoint).value();
}

void Conformance::TearDown() {
  if (world_ == nullptr) return;
  source().plane().stop_listening(&acceptor_);
  acceptor_.pairs.clear();
  world_.reset();
}

void Conformance::run(Task<void> (*body)(Conformance*), Nanos limit) {
  if (HasFatalFailure()) return;
  EXPECT_TRUE(world_->run(body(this), limit)) << "the test did not end in time";
}

Task<Memory> Conformance::memory(Host* host, uint64_t bytes) {
  Memory memory;
  memory.range = host->allocate(bytes);
  const Result<RegionId> region = co_await host->plane().register_memory(memory.range);
  EXPECT_TRUE(region.ok()) << region.error().message;
  if (region.ok()) memory.region = region.value();
  co_return memory;
}

Task<Link> Conformance::connect(Conformance* self) {
  Link link;
  link.wake = std::make_unique<flow::Signal>(self->reader().runtime());
  const size_t before = self->acceptor_.pairs.size();
  Result<net::Connected> connected = co_await self->reader().plane().connect(
      self->endpoint_, Bytes{'h', 'i'}, link.wake.get(), self->soon());
  EXPECT_TRUE(connected.ok()) << connected.error().message;
  EXPECT_EQ(self->acceptor_.pairs.size(), before + 1);
  if (connected.ok()) {
    link.pair = std::move(connected->pair);
    link.payload = std::move(connected->payload);
    link.passive = self->acceptor_.pairs.back().get();
  }
  co_return link;
}

Task<std::optional<Completion>> Conformance::next(Conformance* self, Link* link) {
  const Nanos deadline = self->soon();
  for (;;) {
    std::optional<Completion> completion = link->pair->poll();
    if (completion) co_return completion;
    const bool woken = co_await link->wake->wait_until(deadline);
    if (woken) continue;
    completion = link->pair->poll();
    EXPECT_TRUE(completion.has_value()) << "no completion came";
    co_return completion;
  }
}

Task<Completion> Conformance::read(Conformance* self, Link* link, ReadWork work) {
  Completion failed;
  failed.status = CompletionStatus::kGeneral;
  const PostResult posted = link->pair->post_read(work);
  EXPECT_EQ(posted, PostResult::kPosted);
  if (posted != PostResult::kPosted) co_return failed;
  const std::optional<Completion> completion = co_await next(self, link);
  if (!completion) co_return failed;
  EXPECT_EQ(completion->work_id, work.work_id);
  co_return *completion;
}

Task<void> Conformance::destroy(Conformance* self, Link* link) {
  const Result<Done> destroyed = co_await link->pair->destroy(self->soon());
  EXPECT_TRUE(destroyed.ok()) << destroyed.error().message;
  link->pair.reset();
}

INSTANTIATE_TEST_SUITE_P(Plane, Conformance, ::testing::ValuesIn(factories()),
                         [](const ::testing::TestParamInfo<Factory>& info) {
                           return info.param.name;
                         });

}  // namespace weightlane::conformance
