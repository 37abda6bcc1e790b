// Digest of a description (a tensor layout, a trace): 128 bits of XXH3, the same on every machine.
// Not for secrets.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace weightlane::net {

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest&) const = default;
};

class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(const DigestBuilder&) = delete;
  DigestBuilder& operator=(const DigestBuilder&) = delete;

  void add(uint64_t number);
  void add(std::string_view text);  // with its length, so that "ab","c" and "a","bc" differ
  Digest finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightlane::net
