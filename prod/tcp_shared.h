// What the threads of one TCP plane share, and how all of them are made to return when it goes.
#pragma once

#include <memory>
#include <mutex>
#include <set>

#include "prod/event_loop.h"
#include "prod/memory_registry.h"
#include "prod/tcp_socket.h"
#include "prod/thread_group.h"

namespace weightlane::prod {

// The sockets that a thread may be waiting on.
class TcpSockets {
 public:
  // False when everything is being stopped: don't begin.
  bool add(const std::shared_ptr<TcpSocket>& socket) {
    std::lock_guard lock(mutex_);
    if (!stopping_) sockets_.insert(socket);
    return !stopping_;
  }
  void remove(const std::shared_ptr<TcpSocket>& socket) {
    std::lock_guard lock(mutex_);
    sockets_.erase(socket);
  }
  bool stopping() {
    std::lock_guard lock(mutex_);
    return stopping_;
  }
  void stop_all() {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const std::shared_ptr<TcpSocket>& socket : sockets_) socket->stop();
  }

 private:
  std::mutex mutex_;
  std::set<std::shared_ptr<TcpSocket>> sockets_;  // guarded by mutex_
  bool stopping_ = false;                         // guarded by mutex_
};

struct TcpShared {
  explicit TcpShared(EventLoop& l) : loop(l), registry(l, &arenas) {}
  EventLoop& loop;
  SharedArenas arenas;
  MemoryRegistry registry;
  TcpSockets sockets;
  ThreadGroup threads;  // last: joined before the rest goes
};

}  // namespace weightlane::prod
