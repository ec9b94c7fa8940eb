// ZoArena against element-by-element sums: reading, exporting and consolidating.
#include "runtime/engine/zo/zo_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "kernels/base/checksum.h"
#include "kernels/base/error.h"
#include "tests/support/arena_run.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// The place of the arena: this many drives; 0 is host memory.
struct Place {
  int drives = 0;
  int threads = 1;
  IoChoice io = IoChoice::kAuto;
};

class ZoArenaTest : public testing::TestWithParam<Place> {
 protected:
  ZoArenaTest() {
    options.chunk_bytes = kArenaChunk;
    options.threads = GetParam().threads;
    options.store.io = GetParam().io;
    for (int d = 0; d < GetParam().drives; ++d) {
      options.store.drives.push_back(drives.emplace_back(new_path())->str());
    }
  }
  static std::unique_ptr<ScratchPath> new_path() {
    return std::make_unique<ScratchPath>(memory_folder());
  }
  std::unique_ptr<ZoArena> create(std::span<const std::byte> run_state = {}) {
    return ZoArena::create(budget, options, weights, fill_from(first), run_state);
  }
  // If on drives, reopens it as another process would.
  void reopen(std::unique_ptr<ZoArena>& arena) {
    if (options.store.drives.empty()) return;
    arena.reset();
    arena = ZoArena::open(budget, options, weights);
    ASSERT_NE(arena, nullptr);
  }
  ScalarLog open_log(const ZoArena& arena) {
    return ScalarLog::open(log_path.str(), shape, arena.base(), quick);
  }
  WeightBytes theta(const WeightBytes& base, std::uint64_t from, std::uint64_t to, bool new_base) {
    return ReferenceTheta(shape, from, to).of(weights, base, new_base);
  }

  std::vector<std::unique_ptr<ScratchPath>> drives;
  ScratchPath log_path{memory_folder()};
  LogOptions quick{.busy_wait = std::chrono::milliseconds(0),
                   .sync_interval = std::chrono::hours(1)};
  Budget budget = Budget::unlimited();
  ArenaOptions options;
  std::vector<ArenaWeight> weights = arena_weights();
  WeightBytes first = random_bytes(weights, 20261123);
  LogShape shape = arena_log_shape();
};

TEST_P(ZoArenaTest, HoldsWhatItWasMadeOf) {
  const std::vector<std::byte> run{std::byte{1}, std::byte{2}, std::byte{3}};
  auto arena = create(run);
  const ArenaBase made = arena->base();
  EXPECT_EQ(made.base.generation, 1U);
  EXPECT_EQ(made.base.step, 0U);
  EXPECT_EQ(made.made_with, LogId{});
  EXPECT_EQ(difference(weights, read_all(*arena), first), "");
  reopen(arena);
  EXPECT_EQ(arena->base().base, made.base);
  EXPECT_EQ(arena->run_state(), run);
  EXPECT_EQ(difference(weights, read_all(*arena), first), "");
  expect_base_hash(*arena);
}

TEST_P(ZoArenaTest, HashIsOfNamesTypesSizesAndContentsInOrder) {
  Checksum sum;
  const auto add = [&sum](auto value) {
    std::byte bytes[sizeof(value)];
    for (std::size_t i = 0; i < sizeof(value); ++i)
      bytes[i] = static_cast<std::byte>(value >> (8 * i));
    sum.update(bytes);
  };
  for (std::size_t w = 0; w < weights.size(); ++w) {
    add(std::uint64_t{weights[w].name.size()});
    sum.update(std::as_bytes(std::span(weights[w].name)));
    add(std::uint32_t{weights[w].dtype == DType::kF32   ? 0U
                      : weights[w].dtype == DType::kF16 ? 1U
                                                        : 2U});
    add(static_cast<std::uint64_t>(weights[w].elements));
    sum.update(first[w]);
  }
  EXPECT_EQ(to_hex(create()->base().base.hash), sum.hex());
}

TEST_P(ZoArenaTest, BasesAndExportsEqualTheReferenceForEveryFamily) {
  for (const NoiseFamily family :
       {NoiseFamily::kRademacher, NoiseFamily::kByteQuantile, NoiseFamily::kGaussian}) {
    shape.noise.family = static_cast<std::uint32_t>(family);
    for (const auto& drive : drives) std::filesystem::remove(drive->str());
    std::filesystem::remove(log_path.str());
    auto arena = create();
    ScalarLog log = ScalarLog::create(log_path.str(), shape, arena->base().base, quick);
    append_steps(log, 3);
    EXPECT_EQ(difference(weights, exported(*arena, log, 0), first), "");
    EXPECT_EQ(difference(weights, exported(*arena, log, 2), theta(first, 0, 2, false)), "");
    arena->consolidate(log, {});
    const WeightBytes second = theta(first, 0, 3, true);
    EXPECT_EQ(difference(weights, read_all(*arena), second), "");
    EXPECT_EQ(arena->base().base, log.base());
    EXPECT_EQ(arena->base().made_with, log.id());
    append_steps(log, 5);
    EXPECT_EQ(difference(weights, exported(*arena, log, 5), theta(second, 3, 5, false)), "");
    EXPECT_THROW(exported(*arena, log, 2), InvalidArgument);
    expect_base_hash(*arena);
  }
}

TEST_P(ZoArenaTest, ManyConsolidationsWithAReopeningAfterEach) {
  auto arena = create();
  WeightBytes base = first;
  ScalarLog::create(log_path.str(), shape, arena->base().base, quick);
  std::uint64_t step = 0;
  for (const std::uint64_t more : std::initializer_list<std::uint64_t>{1, 4, 2, 3}) {
    ScalarLog log = open_log(*arena);
    append_steps(log, step + more);
    const std::vector<std::byte> run(more * 100, static_cast<std::byte>(more));
    arena->consolidate(log, {.run_state = run});
    base = theta(base, step, step + more, true);
    step += more;
    EXPECT_EQ(arena->base().base.step, step);
    reopen(arena);
    EXPECT_EQ(arena->run_state(), run);
    ASSERT_EQ(difference(weights, read_all(*arena), base), "");
  }
  EXPECT_EQ(arena->base().base.generation, 5U);
  EXPECT_EQ(open_log(*arena).history().bases().size(), 5U);
}

TEST_P(ZoArenaTest, UpdatesFromTheStepOnStayPending) {
  auto arena = create();
  ScalarLog log = ScalarLog::create(log_path.str(), shape, arena->base().base, quick);
  append_steps(log, 6);
  arena->consolidate(log, {.step = 4});
  const WeightBytes base = theta(first, 0, 4, true);
  EXPECT_EQ(arena->base().base.step, 4U);
  EXPECT_EQ(log.next_step(), 6U);
  EXPECT_EQ(difference(weights, exported(*arena, log, 6), theta(base, 4, 6, false)), "");
  EXPECT_THROW(arena->consolidate(log, {.step = 7}), InvalidArgument);
  EXPECT_THROW(arena->consolidate(log, {.step = 3}), InvalidArgument);
  EXPECT_EQ(difference(weights, read_all(*arena), base), "");
}

TEST_P(ZoArenaTest, RunStateIsCommittedAloneAndWhereNothingIsPending) {
  auto arena = create();
  const ArenaBase before = arena->base();
  const std::vector<std::byte> one(1, std::byte{9}), none;
  arena->commit(one);
  reopen(arena);
  EXPECT_EQ(arena->run_state(), one);
  EXPECT_EQ(arena->base().base, before.base);
  ScalarLog log = ScalarLog::create(log_path.str(), shape, arena->base().base, quick);
  arena->consolidate(log, {});
  EXPECT_EQ(arena->base().base, before.base);
  EXPECT_EQ(log.history().entries(), 0U);
  reopen(arena);
  EXPECT_EQ(arena->run_state(), none);
  EXPECT_EQ(difference(weights, read_all(*arena), first), "");
  const std::vector<std::byte> much((1U << 20) - 79);
  EXPECT_THAT([&] { arena->commit(much); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("has 1048497 bytes"), HasSubstr("at most 1048496"))));
  arena->commit(std::span(much).first(much.size() - 1));
  EXPECT_EQ(arena->run_state().size(), much.size() - 1);
}

TEST_P(ZoArenaTest, WeightsThatAreNotTrainedAreNotWrittenAgain) {
  auto arena = create();
  ScalarLog log = ScalarLog::create(log_path.str(), shape, arena->base().base, quick);
  append_steps(log, 2);
  const auto written = [&] {
    std::uint64_t bytes = 0;
    for (const auto& drive : arena->store().drives()) bytes += drive->counters().bytes_written;
    return bytes;
  };
  const std::uint64_t before = written();
  arena->consolidate(log, {});
  std::uint64_t trained = 0;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    trained += weights[w].is_trained() ? arena->read_bytes(w) : 0;
  }
  EXPECT_EQ(written() - before, trained + 3 * kBlockBytes);  // Table, run state, superblock.
  EXPECT_EQ(difference(weights, read_all(*arena), theta(first, 0, 2, true)), "");
}

// Reads ahead on threads of its own while the base changes: each weight is of one generation.
TEST_P(ZoArenaTest, ReadsGoOnWhileRunStatesAreCommitted) {
  auto arena = create();
  const AlignedBytes memory(arena->read_bytes(1));
  for (int i = 0; i < 50; ++i) {
    std::vector<std::promise<bool>> ended(4);
    const std::function<void(std::size_t)> next = [&](std::size_t k) {
      arena->read(1, memory.span(), [&, k](const std::exception_ptr& error) {
        if (k + 1 < ended.size()) next(k + 1);  // Called from a handler.
        ended[k].set_value(error == nullptr);
      });
    };
    next(0);
    arena->commit(std::vector<std::byte>(static_cast<std::size_t>(i)));
    for (auto& one : ended) EXPECT_TRUE(one.get_future().get());
  }
  EXPECT_TRUE(std::ranges::equal(memory.span().first(first[1].size()), first[1]));
}

INSTANTIATE_TEST_SUITE_P(Places, ZoArenaTest,
                         testing::Values(Place{}, Place{1}, Place{2, 3},
                                         Place{1, 2, IoChoice::kPosix}),
                         [](const auto& about) {
                           return "Drives" + std::to_string(about.param.drives) + "Threads" +
                                  std::to_string(about.param.threads);
                         });

}  // namespace
}  // namespace sluiceway::test
