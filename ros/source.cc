// Every store below is in the order that the seal asks for; the asserts in show() and advance() are
// the promise that nobody calls them out of turn. A hello must match in everything before it is
// told where memory is.
#include "ros/source.h"

#include <algorithm>

#include "net/codec.h"
#include "ros/planted_bugs.h"
#include "ros/probes.h"

namespace weightlane::ros {

namespace {

// Connections of readers that went without a word are only pruned when the plane notices; beyond
// this the oldest go.
constexpr size_t kReadersLimit = 1024;

// A server sends nobody to an opening that was left so many openings ago.
constexpr size_t kIncarnationsKept = 4;

std::string describe(const net::Content& content) {
  return "version " + std::to_string(content.version.value) + " (content " +
         std::to_string(content.id.value) + ")";
}

}  // namespace

Source::Source(Environment environment, std::string name)
    : environment_(environment), name_(std::move(name)), tasks_(*environment.runtime) {}

Source::~Source() {
  readers_.clear();
  tasks_.cancel_all();
  if (!endpoint_.empty()) environment_.data->stop_listening(this);
  if (digest_words_.value != 0) environment_.data->free_words(digest_words_);
  if (control_.value != 0) environment_.data->free_words(control_);
}

Result<Done> Source::start() {
  Result<net::RegionId> words = environment_.data->allocate_words(2);
  if (!words) return words.error();
  control_ = *words;
  Result<std::string> endpoint = environment_.data->listen(this);
  if (!endpoint) return endpoint.error();
  endpoint_ = *endpoint;
  return Done{};
}

Result<Done> Source::set_layout(const Layout* layout, std::vector<net::RegionId> regions,
                                bool with_digests) {
  if (with_digests) {
    Result<net::RegionId> words = environment_.data->allocate_words(
        static_cast<uint32_t>(layout->slices().size()) + kFirstDigestWord);
    if (!words) return words.error();
    digest_words_ = *words;
  }
  layout_ = layout;
  regions_ = std::move(regions);
  return Done{};
}

void Source::clear_layout() {
  WL_ASSERT(stamp_.value == 0 && tasks_.empty());
  layout_ = nullptr;
  regions_.clear();
  if (digest_words_.value != 0) environment_.data->free_words(digest_words_);
  digest_words_ = {};
}

void Source::add_incarnation(Incarnation incarnation) {
  if (incarnations_.size() == kIncarnationsKept) incarnations_.erase(incarnations_.begin());
  incarnations_.push_back(incarnation);
}

void Source::show(Stamp stamp, net::Content content, uint64_t proven) {
  WL_ASSERT(stamp_.value == 0 && stamp.value != 0 && layout_ != nullptr);
  stamp_ = stamp;
  content_ = content;
  proven_ = proven;
  if (has_digests()) environment_.data->store_word(digest_words_, kDigestStampWord, 0);
  if (!WL_BUG(kProvenKept)) environment_.data->store_word(control_, kProvenWord, proven);
  environment_.data->store_word(control_, kStampWord, stamp.value);
}

void Source::advance(uint64_t proven) {
  WL_ASSERT(stamp_.value != 0 && proven >= proven_);
  proven_ = proven;
  environment_.data->store_word(control_, kProvenWord, proven);
}

void Source::withdraw() {
  if (stamp_.value == 0) return;
  stamp_ = {};
  content_ = {};
  if (!WL_BUG(kStampKept)) environment_.data->store_word(control_, kStampWord, 0);
  readers_.clear();
}

flow::Task<void> Source::leave_memory() { co_await tasks_.drain(); }

size_t Source::connected_readers() const {
  std::erase_if(readers_, [](const auto& pair) { return pair->closed(); });
  return readers_.size();
}

void Source::compute_digests() {
  if (has_digests()) tasks_.spawn(compute_all(this, stamp_), "source.digests");
}

flow::Task<void> Source::compute_all(Source* self, Stamp stamp) {
  const size_t count = self->layout_->slices().size();
  for (size_t i = 0; i < count; ++i) {
    const Slice slice = self->layout_->slices()[i];
    const net::TensorPlace place = self->layout_->places()[slice.tensor];
    Result<uint64_t> sum = co_await self->environment_.data->checksum(
        self->regions_[place.region], place.offset + slice.tensor_offset, slice.length);
    if (self->stamp_ != stamp || !sum) co_return;  // withdrawn meanwhile
    self->environment_.data->store_word(self->digest_words_,
                                        kFirstDigestWord + static_cast<uint32_t>(i), *sum);
  }
  self->digests_ready();
}

void Source::digests_ready() {
  environment_.data->store_word(digest_words_, kDigestStampWord, stamp_.value);
}

Result<Done> Source::check_hello(const net::HelloMessage& hello) const {
  if (std::find(incarnations_.begin(), incarnations_.end(), hello.source) == incarnations_.end())
    return Error{ErrorCode::kRefused,
                 name_ + " is not the process that was meant: it has been restarted"};
  if (stamp_.value == 0 || layout_ == nullptr)
    return Error{ErrorCode::kRefused, name_ + " holds nothing"};
  if (hello.content != content_ && !WL_BUG(kConnectStale))
    return Error{ErrorCode::kRefused,
                 name_ + " holds " + describe(content_) + ", not " + describe(hello.content)};
  if (hello.layout != layout_->summary())
    return Error{ErrorCode::kLayoutMismatch, name_ + " has another layout than " + hello.reader};
  return Done{};
}

net::AcceptDecision Source::on_connect(std::span<const uint8_t> hello_bytes,
                                       std::unique_ptr<net::PassiveQueuePair> pair) {
  Result<net::HelloMessage> hello = net::decode_hello(hello_bytes);
  if (!hello) return hello.error();
  if (Result<Done> checked = check_hello(*hello); !checked) {
    environment_.runtime->probe(probes::kConnectRefused);
    return checked.error();
  }
  net::WelcomeMessage welcome;
  welcome.stamp = stamp_;
  welcome.control = pair->describe(control_);
  if (has_digests()) welcome.digests = pair->describe(digest_words_);
  welcome.slice_bytes = layout_->slice_bytes();
  welcome.regions.reserve(regions_.size());
  for (net::RegionId region : regions_) welcome.regions.push_back(pair->describe(region));
  welcome.tensors = layout_->places();
  if (connected_readers() >= kReadersLimit) readers_.erase(readers_.begin());
  readers_.push_back(std::move(pair));
  return net::Accept{net::encode(welcome)};
}

}  // namespace weightlane::ros
