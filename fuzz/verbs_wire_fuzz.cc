// What comes on the verbs plane's set-up port, behind the length of its frame.
//
// What decodes must encode to the same bytes, so no two frames mean one thing; only the code of a
// refusal is folded into the few that callers know.
#include "prod/verbs_wire.h"

#include <algorithm>

#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane;
  using namespace weightlane::prod;
  const std::span<const uint8_t> frame(data, size);
  if (const Result<ConnectRequest> request = decode_connect_request(frame)) {
    const Bytes again = encode(*request);
    WL_ASSERT(std::ranges::equal(std::span(again).subspan(kVerbsFrameHeader), frame));
  }
  if (const Result<ConnectReply> reply = decode_connect_reply(frame)) {
    const Bytes again = encode(*reply);
    WL_ASSERT(again.size() == kVerbsFrameHeader + frame.size());
    if (!reply->refusal) {
      WL_ASSERT(std::ranges::equal(std::span(again).subspan(kVerbsFrameHeader), frame));
    }
  }
  return 0;
}
