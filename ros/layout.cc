// One pass in canonical order for the stream, one in the order of addresses for the memory: what
// touches is registered once, and what overlaps is refused by name (nixl #1392: registration
// costs).
#include "ros/layout.h"

#include <algorithm>

#include "net/digest.h"

namespace weightlane::ros {

namespace {

Result<Done> check_names(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return Done{};
  return Error{ErrorCode::kInvalidArgument,
               "two tensors are named \"" + std::string(*twice) + "\""};
}

net::LayoutSummary summarise(const std::vector<TensorSpec>& tensors) {
  net::DigestBuilder digest;
  net::LayoutSummary summary;
  for (const TensorSpec& tensor : tensors) {
    digest.add(tensor.name);
    digest.add(tensor.dtype);
    digest.add(tensor.shape.size());
    for (uint64_t extent : tensor.shape) digest.add(extent);
    digest.add(tensor.memory.length);
    summary.bytes += tensor.memory.length;
  }
  const net::Digest value = digest.finish();
  summary.digest_high = value.high;
  summary.digest_low = value.low;
  summary.tensors = tensors.size();
  return summary;
}

}  // namespace

Result<Layout> Layout::build(const std::vector<TensorSpec>& tensors, uint64_t slice_bytes) {
  if (slice_bytes == 0)
    return Error{ErrorCode::kInvalidArgument, "slice_bytes is 0, must be at least 1"};
  if (Result<Done> unique = check_names(tensors); !unique) return unique.error();
  Layout layout;
  layout.slice_bytes_ = slice_bytes;
  layout.summary_ = summarise(tensors);

  std::vector<size_t> order;  // canonical
  order.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].memory.length < kSmallTensorBytes) order.push_back(i);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].memory.length >= kSmallTensorBytes) order.push_back(i);

  // Memory: sorted by device and address, touching ranges merged.
  std::vector<uint32_t> by_address(order.size());
  for (uint32_t i = 0; i < by_address.size(); ++i) by_address[i] = i;
  auto memory_of = [&](uint32_t canonical) -> const net::MemoryRange& {
    return tensors[order[canonical]].memory;
  };
  auto key = [&](uint32_t canonical) {
    const net::MemoryRange& m = memory_of(canonical);
    return std::make_tuple(m.device, m.device_index, m.address, m.length, canonical);
  };
  std::sort(by_address.begin(), by_address.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  layout.places_.resize(order.size());
  const TensorSpec* before = nullptr;
  for (uint32_t canonical : by_address) {
    const TensorSpec& tensor = tensors[order[canonical]];
    const net::MemoryRange& memory = tensor.memory;
    if (memory.length == 0) continue;
    if (memory.address + memory.length < memory.address)
      return Error{ErrorCode::kInvalidArgument,
                   "memory of tensor \"" + tensor.name + "\" wraps around"};
    net::MemoryRange* last = layout.ranges_.empty() ? nullptr : &layout.ranges_.back();
    const bool same_device = last != nullptr && last->device == memory.device &&
                             last->device_index == memory.device_index;
    if (same_device && memory.address < last->address + last->length)
      return Error{ErrorCode::kInvalidArgument, "tensors \"" + before->name + "\" and \"" +
                                                    tensor.name + "\" overlap in memory"};
    if (same_device && memory.address == last->address + last->length)
      last->length += memory.length;
    else
      layout.ranges_.push_back(memory);
    before = &tensor;
    const net::MemoryRange& range = layout.ranges_.back();
    layout.places_[canonical] = {static_cast<uint32_t>(layout.ranges_.size() - 1),
                                 memory.address - range.address};
  }

  uint64_t stream = 0;
  for (uint32_t canonical = 0; canonical < order.size(); ++canonical) {
    const TensorSpec& tensor = tensors[order[canonical]];
    layout.lengths_.push_back(tensor.memory.length);
    layout.names_.push_back(tensor.name);
    for (uint64_t offset = 0; offset < tensor.memory.length;) {
      const uint64_t length = std::min(slice_bytes, tensor.memory.length - offset);
      stream += length;
      layout.slices_.push_back({canonical, offset, length, stream});
      offset += length;
    }
  }
  return layout;
}

Layout Layout::moved_to(net::MemoryRange memory) const {
  WL_ASSERT_OP(memory.length, ==, summary_.bytes);
  Layout moved = *this;
  moved.ranges_.clear();
  if (memory.length > 0) moved.ranges_.push_back(memory);
  uint64_t offset = 0;
  for (size_t i = 0; i < moved.places_.size(); ++i) {
    moved.places_[i] = {0, offset};
    offset += lengths_[i];
  }
  return moved;
}

size_t Layout::slices_below(uint64_t bytes) const {
  auto above =
      std::upper_bound(slices_.begin(), slices_.end(), bytes,
                       [](uint64_t limit, const Slice& slice) { return limit < slice.stream_end; });
  return static_cast<size_t>(above - slices_.begin());
}

}  // namespace weightlane::ros
