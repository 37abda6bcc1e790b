// The JSON header of a safetensors file.
//
// What parses must be what its holder relies on: tensors in order, without gap or overlap, each of
// the size its dtype and shape say; and the canonical form must parse to the same layout.
#include "prod/safetensors.h"

#include "fuzz/target.h"

namespace weightlane::prod {
namespace {

void check_layout(const SafetensorsLayout& layout) {
  uint64_t at = 0;
  for (const SafetensorsEntry& tensor : layout.tensors) {
    WL_ASSERT(tensor.begin == at && tensor.end >= tensor.begin);
    at = tensor.end;
    // In 128 bits: the product must not have wrapped to fit.
    unsigned __int128 bits = safetensors_dtype_bits(tensor.dtype);
    WL_ASSERT(bits != 0);
    for (const uint64_t extent : tensor.shape) {
      bits *= extent;
      WL_ASSERT(bits <= static_cast<unsigned __int128>(UINT64_MAX) * 8 || extent == 0);
      if (bits == 0) break;
    }
    WL_ASSERT(bits == static_cast<unsigned __int128>(tensor.end - tensor.begin) * 8);
  }
  WL_ASSERT(at == layout.data_bytes);
}

}  // namespace
}  // namespace weightlane::prod

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane;
  using namespace weightlane::prod;
  const std::string_view header(reinterpret_cast<const char*>(data), size);
  const Result<SafetensorsLayout> layout = parse_safetensors_header(header, "input");
  if (!layout.ok()) {
    WL_ASSERT(layout.error().message.find('\n') == std::string::npos);
    return 0;
  }
  check_layout(*layout);
  const Result<SafetensorsLayout> again =
      parse_safetensors_header(format_safetensors_header(*layout), "input");
  WL_ASSERT(again.ok());
  WL_ASSERT(*again == *layout);
  return 0;
}
