#include "tests/support/io_back_ends.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "kernels/base/check.h"
#include "runtime/memory/budget.h"
#include "runtime/store/memory_io.h"
#include "runtime/store/open_io.h"
#include "tests/support/fault_io.h"
#include "tests/support/memory_folder.h"
#include "tests/support/slow_io.h"

namespace sluiceway::test {
namespace {

std::unique_ptr<RawIo> open_memory(std::uint64_t size_bytes) {
  static Budget budget = Budget::unlimited();
  return open_memory_io(budget, size_bytes, "memory");
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
#endif

}  // namespace

ScratchPath::ScratchPath(const std::string& folder) {
  static std::atomic<int> count{0};
  const std::filesystem::path base =
      folder.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(folder);
  path_ = (base / concat("sluiceway_test_", getpid(), "_", count++)).string();
}

ScratchPath::~ScratchPath() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

AlignedBytes::AlignedBytes(std::size_t size) : size_(size) {
  constexpr std::size_t kPage = 4096;
  void* const bytes = std::aligned_alloc(kPage, (size / kPage + 1) * kPage);
  if (bytes == nullptr) throw std::bad_alloc();
  std::memset(bytes, 0, size);
  bytes_.reset(static_cast<std::byte*>(bytes));
}

AlignedBytes::AlignedBytes(std::size_t size, Rng& rng) : AlignedBytes(size) {
  for (std::byte& byte : span()) byte = static_cast<std::byte>(rng.bits());
}

void AlignedBytes::Free::operator()(std::byte* bytes) const noexcept { std::free(bytes); }

bool operator==(const AlignedBytes& a, const AlignedBytes& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<std::string> why_no_uring() {
  if (kThreadSanitizer) return "ThreadSanitizer does not see what the kernel writes";
  const ScratchPath path;
  create_drive_file(path.str(), 4096);
  try {
    (void)open_io(path.str(), {.io = IoChoice::kUring});
    return std::nullopt;
  } catch (const Unavailable& error) {
    return error.what();
  }
}

std::vector<std::string> io_back_ends() {
  std::vector<std::string> names = {"posix", "memory", "fault", "slow"};
  if (!memory_folder().empty()) names.emplace_back("tmpfs");
  if (!why_no_uring()) names.emplace_back("uring");
  return names;
}

OpenedBackEnd open_back_end(const std::string& name, std::uint64_t size_bytes, std::size_t depth) {
  OpenedBackEnd opened;
  if (name == "memory") {
    opened.io = open_memory(size_bytes);
  } else if (name == "fault") {
    auto io = std::make_unique<FaultIo>(open_memory(size_bytes));
    io->reorder(20240611);
    for (std::uint64_t nth = 1; nth < 5000; nth += 7) {
      io->shorten(nth % 2 == 0 ? IoKind::kRead : IoKind::kWrite, {nth, 1}, 4096 + nth);
    }
    opened.io = std::move(io);
  } else if (name == "slow") {
    opened.io =
        std::make_unique<SlowIo>(open_memory(size_bytes), 20240611, std::chrono::microseconds(300));
  } else {
    opened.path = std::make_unique<ScratchPath>(name == "tmpfs" ? memory_folder() : "");
    create_drive_file(opened.path->str(), size_bytes);
    const IoChoice choice = name == "uring" ? IoChoice::kUring : IoChoice::kPosix;
    opened.io = open_io(opened.path->str(), {.io = choice, .depth = depth});
  }
  return opened;
}

}  // namespace sluiceway::test
