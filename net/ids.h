// The names that cross the wire, as strong types: two of them cannot be swapped by mistake.
//
// Identity of content is (model, generation, version, content id): the server assigns the content
// id at the first publish, so a version number used again for other bytes is another content
// (DESIGN section 4).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace weightlane {

template <typename Tag, typename Value>
struct StrongId {
  Value value{};
  constexpr auto operator<=>(const StrongId&) const = default;
};

using VersionId = StrongId<struct VersionTag, uint64_t>;
using Generation = StrongId<struct GenerationTag, uint64_t>;
using ContentId = StrongId<struct ContentTag, uint64_t>;
using ShardIndex = StrongId<struct ShardTag, uint32_t>;
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;  // random per open(); 0 = nobody
using AssignmentId = StrongId<struct AssignmentTag,
                              uint64_t>;  // one reader shard reading one source shard; 0 = none
using CallNumber =
    StrongId<struct CallTag, uint64_t>;  // the n of "n-th call of every shard", from 1
using Stamp =
    StrongId<struct StampTag, uint64_t>;  // random per publication or receive attempt; 0 = invalid
using BootId = StrongId<struct BootTag, uint64_t>;  // random per start of a reference server

using Bytes = std::vector<uint8_t>;

}  // namespace weightlane
