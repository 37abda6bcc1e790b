// Goal: any set of tensors that does not overlap is a stream without holes; each byte of it lies in
// one slice, at the place of its tensor, inside a range to register; and any set that overlaps is
// refused.
// Method: RapidCheck draws tensors on a line of addresses, with gaps and without, shuffled, and
// slice sizes; a byte map is the model.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "flow/random.h"
#include "ros/layout.h"

namespace weightlane::ros::testing {
namespace {

struct Drawn {
  std::vector<TensorSpec> tensors;
  bool overlap = false;
};

Drawn draw_tensors() {
  const auto pieces = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(-3, 20), rc::gen::inRange(0, 300)));
  const uint64_t scale = *rc::gen::element<uint64_t>(1, 4096, 20'000);  // some above 2 MiB
  const auto seed = *rc::gen::inRange<uint64_t>(0, 1000);
  Drawn drawn;
  uint64_t end = 1'000'000;
  for (const auto& [gap, length] : pieces) {
    uint64_t address = end;
    if (gap > 10) address += static_cast<uint64_t>(gap) * scale;
    const uint64_t bytes = static_cast<uint64_t>(length) * scale;
    if (gap == -3 && bytes > 0 && end > 1'000'000) {  // reaches into what was before
      address -= 1;
      drawn.overlap = true;
    }
    drawn.tensors.push_back({"t" + std::to_string(drawn.tensors.size()),
                             "U8",
                             {bytes},
                             {address, bytes, net::Device::kHost, 0}});
    if (address + bytes > end) end = address + bytes;
  }
  flow::Rng rng(seed);
  for (size_t i = drawn.tensors.size(); i > 1; --i)
    std::swap(drawn.tensors[i - 1], drawn.tensors[rng.below(i)]);
  return drawn;
}

RC_GTEST_PROP(LayoutModel, IsAStreamWithoutHoles, ()) {
  const Drawn drawn = draw_tensors();
  uint64_t total = 0;
  for (const TensorSpec& tensor : drawn.tensors) total += tensor.memory.length;
  const uint64_t drawn_slice = *rc::gen::element<uint64_t>(1, 3, 4096, 100'000, 1ull << 32);
  const uint64_t slice_bytes = std::max(drawn_slice, total / 20'000);  // few enough to look at
  Result<Layout> result = Layout::build(drawn.tensors, slice_bytes);
  RC_ASSERT(result.ok() == !drawn.overlap);
  if (!result.ok()) return;
  const Layout& layout = *result;

  std::map<std::string, const TensorSpec*> by_name;
  for (const TensorSpec& tensor : drawn.tensors) by_name[tensor.name] = &tensor;
  // Ranges: apart and not touching, in order.
  for (size_t i = 1; i < layout.ranges().size(); ++i)
    RC_ASSERT(layout.ranges()[i - 1].address + layout.ranges()[i - 1].length <
              layout.ranges()[i].address);
  // Places: where the application has the tensor.
  RC_ASSERT(layout.places().size() == drawn.tensors.size());
  for (uint32_t i = 0; i < layout.places().size(); ++i) {
    const net::MemoryRange& memory = by_name.at(layout.tensor_name(i))->memory;
    RC_ASSERT(layout.tensor_bytes(i) == memory.length);
    if (memory.length == 0) continue;
    const net::TensorPlace& place = layout.places()[i];
    const net::MemoryRange& range = layout.ranges()[place.region];
    RC_ASSERT(range.address + place.offset == memory.address);
    RC_ASSERT(place.offset + memory.length <= range.length);
  }
  // Slices: tensor by tensor, without a hole.
  uint64_t stream = 0;
  uint32_t tensor = 0;
  uint64_t offset = 0;
  for (const Slice& slice : layout.slices()) {
    while (offset == layout.tensor_bytes(tensor)) {
      ++tensor;
      offset = 0;
    }
    RC_ASSERT(slice.tensor == tensor);
    RC_ASSERT(slice.tensor_offset == offset);
    RC_ASSERT(slice.length > 0u);
    RC_ASSERT(slice.length <= slice_bytes);
    RC_ASSERT(slice.length == std::min(slice_bytes, layout.tensor_bytes(tensor) - offset));
    offset += slice.length;
    stream += slice.length;
    RC_ASSERT(slice.stream_end == stream);
  }
  RC_ASSERT(stream == layout.summary().bytes);
  const uint64_t at = stream == 0 ? 0 : *rc::gen::inRange<uint64_t>(0, stream + 1);
  const size_t below = layout.slices_below(at);
  if (below > 0) RC_ASSERT(layout.slices()[below - 1].stream_end <= at);
  if (below < layout.slices().size()) RC_ASSERT(layout.slices()[below].stream_end > at);
}

}  // namespace
}  // namespace weightlane::ros::testing
