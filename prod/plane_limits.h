// What plain code reaches on the same memory: the yardsticks of plane_bench.h. No plane, no loop,
// no registration; just the system call, or the copy, in as many threads and pieces of the given
// sizes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flow/result.h"
#include "prod/file_descriptor.h"
#include "prod/thread_group.h"

namespace weightlane::prod {

struct LimitShape {
  unsigned threads = 1;
  uint64_t block = 1ull << 20;  // bytes in one call
};

// Each moves `bytes` once and returns the seconds that took.
Result<double> limit_vm_read(pid_t pid, uint64_t from, uint8_t* into, uint64_t bytes,
                             LimitShape shape);
double limit_streaming_copy(const uint8_t* from, uint8_t* into, uint64_t bytes, LimitShape shape);

// Sends memory over loopback to whoever asks, a thread per connection.
class PlainSender {
 public:
  // kResourceExhausted.
  static Result<std::unique_ptr<PlainSender>> start(const uint8_t* data, uint64_t bytes);
  ~PlainSender();
  uint16_t port() const { return port_; }

 private:
  PlainSender(const uint8_t* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  void serve(int fd) const;

  const uint8_t* data_;
  uint64_t bytes_;
  FileDescriptor listening_;
  uint16_t port_ = 0;
  ThreadGroup threads_;
};

// shape.threads connections, each receives its share. kUnreachable.
Result<double> limit_sockets(uint16_t port, uint8_t* into, uint64_t bytes, LimitShape shape);

// GiB/s of iperf3 over loopback with that many streams. kUnreachable when it isn't installed.
Result<double> limit_iperf3(unsigned streams, uint64_t bytes);

}  // namespace weightlane::prod
