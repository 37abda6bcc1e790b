// Goal: a safetensors file that is cut short or lies is refused in one line that names the file and
// what is wrong; a sound one gives exactly its tensors; a file is written whole or not at all.
// Method: files made by hand from a header's text and a number of bytes; a tmpfs of our own for the
// full disk where we may mount one, a file size limit otherwise.
#include "prod/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace weightlane::prod {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "weightlane-safetensors-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // A file of this header and `data` zero bytes. `claimed`: what the length word says.
  std::string file(const std::string& header, size_t data, uint64_t claimed) {
    const std::string name = path("weights.safetensors");
    std::ofstream out(name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&claimed), 8);
    out << header << std::string(data, '\0');
    return name;
  }
  std::string file(const std::string& header, size_t data) {
    return file(header, data, header.size());
  }

  void expect_refused(const std::string& name, const std::string& why) {
    Result<SafetensorsLayout> layout = read_safetensors_layout(name);
    ASSERT_FALSE(layout.ok()) << "accepted, though " << why;
    EXPECT_THAT(layout.error().message,
                AllOf(HasSubstr(name), HasSubstr(why), Not(HasSubstr("\n"))));
  }

  size_t files_in_folder() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++count;
    return count;
  }

  std::string folder_;
};

const char kTwo[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"none":{"dtype":"F32","shape":[0,9],"data_offsets":[8,8]}})";

TEST_F(SafetensorsTest, ReadsWhatIsThereInOrderOfOffsets) {
  Result<SafetensorsLayout> layout = read_safetensors_layout(file(kTwo, 20));
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  ASSERT_EQ(layout->tensors.size(), 3u);
  EXPECT_EQ(layout->tensors[0], (SafetensorsEntry{"a", "F32", {2}, 0, 8}));
  EXPECT_EQ(layout->tensors[1], (SafetensorsEntry{"none", "F32", {0, 9}, 8, 8}));
  EXPECT_EQ(layout->tensors[2], (SafetensorsEntry{"b", "BF16", {2, 3}, 8, 20}));
  EXPECT_EQ(layout->metadata.at("format"), "pt");
  EXPECT_EQ(layout->data_bytes, 20u);
}

TEST_F(SafetensorsTest, ScalarsAndFilesWithoutTensorsAreSound) {
  EXPECT_TRUE(read_safetensors_layout(file("{}", 0)).ok());
  Result<SafetensorsLayout> layout =
      read_safetensors_layout(file(R"({"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8));
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  EXPECT_TRUE(layout->tensors[0].shape.empty());
}

TEST_F(SafetensorsTest, CutShort) {
  std::ofstream(path("tiny.safetensors")) << "1234";
  expect_refused(path("tiny.safetensors"), "4 bytes are too few");
  expect_refused(file(kTwo, 20, 5000), "claims a header of 5000 bytes");
  expect_refused(file(kTwo, 19),
                 "cut short: the header describes 20 bytes of tensors, the file has 19");
  expect_refused(file(kTwo, 21), "too long");
}

TEST_F(SafetensorsTest, HeaderLengthThatLies) {
  expect_refused(file(kTwo, 20, 100'000'001), "at most 100000000");
  expect_refused(file(kTwo, 20, ~uint64_t{0}), "at most 100000000");
  expect_refused(file(kTwo, 20, 0), "not JSON");
  expect_refused(file(kTwo, 20, 7), "not JSON");
}

TEST_F(SafetensorsTest, HeaderThatIsNotOne) {
  expect_refused(file("", 20), "not JSON");
  expect_refused(file("[]", 0), "the header is an array");
  expect_refused(file("7", 0), "the header is");
  expect_refused(file("{\"a\"", 0), "not JSON");
  expect_refused(file("{} {}", 0), "not JSON");
  expect_refused(file("{\"\xff\":{}}", 0), "not JSON");
  expect_refused(file(R"({"a":7})", 0), "'a' is the number 7");
  expect_refused(file(R"({"a":[]})", 0), "'a' is an array");
  expect_refused(file(R"({"a":{}})", 0), "missing");
  expect_refused(file(R"({"__metadata__":{"k":1}})", 0), "metadata may hold only texts");
  expect_refused(file(std::string(200'000, '[') + std::string(200'000, ']'), 0),
                 "must be an object");
}

TEST_F(SafetensorsTest, TensorThatLies) {
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
    return file("{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape +
                    ",\"data_offsets\":" + offsets + "}}",
                8);
  };
  EXPECT_TRUE(read_safetensors_layout(one("\"F32\"", "[2]", "[0,8]")).ok());
  expect_refused(one("\"F32\"", "[3]", "[0,8]"),
                 "tensor 'w' needs 12 bytes by dtype and shape, but its offsets span 8");
  expect_refused(one("\"X32\"", "[2]", "[0,8]"), "unknown dtype 'X32'");
  expect_refused(one("7", "[2]", "[0,8]"), "'dtype' is the number 7");
  expect_refused(one("\"F32\"", "[-2]", "[0,8]"), "negative");
  expect_refused(one("\"F32\"", "[2.0]", "[0,8]"), "a list of whole numbers");
  expect_refused(one("\"F32\"", "[[2]]", "[0,8]"), "a list of whole numbers");
  expect_refused(one("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "64-bit");
  expect_refused(one("\"F32\"", "[4611686018427387904]", "[0,8]"), "64-bit");
  expect_refused(one("\"F4\"", "[3]", "[0,8]"), "whole bytes");
  expect_refused(one("\"F32\"", "[2]", "[8,0]"), "ends before it begins");
  expect_refused(one("\"F32\"", "[2]", "[0]"), "needs two numbers");
  expect_refused(one("\"F32\"", "[2]", "[0,8,9]"), "more than two");
  expect_refused(one("\"F32\"", "[2]", "[4,12]"), "no gap");
  expect_refused(one("\"F32\"", "[2]", "[18446744073709551608,18446744073709551616]"),
                 "whole numbers");
  expect_refused(one("\"F32\"", "[4]", "[0,16]"), "cut short");
}

TEST_F(SafetensorsTest, TensorsThatOverlapOrAppearTwice) {
  const std::string a = R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  expect_refused(file("{" + a + R"(,"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})", 12),
                 "overlaps");
  expect_refused(file("{" + a + R"(,"b":{"dtype":"U8","shape":[8],"data_offsets":[9,17]}})", 17),
                 "no gap");
  expect_refused(file("{" + a + "," + a + "}", 8), "'a' appears twice");
  expect_refused(file(R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8),
                 "'dtype' appears twice");
  expect_refused(file(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}})", 8),
                 "unknown key 'x'");
}

TEST_F(SafetensorsTest, ErrorsStayOnOneShortLine) {
  const std::string evil = std::string(5000, 'n') + R"(\n\u001b[31m)";
  Result<SafetensorsLayout> layout = read_safetensors_layout(file("{\"" + evil + "\":1}", 0));
  ASSERT_FALSE(layout.ok());
  EXPECT_LT(layout.error().message.size(), 400u);
  expect_refused(file(R"({"a\nb\u001b[31m":1})", 0), "'a?b?[31m' is the number 1");
}

TEST_F(SafetensorsTest, NotAFile) {
  EXPECT_THAT(read_safetensors_layout(path("absent.safetensors")).error().message,
              HasSubstr("No such file"));
  expect_refused(folder_, "not a regular file");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused(path("pipe"), "not a regular file");
}

TEST_F(SafetensorsTest, OffsetsBeyond32Bits) {
  // Sparse: 5 GB in the header, a few blocks on the disk.
  const std::string header =
      R"({"big":{"dtype":"U8","shape":[5000000000],"data_offsets":[0,5000000000]},"last":{"dtype":"U8","shape":[3],"data_offsets":[5000000000,5000000003]}})";
  const std::string name = file(header, 0);
  std::filesystem::resize_file(name, 8 + header.size() + 5'000'000'003);
  Result<SafetensorsLayout> layout = read_safetensors_layout(name);
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  EXPECT_EQ(layout->data_bytes, 5'000'000'003u);
  EXPECT_EQ(layout->tensors[1].begin, 5'000'000'000u);
}

SafetensorsLayout layout_of(uint64_t bytes) {
  return SafetensorsLayout{{SafetensorsEntry{"w", "U8", {bytes}, 0, bytes}}, {}, bytes};
}

TEST_F(SafetensorsTest, AWriterThatIsDroppedLeavesNothing) {
  std::ofstream(path("out.safetensors")) << "old";
  {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::create(path("out.safetensors"), layout_of(1000));
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    EXPECT_EQ(files_in_folder(), 2u);
  }
  EXPECT_EQ(files_in_folder(), 1u);
  EXPECT_EQ(std::filesystem::file_size(path("out.safetensors")), 3u);
}

TEST_F(SafetensorsTest, WritingReplacesInOneStep) {
  const std::vector<uint8_t> data(1000, 7);
  std::ofstream(path("out.safetensors")) << "old";
  ASSERT_EQ(::symlink(path("out.safetensors").c_str(), path("link").c_str()), 0);
  Result<Done> written = write_safetensors(path("link"), layout_of(1000), data);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  Result<SafetensorsLayout> layout = read_safetensors_layout(path("out.safetensors"));
  ASSERT_TRUE(layout.ok()) << layout.error().message;
  std::vector<uint8_t> back(1000);
  ASSERT_TRUE(read_safetensors_data(path("out.safetensors"), *layout, back).ok());
  EXPECT_EQ(back, data);
  EXPECT_EQ(files_in_folder(), 2u);
}

TEST_F(SafetensorsTest, RefusesToReplaceWhatIsNoFile) {
  EXPECT_THAT(write_safetensors(folder_, layout_of(0), {}).error().message,
              HasSubstr("not a regular file"));
  EXPECT_THAT(write_safetensors("/dev/null", layout_of(0), {}).error().message,
              HasSubstr("not a regular file"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THAT(write_safetensors(path("no/such/out"), layout_of(0), {}).error().message,
              HasSubstr("folder must exist"));
}

TEST_F(SafetensorsTest, FullDiskIsSaidBeforeAByteMoves) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1 << 20, old.rlim_max};
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(path("out.safetensors"), layout_of(4 << 20));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(writer.error().message,
              AllOf(HasSubstr("out.safetensors"), HasSubstr("needs"), HasSubstr("left")));
  EXPECT_EQ(files_in_folder(), 0u);
}

}  // namespace
}  // namespace weightlane::prod
