// Goal: any layout comes back from a file as it was written; no damaged file is read as something
// unsound, and none crashes the reader.
// Method: RapidCheck. Round trip of random layouts and bytes; then files with bytes changed, cut
// off or put in, read under whatever sanitizer the build has: what is still accepted must be sound.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "prod/safetensors.h"

namespace weightlane::prod {
namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "weightlane-safetensors-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file() const { return path_ + "/weights.safetensors"; }

 private:
  std::string path_;
};

SafetensorsLayout random_layout() {
  static const std::vector<std::string> kDtypes = {"U8", "BF16", "F32", "I64", "F8_E4M3"};
  SafetensorsLayout layout;
  const int count = *rc::gen::inRange(0, 12);
  for (int i = 0; i < count; ++i) {
    SafetensorsEntry entry;
    // Names with quotes, controls and letters beyond ASCII; the number keeps them apart and sorted.
    entry.name =
        std::string(1, static_cast<char>('a' + i)) +
        *rc::gen::element<std::string>("", ".weight", "\"\\", "\n\x01", "gewicht-\xc3\xa4", " ");
    entry.dtype = *rc::gen::elementOf(kDtypes);
    entry.shape = *rc::gen::container<std::vector<uint64_t>>(*rc::gen::inRange(0, 4),
                                                             rc::gen::inRange<uint64_t>(0, 5));
    uint64_t bytes = safetensors_dtype_bits(entry.dtype) / 8;
    for (uint64_t extent : entry.shape) bytes *= extent;
    entry.begin = layout.data_bytes;
    entry.end = layout.data_bytes += bytes;
    layout.tensors.push_back(entry);
  }
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  if (*rc::gen::arbitrary<bool>())
    layout.metadata["format"] = *rc::gen::element<std::string>("pt", "\"", "");
  return layout;
}

std::string bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

RC_GTEST_PROP(Safetensors, ComesBackAsWritten, ()) {
  const Folder folder;
  const SafetensorsLayout layout = random_layout();
  const auto data =
      *rc::gen::container<std::vector<uint8_t>>(layout.data_bytes, rc::gen::arbitrary<uint8_t>());
  RC_ASSERT(write_safetensors(folder.file(), layout, data).ok());
  Result<SafetensorsLayout> back = read_safetensors_layout(folder.file());
  RC_ASSERT(back.ok());
  RC_ASSERT(*back == layout);
  std::vector<uint8_t> read(layout.data_bytes);
  RC_ASSERT(read_safetensors_data(folder.file(), *back, read).ok());
  RC_ASSERT(read == data);
}

RC_GTEST_PROP(Safetensors, DamageIsRefusedOrHarmless, ()) {
  const Folder folder;
  const SafetensorsLayout layout = random_layout();
  RC_ASSERT(write_safetensors(folder.file(), layout, std::vector<uint8_t>(layout.data_bytes)).ok());
  std::string file = bytes_of_file(folder.file());
  const int changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes && !file.empty(); ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, file.size());
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
        file[at] = *rc::gen::arbitrary<char>();
        break;
      case 1:
        file.resize(at);
        break;
      case 2:
        file.insert(at, 1, *rc::gen::element('0', '9', '"', '[', '}', ','));
        break;
      default:
        file[at] = static_cast<char>(file[at] ^ (1 << *rc::gen::inRange(0, 8)));
        break;
    }
  }
  std::ofstream(folder.file(), std::ios::binary | std::ios::trunc) << file;
  Result<SafetensorsLayout> read = read_safetensors_layout(folder.file());
  if (!read.ok()) {
    RC_ASSERT(read.error().message.find(folder.file()) == 0u);
    RC_ASSERT(read.error().message.find('\n') == std::string::npos);
    return;
  }
  // Sound, whatever it says now: filled from 0 to the end without a gap.
  uint64_t filled = 0;
  for (const SafetensorsEntry& entry : read->tensors) {
    RC_ASSERT(entry.begin == filled);
    filled = entry.end;
  }
  RC_ASSERT(filled == read->data_bytes);
  std::vector<uint8_t> data(read->data_bytes);
  RC_ASSERT(read_safetensors_data(folder.file(), *read, data).ok());
}

}  // namespace
}  // namespace weightlane::prod
