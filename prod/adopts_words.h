// What the composite plane needs of its parts beyond DataPlane: words (control blocks, landing
// words) in memory that somebody else owns, so that one block serves readers of every transport.
#pragma once

#include "flow/result.h"
#include "net/data_plane.h"

namespace weightlane::prod {

class AdoptsWords {
 public:
  // `words` is aligned host memory, a multiple of 8 bytes long, that stays until after the plane's
  // free_words() for the id returned. kResourceExhausted.
  virtual Result<net::RegionId> adopt_words(net::MemoryRange words) = 0;

 protected:
  ~AdoptsWords() = default;
};

}  // namespace weightlane::prod
