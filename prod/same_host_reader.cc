// The checks before and after each copy are what makes dropping a pair or a region count here; see
// same_host_board.h.
#include "prod/same_host_reader.h"

#include <errno.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "prod/copy.h"
#include "prod/words.h"

namespace weightlane::prod {

using net::CompletionStatus;
using net::PostResult;

namespace {

// Copied between two looks at whether to stop; with a checksum, small enough to be still in the
// cache.
constexpr uint64_t kPiece = 1ull << 20;
constexpr uint64_t kSummedPiece = 256ull << 10;

class SameHostQueuePair final : public net::QueuePair {
 public:
  SameHostQueuePair(std::shared_ptr<SameHostReader> reader, net::Capabilities capabilities)
      : reader_(std::move(reader)), capabilities_(capabilities) {}
  ~SameHostQueuePair() override { reader_->close(); }

  net::Capabilities capabilities() const override { return capabilities_; }
  std::string_view transport() const override { return "same-host"; }
  PostResult post_read(const net::ReadWork& work) override { return reader_->post(work); }
  std::optional<net::Completion> poll() override { return reader_->queue().poll(); }
  flow::Task<Result<Done>> destroy(Nanos deadline) override {
    return SameHostReader::destroy(reader_, deadline);
  }

 private:
  std::shared_ptr<SameHostReader> reader_;
  net::Capabilities capabilities_;
};

bool has_ended(const FileDescriptor& process) {
  pollfd entry{};
  entry.fd = process.get();
  entry.events = POLLIN;
  return poll(&entry, 1, 0) > 0;
}

}  // namespace

std::unique_ptr<net::QueuePair> make_same_host_queue_pair(std::shared_ptr<SameHostReader> reader,
                                                          net::Capabilities capabilities) {
  return std::make_unique<SameHostQueuePair>(std::move(reader), capabilities);
}

std::optional<uint64_t> read_word_of(pid_t pid, uint64_t address) {
  uint64_t word = 0;
  const iovec into{&word, sizeof word};
  const iovec from{reinterpret_cast<void*>(address), sizeof word};
  if (process_vm_readv(pid, &into, 1, &from, 1, 0) != sizeof word) return std::nullopt;
  return word;
}

// A READ on its way to a helper thread. If it is dropped on the way it still ends.
struct SameHostReader::Job {
  std::shared_ptr<SameHostReader> reader;
  std::unique_ptr<PendingRead> read;
  ~Job() {
    if (read != nullptr) reader->queue_->finish(std::move(read), CompletionStatus::kFlushed);
  }
};

SameHostReader::SameHostReader(EventLoop& loop, MemoryRegistry& registry, HelperThreads* copies,
                               ArenaCache* mapped, flow::Signal* wake,
                               net::Capabilities capabilities, SameHostPeer peer,
                               std::shared_ptr<UnixChannel> channel)
    : registry_(&registry),
      copies_(copies),
      mapped_(mapped),
      peer_(std::move(peer)),
      queue_(std::make_shared<ReadQueue>(loop, wake, capabilities)),
      channel_(std::move(channel)),
      arenas_(peer_.arenas) {}

PostResult SameHostReader::post(const net::ReadWork& work) {
  if (copies_ == nullptr) return PostResult::kBroken;
  std::unique_ptr<PendingRead> read;
  const PostResult result = queue_->post(*registry_, this, work, read);
  if (read == nullptr) return result;
  auto job = std::make_shared<Job>();
  job->reader = shared_from_this();
  job->read = std::move(read);
  copies_->post([job = std::move(job)] { job->reader->carry_out(std::move(job->read)); });
  return result;
}

uint64_t arena_id(const Bytes& body) {
  uint64_t id = 0;
  if (body.size() == sizeof id) std::memcpy(&id, body.data(), sizeof id);
  return id;
}

void SameHostReader::on_frame(const UnixFrame& frame, const Bytes& body, FileDescriptor file) {
  if (frame.kind != static_cast<uint32_t>(SameHostFrame::kArena) || mapped_ == nullptr) return;
  Result<std::shared_ptr<const MappedArena>> arena =
      mapped_->map(peer_.pid, peer_.process, frame.a, frame.b, std::move(file));
  if (!arena) return;  // its memory is read by process_vm_readv then
  std::lock_guard lock(mutex_);
  arenas_.emplace(arena_id(body), std::move(*arena));
}

void SameHostReader::plane_gone() {
  copies_ = nullptr;
  mapped_ = nullptr;
  queue_->break_pair();
  channel_->close();
}

void SameHostReader::close() {
  queue_->close();
  channel_->close();
}

flow::Task<Result<Done>> SameHostReader::destroy(std::shared_ptr<SameHostReader> reader,
                                                 Nanos deadline) {
  reader->close();
  return ReadQueue::drained(reader->queue_, "process " + std::to_string(reader->peer_.pid),
                            deadline);
}

void SameHostReader::carry_out(std::unique_ptr<PendingRead> read) {
  uint64_t checksum = 0;
  const CompletionStatus status = copy(*read, checksum);
  queue_->finish(std::move(read), status, checksum);
}

// Whether the READ is still allowed, and where its bytes are in the peer.
CompletionStatus SameHostReader::still_stands(const PendingRead& read, BoardPlace& place) const {
  if (!peer_.board->pair_stands(peer_.pair) || has_ended(peer_.process)) {
    return CompletionStatus::kRetryExceeded;
  }
  const std::optional<BoardPlace> found =
      peer_.board->locate(read.work.from.key, read.work.from_offset, read.work.length);
  if (!found) return CompletionStatus::kRemoteAccess;
  place = *found;
  return CompletionStatus::kSuccess;
}

CompletionStatus SameHostReader::copy(PendingRead& read, uint64_t& checksum) {
  if (queue_->given_up(read.sequence)) return CompletionStatus::kFlushed;
  BoardPlace place;
  const CompletionStatus before = still_stands(read, place);
  if (before != CompletionStatus::kSuccess) return before;

  const std::shared_ptr<const MappedArena> arena = arena_of(place);
  const uint8_t* const mapped =
      arena == nullptr ? nullptr : arena->at(place.address, read.work.length);
  Checksum sum;
  const CompletionStatus copied =
      mapped == nullptr ? copy_by_system(read, place.address, sum) : copy_mapped(read, mapped, sum);
  if (copied != CompletionStatus::kSuccess) return copied;
  checksum = sum.value();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  BoardPlace same;
  const CompletionStatus after = still_stands(read, same);
  if (after == CompletionStatus::kSuccess && same != place) return CompletionStatus::kRemoteAccess;
  return after;
}

// Between two pieces.
CompletionStatus SameHostReader::must_stop(const PendingRead& read) const {
  if (queue_->given_up(read.sequence)) return CompletionStatus::kFlushed;
  if (read.into.unwanted()) return CompletionStatus::kLocalProtection;
  return CompletionStatus::kSuccess;
}

CompletionStatus SameHostReader::copy_mapped(PendingRead& read, const uint8_t* from,
                                             Checksum& sum) {
  const std::span<const uint8_t> all(from, read.work.length);
  uint8_t* const into = read.into.data();
  if (are_words(all)) {
    copy_words(into, all);
    sum.add({into, all.size()});
    return CompletionStatus::kSuccess;
  }
  for (uint64_t at = 0; at < all.size(); at += kPiece) {
    const CompletionStatus stop = must_stop(read);
    if (stop != CompletionStatus::kSuccess) return stop;
    const std::span<const uint8_t> piece = all.subspan(at, std::min(kPiece, all.size() - at));
    if (read.work.want_checksum) {
      copy_streaming_summed(into + at, piece, sum);
    } else {
      copy_streaming(into + at, piece);
    }
  }
  return CompletionStatus::kSuccess;
}

CompletionStatus SameHostReader::copy_by_system(PendingRead& read, uint64_t address,
                                                Checksum& sum) {
  const uint64_t length = read.work.length;
  const uint64_t piece = read.work.want_checksum ? kSummedPiece : kPiece;
  for (uint64_t at = 0; at < length; at += piece) {
    const CompletionStatus stop = must_stop(read);
    if (stop != CompletionStatus::kSuccess) return stop;
    uint8_t* const into = read.into.data() + at;
    const uint64_t bytes = std::min(piece, length - at);
    const CompletionStatus status = vm_read(address + at, into, bytes);
    if (status != CompletionStatus::kSuccess) return status;
    if (read.work.want_checksum) sum.add({into, bytes});
  }
  return CompletionStatus::kSuccess;
}

CompletionStatus SameHostReader::vm_read(uint64_t address, uint8_t* into, uint64_t bytes) const {
  while (bytes > 0) {
    const iovec local{into, bytes};
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t got = process_vm_readv(peer_.pid, &local, 1, &remote, 1, 0);
    if (got > 0) {
      into += got;
      address += static_cast<uint64_t>(got);
      bytes -= static_cast<uint64_t>(got);
    } else if (got == 0 || errno == EFAULT) {
      return CompletionStatus::kRemoteAccess;  // unmapped meanwhile
    } else if (errno == ESRCH) {
      return CompletionStatus::kRetryExceeded;
    } else if (errno != EINTR) {
      return CompletionStatus::kRemoteOperation;
    }
  }
  return CompletionStatus::kSuccess;
}

// By id, not by address: memory that was freed and memory that came after it may share the address.
std::shared_ptr<const MappedArena> SameHostReader::arena_of(const BoardPlace& place) const {
  std::lock_guard lock(mutex_);
  const auto found = arenas_.find(place.arena);
  return place.arena == 0 || found == arenas_.end() ? nullptr : found->second;
}

}  // namespace weightlane::prod
