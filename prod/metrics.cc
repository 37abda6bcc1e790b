// Families are made once, series when they are first needed: a server has none of a handle's.
#include "prod/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <vector>

#include "ros/directory.h"

namespace weightlane::prod {
namespace {

using CounterFamily = prometheus::Family<prometheus::Counter>;
using GaugeFamily = prometheus::Family<prometheus::Gauge>;
using HistogramFamily = prometheus::Family<prometheus::Histogram>;

// 1 ms to 17 minutes, by factors of two.
std::vector<double> call_buckets() {
  std::vector<double> buckets;
  for (int i = 0; i <= 20; ++i) buckets.push_back(static_cast<double>(1 << i) * 1e-3);
  return buckets;
}

std::string outcome(bool ok, ErrorCode code) { return ok ? "ok" : error_code_name(code); }

// In the order of net::RequestBody.
const char* request_name(const net::Request& request) {
  constexpr const char* kNames[] = {"open",           "group_call", "poll", "release",
                                    "abort",          "close",      "list", "withdraw",
                                    "offload_failed", "rewind",     "wait", "ping"};
  static_assert(std::size(kNames) == std::variant_size_v<net::RequestBody>);
  return kNames[request.body.index()];
}

}  // namespace

struct Metrics::Registry {
  CounterFamily& counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  GaugeFamily& gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  HistogramFamily& histograms(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }
  prometheus::Registry registry;
};

class Metrics::HandleMetrics final : public ros::HandleObserver {
 public:
  explicit HandleMetrics(Registry& registry)
      : read_bytes_(registry.counters("weightlane_read_bytes_total",
                                      "Bytes read from peers, sealed or not")),
        calls_(registry.counters("weightlane_calls_total", "Group calls that ended")),
        call_seconds_(
            registry.histograms("weightlane_call_seconds", "Time of group calls that ended well")),
        connected_(
            registry.counters("weightlane_sources_connected_total", "Connections to sources")),
        source_failures_(registry.counters("weightlane_source_failures_total",
                                           "Sources given up during a read")),
        seal_failures_(registry.counters("weightlane_seal_failures_total",
                                         "Reads thrown away because they could not be sealed")),
        fences_(registry.counters("weightlane_fences_total",
                                  "Times that readers were cut off at the drain deadline")),
        server_lost_(registry.counters("weightlane_server_lost_total",
                                       "Times that no reference server was in reach")),
        offloads_(registry
                      .gauges("weightlane_offload_bytes",
                              "Host memory that this process keeps for others")
                      .Add({})),
        failovers_(registry.counters("weightlane_server_failovers_total",
                                     "Times that a handle opened again, at whatever server")),
        registered_(registry
                        .gauges("weightlane_registered_bytes",
                                "Memory registered by all handles of this process")
                        .Add({})),
        held_(registry.gauges("weightlane_held_version",
                              "Version published or received by a shard")) {}

  void on_call_ended(ros::HandleName, CallNumber, net::CallKind kind, bool ok, ErrorCode code,
                     net::Content, Nanos elapsed) override {
    const std::string call = net::call_kind_name(kind);
    calls_.Add({{"call", call}, {"outcome", outcome(ok, code)}}).Increment();
    if (ok) call_seconds_.Add({{"call", call}}, call_buckets()).Observe(to_seconds(elapsed));
  }
  void on_stamp(ros::HandleName name, Stamp stamp, net::Content content) override {
    const prometheus::Labels labels{{"model", std::string(name.model)},
                                    {"replica", std::string(name.replica)},
                                    {"shard", std::to_string(name.shard.value)}};
    prometheus::Gauge& gauge = held_.Add(labels);
    if (stamp.value == 0) {
      held_.Remove(&gauge);
    } else {
      gauge.Set(static_cast<double>(content.version.value));
    }
  }
  void on_source_connected(ros::HandleName, AssignmentId, std::string_view transport) override {
    connected_.Add({{"transport", std::string(transport)}}).Increment();
  }
  void on_bytes_read(ros::HandleName, uint64_t bytes, std::string_view transport) override {
    read_bytes_.Add({{"transport", std::string(transport)}}).Increment(static_cast<double>(bytes));
  }
  void on_seal_failed(ros::HandleName, AssignmentId) override {
    seal_failures_.Add({}).Increment();
  }
  void on_source_failed(ros::HandleName, AssignmentId, std::string_view) override {
    source_failures_.Add({}).Increment();
  }
  void on_fenced(ros::HandleName) override { fences_.Add({}).Increment(); }
  void on_server_lost(ros::HandleName) override { server_lost_.Add({}).Increment(); }
  void on_offload(ros::HandleName, net::MemoryRange, uint64_t all) override {
    offloads_.Set(static_cast<double>(all));
  }
  void on_opened(ros::HandleName, std::string_view, uint64_t, ros::Opening opening) override {
    if (opening == ros::Opening::kFirst) return;
    const bool refused = opening == ros::Opening::kRefused;
    failovers_.Add({{"outcome", refused ? "refused" : "resumed"}}).Increment();
  }
  void on_registered_bytes(ros::HandleName name, uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    const std::tuple key(std::string(name.model), std::string(name.replica), name.shard.value);
    uint64_t& now = registered_by_handle_[key];
    registered_.Increment(static_cast<double>(bytes) - static_cast<double>(now));
    now = bytes;
    if (bytes == 0) registered_by_handle_.erase(key);
  }

 private:
  CounterFamily& read_bytes_;
  CounterFamily& calls_;
  HistogramFamily& call_seconds_;
  CounterFamily& connected_;
  CounterFamily& source_failures_;
  CounterFamily& seal_failures_;
  CounterFamily& fences_;
  CounterFamily& server_lost_;
  prometheus::Gauge& offloads_;
  CounterFamily& failovers_;
  prometheus::Gauge& registered_;
  GaugeFamily& held_;
  std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, uint32_t>, uint64_t>
      registered_by_handle_;  // guarded by mutex_
};

class Metrics::ServerMetrics final : public ros::ServerObserver {
 public:
  explicit ServerMetrics(Registry& registry)
      : requests_(registry.counters("weightlane_server_requests_total", "Requests applied")),
        assignments_(
            registry.counters("weightlane_server_assignments_total", "Readers sent to a source")),
        decisions_(registry.counters("weightlane_server_decisions_total",
                                     "Group calls that came to their end")),
        evictions_(registry.counters("weightlane_server_evictions_total",
                                     "Shards not heard of for a lease")),
        seeds_(registry.counters("weightlane_server_seeds_total",
                                 "Versions that a replica began to carry into its datacenter")),
        seeds_skipped_(registry.counters(
            "weightlane_server_seeds_skipped_total",
            "Updates told that there is nothing, because another brings it into the datacenter")),
        visible_(registry.gauges("weightlane_server_visible_replicas",
                                 "Complete replicas that readers can be sent to")),
        offloads_(registry.counters("weightlane_server_offloads_total",
                                    "Copies in host memory that were asked for")),
        dropped_(registry.counters("weightlane_server_retention_dropped_total",
                                   "Retained versions let go, as their holders chose")),
        rewinds_(registry.counters("weightlane_server_rewinds_total", "Generations ended")) {}

  void on_visible(std::string_view, std::string_view, net::Content) override {
    visible_.Add({}).Increment();
  }
  void on_hidden(std::string_view, std::string_view, net::Content) override {
    visible_.Add({}).Decrement();
  }
  void on_assigned(std::string_view, std::string_view, ShardIndex, net::Content) override {
    assignments_.Add({}).Increment();
  }
  void on_decided(std::string_view, std::string_view, CallNumber, net::CallKind kind, bool ok,
                  ErrorCode code, net::Content) override {
    decisions_.Add({{"call", net::call_kind_name(kind)}, {"outcome", outcome(ok, code)}})
        .Increment();
  }
  void on_evicted(std::string_view, std::string_view, ShardIndex) override {
    evictions_.Add({}).Increment();
  }
  void on_offload_directed(std::string_view, std::string_view, net::Content) override {
    offloads_.Add({}).Increment();
  }
  void on_retention_dropped(std::string_view, net::Content, std::string_view) override {
    dropped_.Add({}).Increment();
  }
  void on_rewound(std::string_view, Generation) override { rewinds_.Add({}).Increment(); }
  void on_seed_begun(const ros::Group& group, net::Content) override {
    seeds_.Add({{"model", group.model}, {"datacenter", group.datacenter}}).Increment();
  }
  void on_seed_skipped(const ros::Group& group, net::Content) override {
    seeds_skipped_.Add({{"model", group.model}, {"datacenter", group.datacenter}}).Increment();
  }
  void on_request(const net::Request& request, bool repeated) override {
    requests_.Add({{"kind", request_name(request)}, {"repeated", repeated ? "yes" : "no"}})
        .Increment();
  }

 private:
  CounterFamily& requests_;
  CounterFamily& assignments_;
  CounterFamily& decisions_;
  CounterFamily& evictions_;
  CounterFamily& seeds_;
  CounterFamily& seeds_skipped_;
  GaugeFamily& visible_;
  CounterFamily& offloads_;
  CounterFamily& dropped_;
  CounterFamily& rewinds_;
};

Metrics::Metrics()
    : registry_(std::make_unique<Registry>()),
      handles_(std::make_unique<HandleMetrics>(*registry_)),
      server_(std::make_unique<ServerMetrics>(*registry_)) {}
Metrics::~Metrics() = default;

ros::HandleObserver& Metrics::handles() { return *handles_; }
ros::ServerObserver& Metrics::server() { return *server_; }

std::string Metrics::text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, registry_->registry.Collect());
  return out.str();
}

}  // namespace weightlane::prod
