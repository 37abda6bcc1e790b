// Network: which host can be reached from which, per plane and per direction, right now.
//
// A cut blocks every path from one set of hosts to another, on one plane or both; cuts add up. What
// a blocked path does to traffic is up to the planes: they are told when paths change.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/choices.h"

namespace weightlane::sim {

// A set of hosts is a 64-bit mask: cuts and checkers know hosts below this. A world without either
// may have more.
constexpr uint32_t kHostsMost = 64;

enum class Plane : uint8_t { kControl, kData };

constexpr uint64_t host_bit(HostId host) { return 1ull << host.value; }

struct Cut {
  bool control = false;
  bool data = false;
  uint64_t from = 0;  // masks of host_bit
  uint64_t to = 0;
};
using CutId = StrongId<struct CutTag, uint64_t>;

class Network {
 public:
  bool blocked(Plane plane, HostId from, HostId to) const {
    if (cuts_.empty() || from.value >= kHostsMost || to.value >= kHostsMost) return false;
    return (rows_[static_cast<size_t>(plane)][from.value] & host_bit(to)) != 0;
  }
  // Either direction.
  bool cut_off(Plane plane, HostId a, HostId b) const {
    return blocked(plane, a, b) || blocked(plane, b, a);
  }
  CutId cut(Cut cut);
  // False when there is no such cut any more.
  bool mend(CutId id);
  void mend_all();
  size_t cuts() const { return cuts_.size(); }

 private:
  struct Active {
    CutId id;
    Cut cut;
  };
  void rebuild();

  uint64_t next_ = 1;
  std::vector<Active> cuts_;
  std::array<std::array<uint64_t, kHostsMost>, 2> rows_{};
};

}  // namespace weightlane::sim
