// The plain interpreter of a tree (tree.h): callbacks over a first-in-first-out list and a map of
// timers, no coroutine. It is written for obviousness: what flow/ should do, said once more in
// another way.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/flow/tree.h"

namespace weightlane::flow::testing {

// Either a value or a thrown int.
struct Outcome {
  int value = 0;
  bool thrown = false;
};

// A place in the model's queues; dropping it takes it out.
using Ticket = std::shared_ptr<std::function<void()>>;

struct ModelWorld {
  int64_t now = 0;
  Log log;
  std::deque<std::weak_ptr<std::function<void()>>> ready;
  std::map<std::pair<int64_t, int64_t>, std::weak_ptr<std::function<void()>>> timers;
  int64_t next_sequence = 0;

  Ticket post(std::function<void()> job) {
    auto ticket = std::make_shared<std::function<void()>>(std::move(job));
    ready.push_back(ticket);
    return ticket;
  }
  Ticket at(int64_t when, std::function<void()> job) {
    auto ticket = std::make_shared<std::function<void()>>(std::move(job));
    timers[{when, next_sequence++}] = ticket;
    return ticket;
  }
  // As ManualRuntime::step: one ready job, or else all the timers of the next time.
  bool step() {
    while (!ready.empty()) {
      const Ticket job = ready.front().lock();
      ready.pop_front();
      if (!job) continue;
      (*job)();
      return true;
    }
    bool fired = false;
    while (!timers.empty()) {
      const auto first = timers.begin();
      const int64_t when = first->first.first;
      const Ticket job = first->second.lock();
      if (job && fired && when > now) break;
      timers.erase(first);
      if (!job) continue;
      if (when > now) now = when;
      fired = true;
      (*job)();
    }
    return fired;
  }
};

// One node in progress. Destroying it cancels: children first, then its own line in the log.
class Execution {
 public:
  Execution(ModelWorld* world, const Node* node, std::function<void(Outcome)> done)
      : world_(world), node_(node), done_(std::move(done)) {}
  ~Execution() {
    ticket_.reset();
    timeout_.reset();
    cancel_children();
    if (started_ && !ended_) log("cancel");
  }
  void start() {
    started_ = true;
    log("start");
    using Kind = Node::Kind;
    switch (node_->kind) {
      case Kind::kReturn:
        return end({node_->id});
      case Kind::kThrow:
        return end({node_->id, true});
      case Kind::kSleep:
        return after(node_->span, [this] { end({node_->id}); });
      case Kind::kYield:
        return yield(node_->span);
      case Kind::kAwaitSet:
        return await(node_->id);
      case Kind::kAwaitBroken:
        return await(kBroken);
      case Kind::kAwaitUntil:
        return after(node_->span, [this] { end({kTimedOut}); });
      case Kind::kSequence:
        return sequence(0, 0);
      case Kind::kCatch:
        return run_child(0, [this](Outcome o) { end({o.value}); });
      case Kind::kRace:
        return race();
      case Kind::kAllVector:
      case Kind::kAllTuple:
        return all();
      case Kind::kTimeout:
        return timeout();
      case Kind::kSpawn:
        return spawn();
    }
  }

 private:
  void log(const char* what) { world_->log.push_back(log_line(what, node_->id, world_->now)); }
  void end(Outcome outcome) {
    ended_ = true;
    log(outcome.thrown ? "cancel" : "end");
    done_(outcome);
  }
  Execution& add_child(size_t index, std::function<void(Outcome)> done) {
    children_.resize(node_->children.size());
    children_[index] =
        std::make_unique<Execution>(world_, &node_->children[index], std::move(done));
    return *children_[index];
  }
  void run_child(size_t index, std::function<void(Outcome)> done) {
    add_child(index, std::move(done)).start();
  }
  void cancel_children() {
    if (node_->kind == Node::Kind::kSpawn) {
      while (!children_.empty()) children_.pop_back();
    }
    for (auto& child : children_) child.reset();
  }
  // Those that ended have nothing to cancel; they are kept, for they may be on the stack.
  void cancel_others(size_t kept) {
    for (size_t i = 0; i < children_.size(); ++i) {
      if (i != kept) children_[i].reset();
    }
  }
  // A sleep: a timer, then a turn in the ready list.
  void after(int64_t span, std::function<void()> job) {
    ticket_ = world_->at(world_->now + span, [this, job] { ticket_ = world_->post(job); });
  }
  void yield(int64_t left) {
    if (left == 0) return end({node_->id});
    ticket_ = world_->post([this, left] { yield(left - 1); });
  }
  // A spawned setter sleeps, settles the promise; the waiter then has its turn.
  void await(int result) {
    ticket_ = world_->post([this, result] {
      after(node_->span,
            [this, result] { ticket_ = world_->post([this, result] { end({result}); }); });
    });
  }
  void sequence(size_t index, int sum) {
    if (index == node_->children.size()) return end({sum});
    run_child(index, [this, index, sum](Outcome o) {
      if (o.thrown) return end(o);
      sequence(index + 1, sum + o.value);
    });
  }
  void race() {
    start_group([this](size_t index, Outcome o) {
      decided_ = index;
      outcome_ = o.thrown ? o : Outcome{static_cast<int>(index) * 1000 + o.value};
    });
  }
  void all() {
    missing_ = node_->children.size();
    if (missing_ == 0) return end({0});
    start_group([this](size_t index, Outcome o) {
      --missing_;
      outcome_ = o.thrown ? o : Outcome{outcome_.value + o.value};
      if (o.thrown || missing_ == 0) decided_ = index;
    });
  }
  void start_group(std::function<void(size_t, Outcome)> account) {
    auto decide = [this] {
      cancel_others(*decided_);
      end(outcome_);
    };
    starting_ = true;
    for (size_t i = 0; i < node_->children.size() && !decided_; ++i) {
      run_child(i, [this, i, account, decide](Outcome o) {
        account(i, o);
        if (decided_ && !starting_) decide();
      });
    }
    starting_ = false;
    if (decided_) decide();
  }
  void timeout() {
    const int64_t deadline = world_->now + node_->span;
    starting_ = true;
    run_child(0, [this](Outcome o) {
      outcome_ = o;
      decided_ = 0;
      timeout_.reset();
      if (!starting_) end(o);
    });
    starting_ = false;
    if (decided_) return end(outcome_);
    timeout_ = world_->at(deadline, [this] {
      timeout_ = world_->post([this] {
        children_[0].reset();
        end({kTimedOut});
      });
    });
  }
  void spawn() {
    missing_ = node_->children.size();
    if (missing_ == 0) return end({node_->id});
    first_steps_.resize(missing_);
    for (size_t i = 0; i < node_->children.size(); ++i) {
      Execution* child = &add_child(i, [this](Outcome) {
        if (--missing_ == 0) ticket_ = world_->post([this] { end({node_->id}); });
      });
      first_steps_[i] = world_->post([child] { child->start(); });
    }
  }

  ModelWorld* world_;
  const Node* node_;
  std::function<void(Outcome)> done_;
  bool started_ = false;
  bool ended_ = false;
  Ticket ticket_;
  Ticket timeout_;
  std::vector<Ticket> first_steps_;
  std::vector<std::unique_ptr<Execution>> children_;
  bool starting_ = false;
  size_t missing_ = 0;
  std::optional<size_t> decided_;
  Outcome outcome_;
};

}  // namespace weightlane::flow::testing
