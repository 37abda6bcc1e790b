// Messages to bytes and back: Cap'n Proto's standard framing of net/weightlane.capnp.
//
// Decoding never trusts what it reads. Whatever the bytes are, it returns a message or kCorrupt
// with a line that says what is wrong; it doesn't throw, and what it allocates is bounded by a
// small multiple of the input's length. A decoded message is well-formed, not sensible: receivers
// still check ranges.
#pragma once

#include <cstdint>
#include <span>

#include "flow/result.h"
#include "net/hello.h"
#include "net/ids.h"
#include "net/messages.h"

namespace weightlane::net {

Bytes encode(const Request& request);
Bytes encode(const Response& response);
Bytes encode(const HelloMessage& hello);
Bytes encode(const WelcomeMessage& welcome);

Result<Request> decode_request(std::span<const uint8_t> bytes);
Result<Response> decode_response(std::span<const uint8_t> bytes);
Result<HelloMessage> decode_hello(std::span<const uint8_t> bytes);
Result<WelcomeMessage> decode_welcome(std::span<const uint8_t> bytes);

}  // namespace weightlane::net
