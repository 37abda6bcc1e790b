// XXH3 sees a byte string that is the same on every machine: numbers little endian, texts behind
// their length.
#include "net/digest.h"

#include <xxhash.h>

#include "flow/assert.h"

namespace weightlane::net {

struct DigestBuilder::State {
  XXH3_state_t* xxh = nullptr;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) {
  state_->xxh = XXH3_createState();
  WL_ASSERT(state_->xxh != nullptr);
  XXH3_128bits_reset(state_->xxh);
}

DigestBuilder::~DigestBuilder() { XXH3_freeState(state_->xxh); }

void DigestBuilder::add(uint64_t number) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(number >> (8 * i));
  XXH3_128bits_update(state_->xxh, bytes, sizeof bytes);
}

void DigestBuilder::add(std::string_view text) {
  add(static_cast<uint64_t>(text.size()));
  XXH3_128bits_update(state_->xxh, text.data(), text.size());
}

Digest DigestBuilder::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return {hash.high64, hash.low64};
}

}  // namespace weightlane::net
