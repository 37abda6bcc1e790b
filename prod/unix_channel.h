// UnixChannel: frames, some with a descriptor, over a Unix socket between two processes of a
// machine.
//
// For what is said before and beside the copying of the same-host plane: hello, payload, which
// memory can be mapped; and for the news that the other side has gone. On the loop's thread only.
// Memory grows with what arrives, up to a limit; a peer that breaks the format is cut off.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "net/ids.h"
#include "prod/event_loop.h"
#include "prod/file_descriptor.h"

namespace weightlane::prod {

struct UnixFrame {
  uint32_t magic = 0x4c55'4c57;  // "WLUL"
  uint32_t kind = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t length = 0;  // of the body that follows
};
static_assert(sizeof(UnixFrame) == 32);

class UnixChannel : public std::enable_shared_from_this<UnixChannel> {
 public:
  struct Callbacks {
    // `file` is empty when none came with the frame.
    std::function<void(const UnixFrame&, Bytes body, FileDescriptor file)> on_frame;
    std::function<void()> on_close;  // the peer's end, or its fault; once; not after close()
  };
  // Takes a connected, non-blocking socket. `body_max` bytes in one frame. The callbacks may close
  // the channel, and drop it.
  static std::shared_ptr<UnixChannel> open(EventLoop& loop, FileDescriptor fd, uint64_t body_max,
                                           Callbacks callbacks);
  ~UnixChannel();
  UnixChannel(const UnixChannel&) = delete;
  UnixChannel& operator=(const UnixChannel&) = delete;

  // From now on these are told. Not from inside a callback.
  void hand_over(Callbacks callbacks) { callbacks_ = std::move(callbacks); }
  // `file` (or -1) is duplicated. Without effect once closed.
  void send(uint32_t kind, uint64_t a, uint64_t b, std::span<const uint8_t> body, int file = -1);
  // From this side, after what was sent has been handed to the system if it takes it at once.
  void close();
  bool closed() const { return !fd_; }
  int socket() const { return fd_.get(); }  // -1 once closed; to ask about the peer

 private:
  struct Outgoing {
    Bytes bytes;
    size_t sent = 0;
    FileDescriptor file;  // goes with the first byte
  };
  UnixChannel(FileDescriptor fd, uint64_t body_max, Callbacks callbacks);
  void ready(FdReady now);
  bool read_some();
  bool take_frame();
  bool write_some();
  void end();

  FileDescriptor fd_;
  const uint64_t body_max_;
  Callbacks callbacks_;
  std::deque<Outgoing> out_;
  UnixFrame frame_;
  FileDescriptor frame_file_;
  Bytes in_;  // the frame's header, then its body
  bool in_body_ = false;
  std::unique_ptr<FdWatch> watch_;
};

// The abstract socket of that name: no file, gone with the process.
Result<FileDescriptor> listen_abstract(const std::string& name);
// Non-blocking; an empty descriptor and errno when it can't be had.
FileDescriptor connect_abstract(const std::string& name);

}  // namespace weightlane::prod
