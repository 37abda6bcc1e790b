// What the fuzz targets share: the entry point, and a reader of scripts.
//
// A target is one function from bytes to nothing. It must not crash, leak, hang, or allocate far
// more than it was given, whatever the bytes are; what it can check beyond that (what decodes
// encodes to the same, what a peer is sent is what it may have) it asserts.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "flow/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace weightlane::fuzz {

// Makes a system call again while a signal interrupts it: a fuzzer's watch does.
template <typename Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Takes numbers off the front of an input; zeros behind its end.
class Script {
 public:
  Script(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  std::span<const uint8_t> rest() const { return rest_; }
  uint8_t u8() {
    if (rest_.empty()) return 0;
    const uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  uint16_t u16() {
    const uint16_t low = u8();
    const uint16_t high = u8();
    return static_cast<uint16_t>(low | high << 8);
  }
  // Less than `n`.
  uint32_t pick(uint32_t n) { return u8() % n; }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace weightlane::fuzz
