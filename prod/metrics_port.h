// MetricsPort: answers GET /metrics, and no more of HTTP than that needs.
//
// Each connection is one request and one answer, then closed. Whatever a client sends or does not
// send, it holds at most 8 KiB and a descriptor for at most 10 seconds, and 64 of them at once.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "flow/result.h"
#include "prod/event_loop.h"

namespace weightlane::prod {

class MetricsPort {
 public:
  // `page` is called on the loop's thread for each request. Address forms and errors are those of
  // prod/control_address.h: kInvalidArgument, kResourceExhausted ("port 9400 is in use").
  static Result<std::unique_ptr<MetricsPort>> serve(EventLoop* loop, const std::string& address,
                                                    std::function<std::string()> page);
  ~MetricsPort();
  std::string address() const;  // as bound

 private:
  struct Impl;
  explicit MetricsPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightlane::prod
