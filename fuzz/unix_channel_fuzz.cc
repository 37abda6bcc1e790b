// Frames of the same-host plane: what another process of this machine says over a Unix socket.
//
// The first byte says in what pieces the rest arrives. A model cuts the same bytes into frames; the
// channel must tell of exactly those, and close exactly when the format is broken or the peer ends.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "fuzz/target.h"
#include "prod/file_descriptor.h"
#include "prod/unix_channel.h"

namespace weightlane::prod {
namespace {

constexpr uint64_t kBodyMax = 512;

struct Heard {
  UnixFrame frame;
  Bytes body;
};

std::vector<Heard> frames_of(std::span<const uint8_t> bytes) {
  std::vector<Heard> frames;
  for (;;) {
    Heard heard;
    if (bytes.size() < sizeof heard.frame) return frames;
    std::memcpy(&heard.frame, bytes.data(), sizeof heard.frame);
    bytes = bytes.subspan(sizeof heard.frame);
    const bool sound = heard.frame.magic == UnixFrame{}.magic && heard.frame.length <= kBodyMax;
    if (!sound || heard.frame.length > bytes.size()) return frames;
    heard.body.assign(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(heard.frame.length));
    bytes = bytes.subspan(heard.frame.length);
    frames.push_back(std::move(heard));
  }
}

flow::Task<int> some_turns(flow::Runtime* runtime) {
  for (int i = 0; i < 3; ++i) co_await runtime->sleep_for(nanos(1));
  co_return 0;
}

void play(EventLoop& loop, std::span<const uint8_t> bytes, size_t piece) {
  const std::vector<Heard> expected = frames_of(bytes);
  int ends[2];
  WL_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  FileDescriptor peer(ends[1]);
  std::vector<Heard> heard;
  int closed = 0;
  UnixChannel::Callbacks callbacks;
  callbacks.on_frame = [&heard](const UnixFrame& frame, Bytes body, FileDescriptor file) {
    WL_ASSERT(!file);
    heard.push_back({frame, std::move(body)});
  };
  callbacks.on_close = [&closed] { ++closed; };
  const std::shared_ptr<UnixChannel> channel =
      UnixChannel::open(loop, FileDescriptor(ends[0]), kBodyMax, std::move(callbacks));
  while (!bytes.empty() && closed == 0) {
    const size_t now = std::min(bytes.size(), piece);
    const ssize_t sent = send(peer.get(), bytes.data(), now, MSG_NOSIGNAL);
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
    (void)loop.run(some_turns(&loop.runtime()));
  }
  peer.reset();
  (void)loop.run(some_turns(&loop.runtime()));
  WL_ASSERT(closed == 1 && channel->closed());
  WL_ASSERT(heard.size() == expected.size());
  for (size_t i = 0; i < heard.size(); ++i) {
    WL_ASSERT(std::memcmp(&heard[i].frame, &expected[i].frame, sizeof(UnixFrame)) == 0);
    WL_ASSERT(heard[i].body == expected[i].body);
  }
}

}  // namespace
}  // namespace weightlane::prod

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightlane::prod;
  static EventLoop loop;
  weightlane::fuzz::Script script(data, size);
  const size_t piece = std::max<size_t>({1, script.u8() * size_t{16}, size / 16});
  play(loop, script.rest(), piece);
  return 0;
}
