// Safetensors files: weights on disk, read into memory and written from it.
//
// A file is an 8-byte little-endian header length, a JSON header, and the tensors' bytes:
//
//     {"__metadata__": {"format": "pt"},
//      "wte": {"dtype": "BF16", "shape": [50257, 768], "data_offsets": [0, 77194752]}, ...}
//
// A file comes from outside and may be cut short or lie. What parses is sound: names are unique,
// every tensor's byte count is its dtype times its shape, and the tensors fill the data without gap
// or overlap, to the last byte. So whoever holds a layout may index the data without checks.
//
// Writing is all or nothing: space is reserved first (a full disk is known before the first byte
// moves), the bytes go to a temporary file beside the target, and only a complete, flushed file
// takes the target's name. A writer that is dropped without commit() leaves nothing.
//
// Errors are one line, name the file and say what would be right.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.h"

namespace weightlane::prod {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;            // "F32", "BF16", ...: one of the format's
  std::vector<uint64_t> shape;  // elements
  uint64_t begin = 0;           // bytes from the start of the data
  uint64_t end = 0;
  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsLayout {
  std::vector<SafetensorsEntry> tensors;  // by offset, then name
  std::map<std::string, std::string> metadata;
  uint64_t data_bytes = 0;
  bool operator==(const SafetensorsLayout&) const = default;
};

constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // as other readers have it

// Bits of one element; 0: no such dtype.
uint32_t safetensors_dtype_bits(std::string_view dtype);

// `where` names the source of the header in errors.
Result<SafetensorsLayout> parse_safetensors_header(std::string_view header,
                                                   const std::string& where);
// The header in a canonical form (tensors by offset), padded with blanks to a multiple of 8 bytes.
std::string format_safetensors_header(const SafetensorsLayout& layout);

// Reads and checks the header, and that the file has exactly the bytes that it describes.
Result<SafetensorsLayout> read_safetensors_layout(const std::string& path);
// The data of a file whose layout was read before, into exactly layout.data_bytes bytes.
Result<Done> read_safetensors_data(const std::string& path, const SafetensorsLayout& layout,
                                   std::span<uint8_t> into);

// Where the data begins in a file whose layout was read before, bytes from its start.
Result<uint64_t> safetensors_data_offset(const std::string& path, const SafetensorsLayout& layout);

class SafetensorsWriter {
 public:
  SafetensorsWriter() = default;
  // Reserves the file's space under a temporary name beside `path`. A file of that name stays as it
  // is until commit(); anything but a regular file is refused.
  static Result<SafetensorsWriter> create(std::string path, const SafetensorsLayout& layout);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  ~SafetensorsWriter();

  // Writes all of the data, flushes it to the disk and gives the file its name.
  Result<Done> commit(std::span<const uint8_t> data);

 private:
  void discard();

  std::string path_;
  std::string temporary_;
  int file_ = -1;
  uint64_t data_at_ = 0;
  uint64_t data_bytes_ = 0;
};

// create() and commit() in one.
Result<Done> write_safetensors(const std::string& path, const SafetensorsLayout& layout,
                               std::span<const uint8_t> data);

}  // namespace weightlane::prod
