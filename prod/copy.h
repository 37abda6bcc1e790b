// Copying out of memory that is shared with another process, as fast as one core can.
#pragma once

#include <cstdint>
#include <span>

#include "prod/checksum.h"

namespace weightlane::prod {

// `from` may be written meanwhile by others; the copy is then worth nothing, and nothing else
// happens. Non-temporal stores (1.3-1.6x of memcpy for what doesn't fit the cache), ordered before
// whatever the caller does next. `into` has room for all of `from`; nothing need be aligned.
void copy_streaming(uint8_t* into, std::span<const uint8_t> from);

// The same, and adds to `sum` exactly the bytes that were stored, whatever becomes of `from`
// meanwhile. (To sum the destination afterwards would fetch it back from memory: 40 % slower,
// measured.)
void copy_streaming_summed(uint8_t* into, std::span<const uint8_t> from, Checksum& sum);

}  // namespace weightlane::prod
