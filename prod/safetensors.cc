// Reading and writing of safetensors files; see the header for the format and what is promised.
//
// The JSON is read by a handler of events, not into a tree: a hostile header of 100 MB then costs
// no more memory than the tensors it names, and a key given twice is seen.
#include "prod/safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace weightlane::prod {
namespace {

constexpr size_t kIoBytesMax = 64u << 20;  // one read or write

Error invalid(std::string message) { return Error{ErrorCode::kCorrupt, std::move(message)}; }
Error system_error(const std::string& what, int error) {
  ErrorCode code = error == ENOSPC || error == EDQUOT || error == EFBIG
                       ? ErrorCode::kResourceExhausted
                       : ErrorCode::kInvalidArgument;
  return Error{code, what + ": " + std::strerror(error)};
}

// What an error may quote of a file's content: short, on one line.
std::string quote(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, 80))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  if (text.size() > 80) out += "...";
  return out + "'";
}

struct FileCloser {
  explicit FileCloser(int file) : file_(file) {}
  FileCloser(const FileCloser&) = delete;
  FileCloser& operator=(const FileCloser&) = delete;
  ~FileCloser() {
    if (file_ >= 0) ::close(file_);
  }
  int file_;
};

// ---------------------------------------------------------------- the header's JSON

// Accepts exactly the three levels a header may have, and stops at the first thing that differs.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsLayout layout;
  std::string problem;  // set when a method returned false

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected("the number " + quote(text));
  }
  bool number_integer(number_integer_t value) override {
    return unexpected("the negative number " + std::to_string(value));
  }
  bool binary(binary_t&) override { return unexpected("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      entry_.shape.push_back(value);
      return true;
    }
    if (place_ != Place::kOffsets) return unexpected("the number " + std::to_string(value));
    if (offsets_seen_ == 2) return fail("'data_offsets' has more than two numbers");
    (offsets_seen_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (!layout.metadata.emplace(key_, value).second) {
        return fail("metadata key " + quote(key_) + " appears twice");
      }
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return unexpected("the text " + quote(value));
    entry_.dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeader && key_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kHeader) {
      place_ = Place::kTensor;
      entry_ = {};
      entry_.name = key_;
      keys_seen_.clear();
      offsets_seen_ = 0;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (place_ == Place::kHeader && !names_.insert(value).second) {
      return fail(quote(value) + " appears twice");
    }
    if (place_ != Place::kTensor) return true;
    if (value != "dtype" && value != "shape" && value != "data_offsets") {
      return fail("unknown key " + quote(value) + "; there are dtype, shape and data_offsets");
    }
    if (!keys_seen_.insert(value).second) return fail("key " + quote(value) + " appears twice");
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return unexpected("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }
  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kHeader) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kTensor) {
      if (keys_seen_.size() != 3) return fail("dtype, shape or data_offsets is missing");
      if (offsets_seen_ != 2) return fail("'data_offsets' needs two numbers");
      layout.tensors.push_back(std::move(entry_));
    }
    place_ = Place::kHeader;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    problem = "the header is not JSON from byte " + std::to_string(position) + " on";
    return false;
  }

 private:
  enum class Place : uint8_t { kStart, kHeader, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool fail(std::string what) {
    const bool in_tensor =
        place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    problem = in_tensor ? "tensor " + quote(entry_.name) + ": " + what : std::move(what);
    return false;
  }
  bool unexpected(const std::string& what) {
    switch (place_) {
      case Place::kShape:
      case Place::kOffsets:
        return fail(quote(key_) + " holds " + what + "; it is a list of whole numbers");
      case Place::kTensor:
        return fail(quote(key_) + " is " + what);
      case Place::kMetadata:
        return fail("metadata may hold only texts, not " + what);
      case Place::kHeader:
        return fail(quote(key_) + " is " + what + "; an object describes a tensor");
      case Place::kStart:
      case Place::kEnd:
        break;
    }
    return fail("the header is " + what + "; it must be an object");
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> keys_seen_;
  SafetensorsEntry entry_;
  int offsets_seen_ = 0;
};

// Bytes of a tensor by its dtype and shape; nothing where they do not fit 64 bits or whole bytes.
std::optional<uint64_t> bytes_of(const SafetensorsEntry& entry, uint32_t bits) {
  uint64_t elements = 1;
  for (uint64_t extent : entry.shape) {
    if (extent == 0) return 0;
  }
  for (uint64_t extent : entry.shape) {
    if (__builtin_mul_overflow(elements, extent, &elements)) return std::nullopt;
  }
  uint64_t all_bits = 0;
  if (__builtin_mul_overflow(elements, uint64_t{bits}, &all_bits) || all_bits % 8 != 0) {
    return std::nullopt;
  }
  return all_bits / 8;
}

// Empty when every tensor is what it claims and the data is filled without gap or overlap.
std::string check(const SafetensorsLayout& layout) {
  uint64_t filled = 0;
  for (const SafetensorsEntry& entry : layout.tensors) {
    const std::string tensor = "tensor " + quote(entry.name);
    const uint32_t bits = safetensors_dtype_bits(entry.dtype);
    if (bits == 0) return tensor + " has the unknown dtype " + quote(entry.dtype);
    if (entry.begin > entry.end) return tensor + " ends before it begins";
    const std::optional<uint64_t> bytes = bytes_of(entry, bits);
    if (!bytes) return tensor + " has a shape whose size is not a 64-bit number of whole bytes";
    if (*bytes != entry.end - entry.begin) {
      return tensor + " needs " + std::to_string(*bytes) +
             " bytes by dtype and shape, but its offsets span " +
             std::to_string(entry.end - entry.begin);
    }
    if (entry.begin < filled) return tensor + " overlaps the tensor before it";
    if (entry.begin > filled) {
      return tensor + " begins at byte " + std::to_string(entry.begin) +
             "; the tensor before it ends at " + std::to_string(filled) +
             ", and there may be no gap";
    }
    filled = entry.end;
  }
  return {};
}

// ---------------------------------------------------------------- files

Result<int> open_regular(const std::string& path, uint64_t* bytes) {
  // Never blocks on a pipe without a writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return system_error(path, errno);
  struct stat about{};
  if (::fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    ::close(file);
    return Error{ErrorCode::kInvalidArgument,
                 path + ": not a regular file; give a .safetensors file"};
  }
  *bytes = static_cast<uint64_t>(about.st_size);
  return file;
}

Result<Done> read_exactly(int file, uint64_t at, std::span<uint8_t> into, const std::string& path) {
  while (!into.empty()) {
    const ssize_t got =
        ::pread(file, into.data(), std::min(into.size(), kIoBytesMax), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path, errno);
    if (got == 0) return invalid(path + ": the file became shorter while it was read");
    into = into.subspan(static_cast<size_t>(got));
    at += static_cast<uint64_t>(got);
  }
  return Done{};
}

Result<Done> write_exactly(int file, uint64_t at, std::span<const uint8_t> from,
                           const std::string& path) {
  while (!from.empty()) {
    const ssize_t put =
        ::pwrite(file, from.data(), std::min(from.size(), kIoBytesMax), static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error(path, errno);
    from = from.subspan(static_cast<size_t>(put));
    at += static_cast<uint64_t>(put);
  }
  return Done{};
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Error no_space(const std::string& path, uint64_t needed, int error) {
  std::string message = path + ": the file needs " + std::to_string(needed) + " bytes";
  struct statvfs about{};
  if (::statvfs(folder_of(path).c_str(), &about) == 0) {
    message +=
        " and the disk has " + std::to_string(uint64_t{about.f_bavail} * about.f_frsize) + " left";
  }
  return Error{ErrorCode::kResourceExhausted,
               message + " (" + std::strerror(error) + "); free space or choose another folder"};
}

}  // namespace

uint32_t safetensors_dtype_bits(std::string_view dtype) {
  struct Known {
    std::string_view name;
    uint32_t bits;
  };
  static constexpr std::array<Known, 22> kKnown{
      {{"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
       {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
       {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
       {"I64", 64},    {"U64", 64},        {"F64", 64},        {"C64", 64},    {"F4", 4},
       {"F6_E2M3", 6}, {"F6_E3M2", 6}}};
  for (const Known& known : kKnown) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

Result<SafetensorsLayout> parse_safetensors_header(std::string_view header,
                                                   const std::string& where) {
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) {
    return invalid(where + ": not a sound safetensors file: " + reader.problem);
  }
  SafetensorsLayout layout = std::move(reader.layout);
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::string problem = check(layout);
  if (!problem.empty()) return invalid(where + ": not a sound safetensors file: " + problem);
  layout.data_bytes = layout.tensors.empty() ? 0 : layout.tensors.back().end;
  return layout;
}

std::string format_safetensors_header(const SafetensorsLayout& layout) {
  // Names come from a parser that insists on UTF-8 or from ourselves; `replace` only keeps dump()
  // from throwing.
  const auto text = [](const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::string out = "{";
  if (!layout.metadata.empty()) out += "\"__metadata__\":" + text(layout.metadata);
  for (const SafetensorsEntry& entry : layout.tensors) {
    if (out.size() > 1) out += ',';
    out += text(entry.name) + ":{\"dtype\":" + text(entry.dtype) +
           ",\"shape\":" + text(entry.shape) + ",\"data_offsets\":[" + std::to_string(entry.begin) +
           "," + std::to_string(entry.end) + "]}";
  }
  out += '}';
  out.append((8 - out.size() % 8) % 8, ' ');
  return out;
}

Result<SafetensorsLayout> read_safetensors_layout(const std::string& path) {
  uint64_t file_bytes = 0;
  Result<int> file = open_regular(path, &file_bytes);
  if (!file) return file.error();
  FileCloser closer(*file);
  const std::string size = std::to_string(file_bytes);
  if (file_bytes < 8) {
    return invalid(
        path + ": " + size +
        " bytes are too few for a safetensors file; it begins with the header's length in 8");
  }
  uint64_t header_bytes = 0;
  Result<Done> read = read_exactly(*file, 0, {reinterpret_cast<uint8_t*>(&header_bytes), 8}, path);
  if (!read) return read.error();
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return invalid(path + ": not a safetensors file: claims a header of " +
                   std::to_string(header_bytes) + " bytes; at most " +
                   std::to_string(kSafetensorsHeaderBytesMax) + " are allowed");
  }
  if (header_bytes > file_bytes - 8) {
    return invalid(path + ": cut short: claims a header of " + std::to_string(header_bytes) +
                   " bytes, and " + std::to_string(file_bytes - 8) + " follow");
  }
  std::string header(header_bytes, '\0');
  read = read_exactly(*file, 8, {reinterpret_cast<uint8_t*>(header.data()), header.size()}, path);
  if (!read) return read.error();
  Result<SafetensorsLayout> layout = parse_safetensors_header(header, path);
  if (!layout) return layout;
  const uint64_t data_bytes = file_bytes - 8 - header_bytes;
  if (layout->data_bytes != data_bytes) {
    return invalid(path + (layout->data_bytes > data_bytes ? ": cut short" : ": too long") +
                   ": the header describes " + std::to_string(layout->data_bytes) +
                   " bytes of tensors, the file has " + std::to_string(data_bytes));
  }
  return layout;
}

Result<uint64_t> safetensors_data_offset(const std::string& path, const SafetensorsLayout& layout) {
  uint64_t file_bytes = 0;
  Result<int> file = open_regular(path, &file_bytes);
  if (!file) return file.error();
  FileCloser closer(*file);
  if (file_bytes < 8 + layout.data_bytes)
    return invalid(path + ": the file became shorter while it was read");
  return file_bytes - layout.data_bytes;
}

Result<Done> read_safetensors_data(const std::string& path, const SafetensorsLayout& layout,
                                   std::span<uint8_t> into) {
  WL_ASSERT_OP(into.size(), ==, layout.data_bytes);
  Result<uint64_t> at = safetensors_data_offset(path, layout);
  if (!at) return at.error();
  uint64_t file_bytes = 0;
  Result<int> file = open_regular(path, &file_bytes);
  if (!file) return file.error();
  FileCloser closer(*file);
  return read_exactly(*file, *at, into, path);
}

// ---------------------------------------------------------------- writing

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept {
  *this = std::move(other);
}

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  if (this == &other) return *this;
  discard();
  path_ = std::move(other.path_);
  temporary_ = std::exchange(other.temporary_, {});
  file_ = std::exchange(other.file_, -1);
  data_at_ = other.data_at_;
  data_bytes_ = other.data_bytes_;
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::discard() {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  if (!temporary_.empty()) ::unlink(std::exchange(temporary_, {}).c_str());
}

Result<SafetensorsWriter> SafetensorsWriter::create(std::string path,
                                                    const SafetensorsLayout& layout) {
  // A link keeps pointing where it does; what it points to is replaced.
  if (const std::unique_ptr<char, decltype(&::free)> real(::realpath(path.c_str(), nullptr),
                                                          &::free);
      real) {
    path = real.get();
  }
  struct stat about{};
  if (::stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    return Error{ErrorCode::kInvalidArgument,
                 path + ": exists and is not a regular file; give a file name"};
  }
  SafetensorsWriter writer;
  writer.path_ = path;
  std::string temporary = path + ".partial-XXXXXX";
  writer.file_ = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (writer.file_ < 0) {
    const int error = errno;
    const std::string hint = error == ENOENT ? "; the folder must exist" : "";
    Error failure = system_error("cannot create a file in " + folder_of(path), error);
    failure.message += hint;
    return failure;
  }
  writer.temporary_ = temporary;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(writer.file_, 0666 & ~mask) != 0) return system_error(path, errno);

  const std::string header = format_safetensors_header(layout);
  const uint64_t header_bytes = header.size();
  writer.data_at_ = 8 + header_bytes;
  writer.data_bytes_ = layout.data_bytes;
  const uint64_t all_bytes = writer.data_at_ + writer.data_bytes_;
  const int error = ::posix_fallocate(writer.file_, 0, static_cast<off_t>(all_bytes));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return no_space(path, all_bytes, error);
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) return system_error(path, error);
  std::string front(8, '\0');
  std::memcpy(front.data(), &header_bytes, 8);
  front += header;
  Result<Done> written = write_exactly(
      writer.file_, 0, {reinterpret_cast<const uint8_t*>(front.data()), front.size()}, path);
  if (!written) return written.error();
  return writer;
}

Result<Done> SafetensorsWriter::commit(std::span<const uint8_t> data) {
  WL_ASSERT(file_ >= 0);
  WL_ASSERT_OP(data.size(), ==, data_bytes_);
  Result<Done> written = write_exactly(file_, data_at_, data, path_);
  if (!written) {
    discard();
    return written;
  }
  const bool flushed = ::fsync(file_) == 0 && ::close(std::exchange(file_, -1)) == 0;
  if (!flushed || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    discard();
    return system_error(path_, error);
  }
  temporary_.clear();
  // The name itself survives a power cut only once its folder is on the disk.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
  return Done{};
}

Result<Done> write_safetensors(const std::string& path, const SafetensorsLayout& layout,
                               std::span<const uint8_t> data) {
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, layout);
  if (!writer) return writer.error();
  return writer->commit(data);
}

}  // namespace weightlane::prod
