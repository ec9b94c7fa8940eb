#include "tests/support/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace sluiceway::test {
namespace {

constexpr std::size_t kBoundary = 256;  // Alignment of cudaMalloc.
constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xCD};

bool all_guard(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kGuard; });
}

}  // namespace

Placement::~Placement() {
  for (const Range& range : ranges_) free_device_bytes(device_, range.block, range.block_bytes);
}

void Placement::add(const SparseRows& x) {
  const auto elems = static_cast<std::size_t>(x.rows * x.nnz);
  add(std::span(x.index, elems));
  add(std::span(x.value, elems));
}

void Placement::add(const SparseColumns& x) {
  if (x.offset == nullptr) return;
  const auto elems = static_cast<std::size_t>(x.offset[x.cols]);
  add(std::span(x.offset, static_cast<std::size_t>(x.cols) + 1));
  add(std::span(x.row, elems));
  add(std::span(x.value, elems));
}

void Placement::add(const BlockRows& x) {
  add(std::span(x.value, static_cast<std::size_t>(x.rows * x.kept)));
}

void Placement::add(const FactoredRoots& x) { add(x.row), add(x.col); }

void Placement::add(const AdamMoments& x) { add(x.m_in), add(x.v_in), add(x.m_out), add(x.v_out); }

void Placement::add(const MasterWeight& x) { add(x.in), add(x.out); }

void Placement::add(const StochasticWeight& x) { add(x.in), add(x.out); }

void Placement::add(const HiLoWeight& x) {
  add(x.hi_in), add(x.low_in), add(x.hi_out), add(x.low_out);
}

AnyMatrix Placement::placed(const AnyMatrix& x) const {
  return {on_device(x.data), x.rows, x.cols, x.stride, x.dtype};
}

SparseRows Placement::placed(const SparseRows& x) const {
  return {on_device(x.index), on_device(x.value), x.rows, x.cols, x.nnz};
}

SparseColumns Placement::placed(const SparseColumns& x) const {
  return {on_device(x.offset), on_device(x.row), on_device(x.value), x.rows, x.cols, x.nonzeros};
}

BlockRows Placement::placed(const BlockRows& x) const {
  BlockRows there = x;
  there.value = on_device(x.value);
  return there;
}

FactoredRoots Placement::placed(const FactoredRoots& x) const {
  return {placed(x.row), placed(x.col), x.eps};
}

AdamMoments Placement::placed(const AdamMoments& x) const {
  return {placed(x.m_in), placed(x.v_in), placed(x.m_out), placed(x.v_out)};
}

MasterWeight Placement::placed(const MasterWeight& x) const {
  return {placed(x.in), placed(x.out)};
}

StochasticWeight Placement::placed(const StochasticWeight& x) const {
  return {placed(x.in), placed(x.out), x.key, x.first};
}

HiLoWeight Placement::placed(const HiLoWeight& x) const {
  return {placed(x.hi_in), placed(x.low_in), placed(x.hi_out), placed(x.low_out)};
}

void Placement::add_range(const void* data, std::size_t bytes, bool written) {
  if (data == nullptr || bytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  ranges_.push_back({begin, begin + bytes, written});
}

// Padding between rows is part of the range: the kernel must not change it.
void Placement::add_rows(const void* data, std::int64_t rows, std::int64_t cols,
                         std::int64_t stride, std::size_t elem_bytes, bool written) {
  if (rows == 0 || cols == 0) return;
  add_range(data, static_cast<std::size_t>((rows - 1) * stride + cols) * elem_bytes, written);
}

void Placement::copy_in() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> joined;
  for (const Range& range : ranges_) {
    if (!joined.empty() && range.begin < joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
      joined.back().written = joined.back().written || range.written;
    } else {
      joined.push_back(range);
    }
  }
  ranges_ = std::move(joined);
  for (Range& range : ranges_) {
    range.first = kBoundary + range.begin % kBoundary;
    range.block_bytes = range.first + (range.end - range.begin) + kGuardBytes;
    range.block = static_cast<std::byte*>(allocate_device_bytes(device_, range.block_bytes));
    fill_device_bytes(device_, range.block, kGuard, range.block_bytes);
    copy_device_bytes(device_, range.block + range.first,
                      reinterpret_cast<const void*>(range.begin), range.end - range.begin);
  }
}

std::uintptr_t Placement::address_on_device(const void* host) const {
  const auto address = reinterpret_cast<std::uintptr_t>(host);
  for (const Range& range : ranges_) {
    if (address < range.begin || address >= range.end) continue;
    return reinterpret_cast<std::uintptr_t>(range.block + range.first) + (address - range.begin);
  }
  return address;  // A view without elements.
}

void Placement::finish() {
  for (const Range& range : ranges_) {
    std::vector<std::byte> block(range.block_bytes);
    copy_device_bytes(device_, block.data(), range.block, range.block_bytes);
    const std::size_t bytes = range.end - range.begin;
    const std::span<const std::byte> all(block);
    EXPECT_TRUE(all_guard(all.first(range.first))) << "a kernel wrote before its argument";
    EXPECT_TRUE(all_guard(all.subspan(range.first + bytes))) << "a kernel wrote past its argument";
    void* const host = reinterpret_cast<void*>(range.begin);
    if (range.written) {
      std::memcpy(host, block.data() + range.first, bytes);
    } else {
      EXPECT_EQ(std::memcmp(host, block.data() + range.first, bytes), 0)
          << "a kernel wrote to an argument that it only reads";
    }
  }
}

}  // namespace sluiceway::test
