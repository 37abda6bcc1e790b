// Goal: every message survives the wire unchanged, and no bytes at all can make the decoder crash,
// throw, or allocate without bound.
// Method: RapidCheck makes messages of every kind from generators of every field; the same
// messages, truncated, with bits flipped or replaced by noise, must decode to something or to
// kCorrupt, while an allocation counter watches. Run under ASan and UBSan.
#include "net/codec.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#if __has_feature(thread_sanitizer)
#include <sanitizer/allocator_interface.h>
#endif

namespace {
size_t allocated_bytes = 0;  // by this single-threaded program, ever
}

#if __has_feature(thread_sanitizer)
// ThreadSanitizer's operators can't be replaced; its hooks count.
namespace {
void count_allocation(const volatile void*, size_t size) { allocated_bytes += size; }
void ignore_free(const volatile void*) {}
const int hooks_installed =
    __sanitizer_install_malloc_and_free_hooks(&count_allocation, &ignore_free);
}  // namespace
#else
void* operator new(size_t size) {
  allocated_bytes += size;
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace weightlane::net {
namespace {

// ---------------------------------------------------------------- generators

template <typename T>
T any() {
  return *rc::gen::arbitrary<T>();
}
// Half of the numbers over the whole width: RapidCheck's own stay small.
uint64_t any_u64() {
  const uint64_t small = any<uint64_t>();
  const uint64_t wide = *rc::gen::inRange<uint64_t>(0, ~uint64_t{0});
  return any<bool>() ? small : wide;
}
uint32_t any_u32() { return static_cast<uint32_t>(any_u64()); }
Nanos any_nanos() { return Nanos{static_cast<int64_t>(any_u64())}; }
std::string any_text() {
  std::string text = any<std::string>();
  if (any<bool>()) text.push_back('\0');  // std::string allows it, so must the wire
  return text;
}
template <typename Enum>
Enum any_of(Enum last) {
  const int value = *rc::gen::inRange(0, static_cast<int>(last) + 1);
  return static_cast<Enum>(value);
}
Content any_content() {
  return {Generation{any_u64()}, VersionId{any_u64()}, ContentId{any_u64()}};
}
LayoutSummary any_layout() { return {any_u64(), any_u64(), any_u64(), any_u64()}; }
RemoteRegion any_region() { return {any_u64(), any_u64(), any_u64()}; }
ErrorCode any_code() { return any_of(ErrorCode::kRetained); }

VersionSpec any_version() {
  return {any_of(VersionKind::kLatest), VersionId{any_u64()}, any_u32()};
}
std::vector<VersionId> any_versions() {
  std::vector<VersionId> versions;
  const int count = *rc::gen::inRange(0, 5);
  for (int i = 0; i < count; ++i) versions.push_back({any_u64()});
  return versions;
}

GroupCallRequest any_call() {
  return {CallNumber{any_u64()}, any_of(CallKind::kUpdate), any_version(), any_nanos(),
          any_layout()};
}
Announcement any_announcement() {
  Announcement announced;
  announced.resumed = any<bool>();
  if (!announced.resumed) return announced;  // it says nothing else
  announced.lineage = any_u64();
  announced.last_call = {any_u64()};
  const int count = *rc::gen::inRange(0, 9);
  for (int i = 0; i < count; ++i) {
    announced.done.push_back({CallNumber{any_u64()}, any_of(CallKind::kUpdate), any_version(),
                              any<bool>(), any_content(), any_code(), any_text(), any<bool>()});
  }
  announced.held = {
      CallNumber{any_u64()},   any_content(), any_layout(), any<bool>(), any<bool>(), any_u64(),
      AssignmentId{any_u64()}, any_text()};
  announced.begun = any<bool>();
  announced.pending = any_call();
  return announced;
}

RequestBody any_request_body() {
  switch (*rc::gen::inRange<size_t>(0, std::variant_size_v<RequestBody>)) {
    case 0:
      return OpenRequest{any_text(),
                         any_text(),
                         ShardIndex{any_u32()},
                         any_u32(),
                         any_text(),
                         any_text(),
                         any<bool>(),
                         {any_u32(), any_versions()},
                         any_of(OffloadFailure::kDrop),
                         any_u64(),
                         any_text(),
                         any_u64(),
                         any_u64(),
                         any_announcement()};
    case 1:
      return any_call();
    case 2:
      return PollRequest{any_u64(), any_u64(), any_nanos(), any<bool>()};
    case 3:
      return ReleaseRequest{AssignmentId{any_u64()}, any_of(ReleaseKind::kPoisoned), any_u64(),
                            any_text()};
    case 4:
      return AbortRequest{CallNumber{any_u64()}, any_code(), any_text()};
    case 5:
      return CloseRequest{};
    case 6:
      return ListRequest{any_text()};
    case 7:
      return WithdrawRequest{CallNumber{any_u64()}};
    case 8:
      return OffloadFailedRequest{any_u64(), any_text()};
    case 9:
      return RewindRequest{any_text(), Generation{any_u64()}, any_u64()};
    case 10:
      return WaitRequest{any_text(), any_version(), any_nanos()};
    case 11:
      return PingRequest{};
  }
  RC_FAIL("a kind of request has no generator");
  return CloseRequest{};
}
rc::Gen<Request> requests() {
  return rc::gen::exec(
      [] { return Request{{Incarnation{any_u64()}, any_u64(), any_u64()}, any_request_body()}; });
}

EventBody any_event_body() {
  switch (*rc::gen::inRange<size_t>(0, std::variant_size_v<EventBody>)) {
    case 0:
      return AssignedEvent{CallNumber{any_u64()}, AssignmentId{any_u64()}, any_content(),
                           SourceDescription{any_text(), Incarnation{any_u64()}, any_text(),
                                             any_text(), any<bool>()}};
    case 1:
      return DrainedEvent{CallNumber{any_u64()}};
    case 2:
      return DecidedEvent{CallNumber{any_u64()}, any<bool>(), any_content(), any_code(), any_text(),
                          any<bool>(),           any<bool>()};
    case 3:
      return YieldEvent{AssignmentId{any_u64()}};
    case 4:
      return AbandonEvent{AssignmentId{any_u64()}, any_text()};
    case 5:
      return OffloadEvent{any_u64(), any_text(), any_content()};
    case 6:
      return DropEvent{any_text()};
    case 7:
      return WithdrawnEvent{CallNumber{any_u64()}, any<bool>(), any_text()};
    case 8:
      return MoveEvent{};
  }
  RC_FAIL("a kind of event has no generator");
  return YieldEvent{};
}
ListedReplica any_replica() {
  return {any_text(),  any_text(),  any_content(), any_of(ReplicaState::kHidden),
          any_u32(),   any_u64(),   any_u64(),     any_text(),
          any<bool>(), any<bool>(), any<bool>(),   any_text()};
}
ResponseBody any_response_body() {
  const int count = *rc::gen::inRange(0, 20);
  switch (*rc::gen::inRange<size_t>(0, std::variant_size_v<ResponseBody>)) {
    case 0:
      return Failure{any_of(FailureKind::kStaleSession), any_code(), any_text(), any_nanos(),
                     Incarnation{any_u64()}};
    case 1:
      return OpenedResponse{CallNumber{any_u64()}, any_nanos(), any_nanos(),
                            any_nanos(),           any<bool>(), any_u64()};
    case 2:
      return AcceptedResponse{};
    case 3: {
      EventsResponse events;
      for (int i = 0; i < count; ++i) events.events.push_back({any_u64(), any_event_body()});
      return events;
    }
    case 4: {
      ListResponse list;
      for (int i = 0; i < count; ++i) list.replicas.push_back(any_replica());
      for (int i = 0; i < count; ++i) list.models.push_back({any_text(), Generation{any_u64()}});
      list.open_shards = any_u64();
      return list;
    }
    case 5:
      return RewoundResponse{Generation{any_u64()}};
    case 6:
      return WaitedResponse{any<bool>(), any_content(), Generation{any_u64()}};
  }
  RC_FAIL("a kind of response has no generator");
  return AcceptedResponse{};
}
rc::Gen<Response> responses() {
  return rc::gen::exec([] { return Response{BootId{any_u64()}, any_response_body()}; });
}

rc::Gen<HelloMessage> hellos() {
  return rc::gen::exec([] {
    return HelloMessage{Incarnation{any_u64()}, AssignmentId{any_u64()}, any_content(),
                        any_layout(), any_text()};
  });
}
rc::Gen<WelcomeMessage> welcomes() {
  return rc::gen::exec([] {
    WelcomeMessage welcome;
    welcome.stamp.value = any_u64();
    welcome.control = any_region();
    welcome.digests = any_region();
    welcome.slice_bytes = any_u64();
    const int regions = *rc::gen::inRange(0, 10);
    const int tensors = *rc::gen::inRange(0, 50);
    for (int i = 0; i < regions; ++i) welcome.regions.push_back(any_region());
    for (int i = 0; i < tensors; ++i) welcome.tensors.push_back({any_u32(), any_u64()});
    return welcome;
  });
}

// ---------------------------------------------------------------- what is demanded

// A message, or kCorrupt; and no more memory than a multiple of the input.
template <typename Decode>
void must_survive(const Bytes& bytes, Decode decode) {
  const size_t before = allocated_bytes;
  const bool fine = [&] {
    auto result = decode(bytes);
    return result.ok() || result.error().code == ErrorCode::kCorrupt;
  }();
  const size_t used = allocated_bytes - before;
  RC_ASSERT(fine);
  RC_ASSERT(used <= bytes.size() * 512 + 256 * 1024);
}
void must_survive_all(const Bytes& bytes) {
  must_survive(bytes, [](const Bytes& b) { return decode_request(b); });
  must_survive(bytes, [](const Bytes& b) { return decode_response(b); });
  must_survive(bytes, [](const Bytes& b) { return decode_hello(b); });
  must_survive(bytes, [](const Bytes& b) { return decode_welcome(b); });
}
Bytes any_encoded() {
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      return encode(*requests());
    case 1:
      return encode(*responses());
    case 2:
      return encode(*hellos());
  }
  return encode(*welcomes());
}

RC_GTEST_PROP(Codec, RequestsSurvive, ()) {
  const Request request = *requests();
  const Result<Request> back = decode_request(encode(request));
  RC_ASSERT(back.ok());
  RC_ASSERT(back.value() == request);
}
RC_GTEST_PROP(Codec, ResponsesSurvive, ()) {
  const Response response = *responses();
  const Result<Response> back = decode_response(encode(response));
  RC_ASSERT(back.ok());
  RC_ASSERT(back.value() == response);
}
RC_GTEST_PROP(Codec, HellosSurvive, ()) {
  const HelloMessage hello = *hellos();
  const Result<HelloMessage> back = decode_hello(encode(hello));
  RC_ASSERT(back.ok());
  RC_ASSERT(back.value() == hello);
}
RC_GTEST_PROP(Codec, WelcomesSurvive, ()) {
  const WelcomeMessage welcome = *welcomes();
  const Result<WelcomeMessage> back = decode_welcome(encode(welcome));
  RC_ASSERT(back.ok());
  RC_ASSERT(back.value() == welcome);
}

RC_GTEST_PROP(Codec, TruncatedBytesAreAnError, ()) {
  const Bytes whole = any_encoded();
  const size_t length = *rc::gen::inRange<size_t>(0, whole.size());
  const Bytes bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
  must_survive_all(bytes);
  RC_ASSERT(!decode_request(bytes).ok());
  RC_ASSERT(!decode_welcome(bytes).ok());
}
RC_GTEST_PROP(Codec, FlippedBitsDoNoHarm, ()) {
  Bytes bytes = any_encoded();
  const int flips = *rc::gen::inRange(1, 12);
  for (int i = 0; i < flips; ++i) {
    const size_t bit = *rc::gen::inRange<size_t>(0, bytes.size() * 8);
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  must_survive_all(bytes);
}
RC_GTEST_PROP(Codec, NoiseDoesNoHarm, ()) {
  const auto bytes = *rc::gen::container<Bytes>(rc::gen::arbitrary<uint8_t>());
  must_survive_all(bytes);
}
// Noise behind a plausible frame gets further than noise alone.
RC_GTEST_PROP(Codec, FramedNoiseDoesNoHarm, ()) {
  const auto words = *rc::gen::container<std::vector<uint64_t>>(
      rc::gen::oneOf(rc::gen::arbitrary<uint64_t>(), rc::gen::inRange<uint64_t>(0, ~uint64_t{0})));
  Bytes bytes(8 + words.size() * 8);
  const uint64_t frame = static_cast<uint64_t>(words.size()) << 32;  // one segment
  std::memcpy(bytes.data(), &frame, 8);
  if (!words.empty()) std::memcpy(bytes.data() + 8, words.data(), words.size() * 8);
  must_survive_all(bytes);
}

// ---------------------------------------------------------------- by hand

Bytes framed(std::initializer_list<uint64_t> words) {
  Bytes bytes;
  const auto append = [&bytes](uint64_t word) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<uint8_t>(word >> (8 * i)));
  };
  append(static_cast<uint64_t>(words.size()) << 32);
  for (const uint64_t word : words) append(word);
  return bytes;
}

// Elements of no size: half a billion of them in forty bytes.
TEST(Codec, AListOfNothingIsRefused) {
  constexpr uint64_t kResponse = (uint64_t{2} << 32) | (uint64_t{1} << 48);
  constexpr uint64_t kEventsTag = 3;
  constexpr uint64_t kCompositeOfNoWords = 1 | (uint64_t{7} << 32);
  constexpr uint64_t kHalfABillion = ((uint64_t{1} << 29) - 1) << 2;
  const size_t before = allocated_bytes;
  const Result<Response> result =
      decode_response(framed({kResponse, 0, kEventsTag, kCompositeOfNoWords, kHalfABillion}));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  EXPECT_LT(allocated_bytes - before, size_t{64} * 1024);
}

TEST(Codec, AFrameThatClaimsMoreThanThereIsIsRefused) {
  Bytes bytes = framed({0, 0, 0});
  bytes[7] = 0x7f;  // half of 2^31 words
  const size_t before = allocated_bytes;
  EXPECT_FALSE(decode_request(bytes).ok());
  EXPECT_LT(allocated_bytes - before, size_t{64} * 1024);
}

TEST(Codec, UnknownEnumeratorsAreRefused) {
  GroupCallRequest call;
  call.kind = static_cast<CallKind>(9);
  const Result<Request> result = decode_request(encode(Request{{}, call}));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "malformed message: call kind 9 is unknown");
}

TEST(Codec, BytesBehindTheEndAreRefused) {
  Bytes bytes = encode(Request{{}, CloseRequest{}});
  bytes.resize(bytes.size() + 8);
  EXPECT_FALSE(decode_request(bytes).ok());
}

TEST(Codec, FiftyThousandTensors) {
  WelcomeMessage welcome;
  welcome.regions.resize(3);
  for (uint32_t i = 0; i < 50'000; ++i) welcome.tensors.push_back({i % 3, uint64_t{i} << 33});
  const Result<WelcomeMessage> back = decode_welcome(encode(welcome));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, welcome);
}

TEST(Codec, UnalignedInputIsFine) {
  Bytes bytes = encode(Request{{Incarnation{1}, 2, 3}, ListRequest{"model"}});
  bytes.insert(bytes.begin(), 0);
  const Result<Request> back = decode_request(std::span<const uint8_t>(bytes).subspan(1));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<ListRequest>(back->body).model, "model");
}

}  // namespace
}  // namespace weightlane::net
