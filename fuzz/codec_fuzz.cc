// Every message of the control plane and of the handshake between reader and source, from bytes.
//
// All four decoders see every input, as a port would that is sent the wrong kind. What decodes must
// encode to bytes that decode to the same.
#include "fuzz/target.h"
#include "net/codec.h"

namespace weightlane::net {
namespace {

template <typename Message>
void try_decoder(std::span<const uint8_t> bytes,
                 Result<Message> (*decode)(std::span<const uint8_t> bytes)) {
  const Result<Message> message = decode(bytes);
  if (!message.ok()) {
    WL_ASSERT(message.error().code == ErrorCode::kCorrupt);
    WL_ASSERT(!message.error().message.empty());
    return;
  }
  const Result<Message> again = decode(encode(*message));
  WL_ASSERT(again.ok());
  WL_ASSERT(*again == *message);
}

}  // namespace
}  // namespace weightlane::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane::net;
  const std::span<const uint8_t> bytes(data, size);
  try_decoder<Request>(bytes, decode_request);
  try_decoder<Response>(bytes, decode_response);
  try_decoder<HelloMessage>(bytes, decode_hello);
  try_decoder<WelcomeMessage>(bytes, decode_welcome);
  return 0;
}
