// ISA-L takes an int for the length, so long spans go in pieces; its crc32_iscsi neither begins nor
// ends with the customary inversion.
#include "prod/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace weightlane::prod {
namespace {
constexpr size_t kPieceMax = 1u << 30;
}

void Checksum::add(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const size_t piece = std::min(bytes.size(), kPieceMax);
    // The parameter is not const in this version, and nothing is written through it.
    crc_ = crc32_iscsi(const_cast<uint8_t*>(bytes.data()), static_cast<int>(piece), crc_);
    bytes = bytes.subspan(piece);
  }
}

}  // namespace weightlane::prod
