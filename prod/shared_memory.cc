// Readers get a descriptor that was opened anew for reading only, so that no reader can write.
#include "prod/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <utility>

namespace weightlane::prod {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2ull << 20;

Error exhausted(const char* what, uint64_t bytes) {
  return Error{ErrorCode::kResourceExhausted, "shared memory of " + std::to_string(bytes) +
                                                  " bytes: " + what + ": " + std::strerror(errno)};
}

// Huge pages come only where the address and the file offset agree modulo their size.
void* map_aligned(uint64_t bytes, int protection, int fd) {
  const uint64_t room = bytes + kHugePage;
  void* reserved =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const uint64_t begin = reinterpret_cast<uint64_t>(reserved);
  const uint64_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  void* data =
      mmap(reinterpret_cast<void*>(aligned), bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    munmap(reserved, room);
    return MAP_FAILED;
  }
  const uint64_t end = aligned + (bytes + kPage - 1) / kPage * kPage;
  if (aligned > begin) munmap(reserved, aligned - begin);
  if (begin + room > end) munmap(reinterpret_cast<void*>(end), begin + room - end);
  madvise(data, bytes, MADV_HUGEPAGE);  // only a wish
  return data;
}

}  // namespace

std::shared_ptr<const SharedArena> SharedArenas::find(uint64_t address, uint64_t length) const {
  std::lock_guard lock(mutex_);
  auto after = arenas_.upper_bound(address);
  if (after == arenas_.begin()) return nullptr;
  const std::shared_ptr<const SharedArena>& arena = std::prev(after)->second;
  const uint64_t offset = address - arena->address;
  if (offset > arena->length || length > arena->length - offset) return nullptr;
  return arena;
}

void SharedArenas::add(std::shared_ptr<SharedArena> arena) {
  std::lock_guard lock(mutex_);
  arena->id = ++last_id_;
  const uint64_t address = arena->address;
  arenas_[address] = std::move(arena);
}

void SharedArenas::remove(uint64_t address) {
  std::lock_guard lock(mutex_);
  arenas_.erase(address);
}

Result<SharedMemory> SharedMemory::allocate(SharedArenas& arenas, uint64_t bytes) {
  if (bytes == 0) return Error{ErrorCode::kInvalidArgument, "shared memory of 0 bytes"};
  FileDescriptor writable(memfd_create("weightlane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!writable) return exhausted("memfd_create", bytes);
  if (ftruncate(writable.get(), static_cast<off_t>(bytes)) != 0)
    return exhausted("ftruncate", bytes);
  if (fcntl(writable.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return exhausted("sealing", bytes);
  }
  const std::string path = "/proc/self/fd/" + std::to_string(writable.get());
  FileDescriptor readable(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!readable) return exhausted("opening it for reading", bytes);
  void* data = map_aligned(bytes, PROT_READ | PROT_WRITE, writable.get());
  if (data == MAP_FAILED) return exhausted("mmap", bytes);

  SharedMemory memory;
  memory.arenas_ = &arenas;
  memory.data_ = static_cast<uint8_t*>(data);
  memory.size_ = bytes;
  auto arena = std::make_shared<SharedArena>();
  arena->address = reinterpret_cast<uint64_t>(data);
  arena->length = bytes;
  arena->file = std::move(readable);
  arenas.add(std::move(arena));
  return memory;
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    release();
    arenas_ = std::exchange(other.arenas_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void SharedMemory::release() {
  if (data_ == nullptr) return;
  arenas_->remove(reinterpret_cast<uint64_t>(data_));
  // A peer's mapping would keep the pages. It reads zeros from now on, and they don't count: the
  // arena is no region's any more.
  madvise(data_, size_, MADV_REMOVE);
  munmap(data_, size_);
  data_ = nullptr;
}

Result<std::unique_ptr<MappedArena>> MappedArena::map(uint64_t peer_address, uint64_t length,
                                                      FileDescriptor file) {
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error{ErrorCode::kCorrupt, "a peer's arena that is not sealed against shrinking"};
  }
  struct stat status{};
  if (fstat(file.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) < length ||
      length == 0 || peer_address + length < peer_address) {
    return Error{ErrorCode::kCorrupt, "a peer's arena that is smaller than it says"};
  }
  void* data = map_aligned(length, PROT_READ, file.get());
  if (data == MAP_FAILED) return exhausted("mapping a peer's", length);
  return std::unique_ptr<MappedArena>(
      new MappedArena(peer_address, length, static_cast<const uint8_t*>(data)));
}

MappedArena::~MappedArena() { munmap(const_cast<uint8_t*>(data_), length_); }

}  // namespace weightlane::prod
