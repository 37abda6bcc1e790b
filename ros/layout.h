// Layout: a shard's tensors as one stream of bytes, cut into slices.
//
// Progress, resuming and `proven` count bytes of this canonical stream: tensors under 2 MiB first,
// then the rest, each in registration order (DESIGN section 4). Both sides of a transfer have the
// same layout, so a position means the same tensor and offset on both. A slice is the unit of a
// READ and of a checksum; it never crosses a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flow/result.h"
#include "net/hello.h"
#include "net/messages.h"
#include "ros/shard_handle.h"

namespace weightlane::ros {

constexpr uint64_t kSmallTensorBytes = 2ull << 20;

struct Slice {
  uint32_t tensor = 0;         // place in canonical order
  uint64_t tensor_offset = 0;  // bytes
  uint64_t length = 0;         // bytes, 1 .. slice_bytes
  uint64_t stream_end = 0;     // bytes of the stream up to and including this slice
};

class Layout {
 public:
  // Errors: kInvalidArgument: two tensors of one name, memory that overlaps or wraps around,
  // slice_bytes 0.
  static Result<Layout> build(const std::vector<TensorSpec>& tensors, uint64_t slice_bytes);

  // The same tensors in one stretch of other memory, in canonical order; `memory` has
  // summary().bytes.
  Layout moved_to(net::MemoryRange memory) const;

  const net::LayoutSummary& summary() const { return summary_; }
  uint64_t slice_bytes() const { return slice_bytes_; }
  // In stream order. Empty tensors have none.
  const std::vector<Slice>& slices() const { return slices_; }
  // What to register: the tensors' memory, adjacent ranges as one.
  const std::vector<net::MemoryRange>& ranges() const { return ranges_; }
  // Canonical order: where tensor i lies, and how long and called what it is.
  const std::vector<net::TensorPlace>& places() const { return places_; }
  uint64_t tensor_bytes(uint32_t canonical) const { return lengths_[canonical]; }
  const std::string& tensor_name(uint32_t canonical) const { return names_[canonical]; }
  // How many whole slices lie below `bytes` of the stream.
  size_t slices_below(uint64_t bytes) const;

 private:
  net::LayoutSummary summary_;
  uint64_t slice_bytes_ = 0;
  std::vector<Slice> slices_;
  std::vector<net::MemoryRange> ranges_;
  std::vector<net::TensorPlace> places_;
  std::vector<uint64_t> lengths_;
  std::vector<std::string> names_;
};

}  // namespace weightlane::ros
