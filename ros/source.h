// Source: the serving side of a shard. Its control block is what readers trust, and nothing else.
//
// Control block (two registered words that outlive all queue pairs): word 0 is the stamp, random
// per publication or receive attempt, 0 = invalid; word 1 is `proven`, the bytes of the stream that
// are the content's. The order of stores is the protocol (DESIGN section 4, the seal):
//   show       proven, then stamp                  advance    proven only, never back
//   withdraw   stamp 0, and only then may the memory change; then the queue pairs go (the fence
//   saves work, no more)
//
// Digests (an option): a second block, word 0 the stamp once they are all there, then one checksum
// per slice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "flow/task_set.h"
#include "ros/layout.h"

namespace weightlane::ros {

class Source final : public net::Acceptor {
 public:
  // `name` is "model/replica/shard".
  Source(Environment environment, std::string name);
  ~Source() override;

  // Control block and endpoint. Errors: kResourceExhausted and what the plane says.
  Result<Done> start();
  const std::string& endpoint() const { return endpoint_; }

  // What is served. `layout` and `regions` (one per Layout::ranges) outlive the registration.
  Result<Done> set_layout(const Layout* layout, std::vector<net::RegionId> regions,
                          bool with_digests);
  // No READ is possible and no digest is being computed when it returns. The layout is forgotten.
  void clear_layout();

  // One more name of this handle: each server it opened at knows it by its own, and readers may
  // come from any of them. The newest few are answered to.
  void add_incarnation(Incarnation incarnation);
  // The stamp becomes valid. `content`: id 0 while a publisher does not know it yet; readers are
  // then refused.
  void show(Stamp stamp, net::Content content, uint64_t proven);
  void set_content(net::Content content) { content_ = content; }
  void advance(uint64_t proven);
  void withdraw();
  // After withdraw: until the thread that computes digests has left the memory.
  flow::Task<void> leave_memory();

  Stamp stamp() const { return stamp_; }
  uint64_t proven() const { return proven_; }
  const net::Content& content() const { return content_; }
  // Readers known to be connected; may count some that are gone.
  size_t connected_readers() const;

  // Digests: the origin computes them, a receiver fills in what it has read and verified.
  net::RegionId digest_words() const { return digest_words_; }
  bool has_digests() const { return digest_words_.value != 0; }
  void compute_digests();
  void digests_ready();

  net::AcceptDecision on_connect(std::span<const uint8_t> hello,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override;

 private:
  Result<Done> check_hello(const net::HelloMessage& hello) const;
  static flow::Task<void> compute_all(Source* self, Stamp stamp);

  Environment environment_;
  std::string name_;
  std::string endpoint_;
  net::RegionId control_;
  net::RegionId digest_words_;
  std::vector<Incarnation> incarnations_;  // oldest first
  const Layout* layout_ = nullptr;
  std::vector<net::RegionId> regions_;
  Stamp stamp_;
  net::Content content_;
  uint64_t proven_ = 0;
  mutable std::vector<std::unique_ptr<net::PassiveQueuePair>> readers_;
  flow::TaskSet tasks_;
};

// Words of the two blocks.
constexpr uint32_t kStampWord = 0;
constexpr uint32_t kProvenWord = 1;
constexpr uint32_t kDigestStampWord = 0;
constexpr uint32_t kFirstDigestWord = 1;

}  // namespace weightlane::ros
