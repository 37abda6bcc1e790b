// Cuts are few and change rarely, questions are many: every change lays the cuts over each other
// anew, into one row of bits per host and plane.
#include "sim/network.h"

#include <algorithm>

#include "flow/assert.h"

namespace weightlane::sim {

CutId Network::cut(Cut cut) {
  WL_ASSERT(cut.control || cut.data);
  const CutId id{next_++};
  cuts_.push_back({id, cut});
  rebuild();
  return id;
}

bool Network::mend(CutId id) {
  const auto found = std::find_if(cuts_.begin(), cuts_.end(),
                                  [id](const Active& active) { return active.id == id; });
  if (found == cuts_.end()) return false;
  cuts_.erase(found);
  rebuild();
  return true;
}

void Network::mend_all() {
  cuts_.clear();
  rebuild();
}

void Network::rebuild() {
  rows_ = {};
  for (const Active& active : cuts_) {
    for (uint32_t from = 0; from < kHostsMost; ++from) {
      if ((active.cut.from & host_bit({from})) == 0) continue;
      const uint64_t others = active.cut.to & ~host_bit({from});
      if (active.cut.control) rows_[static_cast<size_t>(Plane::kControl)][from] |= others;
      if (active.cut.data) rows_[static_cast<size_t>(Plane::kData)][from] |= others;
    }
  }
}

}  // namespace weightlane::sim
