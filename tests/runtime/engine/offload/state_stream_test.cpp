// AdamW over states in a store has the very bits of AdamW in memory, step by step, in any order of
// the lanes, and from the last commit on after a crash.
#include "runtime/engine/offload/state_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/device/stream.h"
#include "runtime/memory/budget.h"
#include "runtime/schedule/executor.h"
#include "runtime/store/memory_io.h"
#include "tests/support/fault_io.h"
#include "tests/support/power_cut_io.h"
#include "tests/support/rng.h"
#include "tests/support/slow_io.h"
#include "tests/support/small_run.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kElems = 2 * ChunkPlan::kStoredAlignment;

// Tensors like those of a model, and AdamW over them in memory.
template <typename G, typename W>
class Reference {
 public:
  explicit Reference(const std::vector<std::int64_t>& elems) {
    Rng rng(5);
    for (const std::int64_t n : elems) {
      master.push_back(rng.vector(n));
      m.emplace_back(n);
      v.emplace_back(n);
      weight.emplace_back(n);
    }
  }

  // Returns the gradient of micro-batch `batch` of a step; equal on every call.
  std::vector<G> gradient(int tensor, std::int64_t step, int batch) const {
    Rng rng(static_cast<std::uint64_t>(1000 * step + 10 * tensor + batch));
    return rng.vector<G>(static_cast<std::int64_t>(master[at(tensor)].size()), 0.1);
  }

  static AdamHyper hyper(int tensor, std::int64_t step) {
    return {1e-2 / (1 + tensor), 0.9, 0.99, 1e-8, tensor % 2 == 0 ? 0.1 : 0.0, step};
  }

  void step(std::int64_t number, int batches, float scale) {
    for (std::size_t t = 0; t < master.size(); ++t) {
      const int tensor = static_cast<int>(t);
      const AdamMoments moments = AdamMoments::in_place(m[t], v[t]);
      const AdamHyper adam = hyper(tensor, number);
      const auto apply = [&](auto g) {
        if constexpr (std::is_same_v<W, float>) {
          cpu::adam_step(g, scale, moments, adam, MasterWeight{master[t], master[t]});
          weight[t] = master[t];
        } else {
          cpu::adam_step(g, scale, moments, adam,
                         MasterAndCopy<W>{master[t], master[t], weight[t]});
        }
      };
      const std::vector<G> first = gradient(tensor, number, 0);
      if (batches == 1) {
        apply(std::span<const G>(first));
        continue;
      }
      std::vector<float> sum(first.size());
      std::ranges::transform(first, sum.begin(), [](G g) { return to_float(g); });
      for (int b = 1; b < batches; ++b) {
        const std::vector<G> more = gradient(tensor, number, b);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += to_float(more[i]);
      }
      apply(std::span<const float>(sum));
    }
  }

  static std::size_t at(int tensor) { return static_cast<std::size_t>(tensor); }
  std::vector<std::vector<float>> master, m, v;
  std::vector<std::vector<W>> weight;  // In the type the model computes with.
};

// Runs the same steps over a store, through the lanes.
template <typename G, typename W>
class Streamed {
  std::vector<DType> weights_;

 public:
  Streamed(const std::vector<std::int64_t>& elems, std::unique_ptr<ChunkStore> opened, int batches,
           std::size_t chunks_in_ring, const InPlace& in_place = {}, bool on_card = false,
           std::unique_ptr<ChunkStore> overflow = nullptr)
      : weights_(elems.size(), dtype_of<W>),
        plan(elems, kElems),
        types{dtype_of<G>, weights_, in_place, false, on_card},
        store(std::move(opened)),
        beside(std::move(overflow)),
        ring(budget, DeviceId::host(),
             {.slab_bytes = chunks_in_ring * StateStream::ring_bytes(plan, types, batches)}),
        stream(*store, beside.get(), ring, plan, {}, types),
        batches_(batches) {
    for (const std::int64_t n : elems) weight.emplace_back(n);
    Executor::Config config;
    config.lanes = {{"fetch", &fetch_, 4, 0},
                    {"host", &host_, 1, 0},
                    {"store", &store_lane_, 4, 0},
                    {"h2d", &h2d_, 1, 0}};
    config.key_count = static_cast<int>(plan.chunks().size());
    executor = std::make_unique<Executor>(config);
  }

  ~Streamed() { close(); }

  // Ends the requests of the store first: a drive may keep a chunk's memory for a moment longer
  // than its payload lives.
  void close() {
    try {
      if (executor) executor->drain();
    } catch (const Error&) {
    }
    executor.reset();
    beside.reset();
    store.reset();
  }

  static std::vector<RegionSpec> regions(const std::vector<std::int64_t>& elems, int batches,
                                         const InPlace& in_place = {}) {
    const std::vector<DType> weights(elems.size(), dtype_of<W>);
    return StateStream::regions(ChunkPlan(elems, kElems), {dtype_of<G>, weights, in_place}, 2,
                                static_cast<std::uint32_t>(batches));
  }
  static std::vector<RegionSpec> overflow_regions(const std::vector<std::int64_t>& elems,
                                                  const InPlace& in_place) {
    const std::vector<DType> weights(elems.size(), dtype_of<W>);
    return StateStream::overflow_regions(ChunkPlan(elems, kElems), {dtype_of<G>, weights, in_place},
                                         static_cast<std::uint32_t>(in_place.extents));
  }

  void initial(const Reference<G, W>& from) {
    stream.write_initial([&](const ChunkPiece& piece, std::span<float> out) {
      const auto& all = from.master[static_cast<std::size_t>(piece.tensor)];
      std::copy_n(all.begin() + piece.first, piece.elems, out.begin());
    });
    store->commit(0, {});
  }

  void spill(const Reference<G, W>& from, std::int64_t step) {
    for (std::size_t c = 0; c < plan.chunks().size(); ++c) {
      const PlannedChunk& chunk = plan.chunks()[c];
      for (int b = 0; b < batches_; ++b) {
        ChunkMemory memory(static_cast<std::uint64_t>(chunk.stored_elems) * sizeof(G));
        auto* const out = reinterpret_cast<G*>(memory.bytes().data());
        for (const ChunkPiece& piece : chunk.pieces) {
          const auto gradient = from.gradient(piece.tensor, step, b);
          std::copy_n(gradient.begin() + piece.first, piece.elems, out + piece.at);
        }
        ASSERT_EQ(outcome_of([&](ChunkStore::Done done) {
                    stream.write_extent(static_cast<int>(c), b, memory.bytes(), std::move(done));
                  }),
                  "");
      }
    }
  }

  void enqueue(std::int64_t step, float scale) {
    for (std::size_t c = 0; c < plan.chunks().size(); ++c) {
      ChunkUpdate update;
      update.extents = batches_;
      for (const ChunkPiece& piece : plan.chunks()[c].pieces) {
        update.pieces.push_back({Reference<G, W>::hyper(piece.tensor, step), scale});
      }
      update.emit = [this](const ChunkPiece& piece, std::span<const std::byte> bytes, StreamRef) {
        const auto* const from = reinterpret_cast<const W*>(bytes.data());
        std::copy_n(from, piece.elems,
                    weight[static_cast<std::size_t>(piece.tensor)].begin() + piece.first);
      };
      Payload payload = stream.update(static_cast<int>(c), std::move(update));
      payload.key = static_cast<int>(c);
      payload.deadline = plan.chunks().size() - c;
      executor->submit(std::move(payload));
    }
    executor->release();
  }

  Budget budget = Budget::unlimited();
  ChunkPlan plan;
  StateStream::Types types;
  std::unique_ptr<ChunkStore> store, beside;
  PinnedPool ring;
  StateStream stream;
  std::vector<std::vector<W>> weight;
  std::unique_ptr<Executor> executor;

 private:
  int batches_;
  Stream fetch_ = Stream::host({"fetch"}), host_ = Stream::host({"host"}),
         store_lane_ = Stream::host({"store"}), h2d_ = Stream::host({"h2d"});
};

const std::vector<std::int64_t> kTensors{7, 300, 2 * kElems + 11, kElems, 1, 5000, kElems / 2 + 1};

using Media = std::vector<std::shared_ptr<PowerCutIo::Medium>>;

struct Case {
  int batches = 1;
  std::size_t chunks_in_ring = 3;
  bool slow = false;
};

// A store whose media outlive it.
class Disk {
 public:
  explicit Disk(const std::vector<RegionSpec>& regions) {
    Contents contents;
    contents.regions = regions;
    layout_ = new_layout(contents, {1, 1});
    for (const DriveShare& drive : layout_.drives) {
      media_.push_back(std::make_shared<PowerCutIo::Medium>(drive.bytes));
    }
  }

  std::unique_ptr<ChunkStore> create(bool slow) {
    return ChunkStore::create(budget_, drives(slow), layout_);
  }
  std::unique_ptr<ChunkStore> open(bool slow = false) {
    return ChunkStore::open(budget_, drives(slow));
  }
  std::vector<FaultIo*> faults;

 private:
  ChunkStore::Drives drives(bool slow) {
    ChunkStore::Drives drives;
    faults.clear();
    for (const auto& medium : media_) {
      auto fault =
          std::make_unique<FaultIo>(std::make_unique<PowerCutIo>(medium, PowerCutIo::Options()));
      faults.push_back(fault.get());
      std::unique_ptr<RawIo> io = std::move(fault);
      if (slow) io = std::make_unique<SlowIo>(std::move(io), 3, std::chrono::microseconds(500));
      Drive::Options options;
      options.first_pause = std::chrono::milliseconds(0);
      drives.push_back(std::make_unique<Drive>(std::move(io), options));
    }
    return drives;
  }

  Budget budget_ = Budget::unlimited();
  Layout layout_;
  Media media_;
};

class StateStreamTest : public testing::TestWithParam<Case> {};

template <typename G, typename W>
void expect_same_bits_with_a_crash_on_the_way(const Case& tested) {
  using Run = Streamed<G, W>;
  Reference<G, W> reference(kTensors);
  Disk disk(Run::regions(kTensors, tested.batches));
  auto run = std::make_unique<Run>(kTensors, disk.create(tested.slow), tested.batches,
                                   tested.chunks_in_ring);
  run->initial(reference);
  for (std::int64_t step = 1; step <= 5; ++step) {
    const float scale = 1.0F / static_cast<float>(step);
    if (step == 3) {  // Updated, not committed, and lost.
      run->spill(reference, step);
      run->enqueue(step, scale);
      run.reset();
      run = std::make_unique<Run>(kTensors, disk.open(tested.slow), tested.batches,
                                  tested.chunks_in_ring);
      EXPECT_EQ(run->store->live().step, 2U);
    }
    run->spill(reference, step);
    run->enqueue(step, scale);
    run->executor->drain();
    run->store->commit(static_cast<std::uint64_t>(step), {});
    reference.step(step, tested.batches, scale);
    for (std::size_t t = 0; t < kTensors.size(); ++t) {
      ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(run->weight[t])),
                                     std::as_bytes(std::span(reference.weight[t]))))
          << "tensor " << t << " after step " << step;
    }
  }
}

TEST_P(StateStreamTest, Bf16GradientsAndWeights) {
  expect_same_bits_with_a_crash_on_the_way<bf16, bf16>(GetParam());
}
TEST_P(StateStreamTest, F16GradientsAndWeights) {
  expect_same_bits_with_a_crash_on_the_way<f16, f16>(GetParam());
}
TEST_P(StateStreamTest, F32ModelsAndGradients) {
  expect_same_bits_with_a_crash_on_the_way<float, float>(GetParam());
}
TEST_P(StateStreamTest, Bf16GradientsOfAnF32Model) {
  expect_same_bits_with_a_crash_on_the_way<bf16, float>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Shapes, StateStreamTest,
                         testing::Values(Case{1, 3, false}, Case{1, 1, true}, Case{3, 2, true}),
                         [](const auto& tested) {
                           return "M" + std::to_string(tested.param.batches) + "Ring" +
                                  std::to_string(tested.param.chunks_in_ring);
                         });

// ---- In place ----

std::unique_ptr<ChunkStore> store_in_memory(Budget& budget, std::vector<RegionSpec> regions) {
  Contents contents;
  contents.regions = std::move(regions);
  contents.spares_per_drive = 0;
  const Layout layout = new_layout(contents, {1});
  ChunkStore::Drives drives;
  drives.push_back(
      std::make_unique<Drive>(open_memory_io(budget, layout.drives.front().bytes, "memory")));
  return ChunkStore::create(budget, std::move(drives), layout);
}

// `share`: of the bytes for which there is room in place.
template <typename G, typename W>
void expect_same_bits_in_place(int batches, bool on_card, double share) {
  using Run = Streamed<G, W>;
  Budget budget = Budget::unlimited();
  Reference<G, W> reference(kTensors);
  InPlace in_place{InPlace::kAll, batches};
  std::uint64_t bytes = 0;
  for (const RegionSpec& region : Run::regions(kTensors, batches, in_place)) {
    bytes += region.chunk_bytes * region.slots;
  }
  in_place.bytes = 1 + static_cast<std::uint64_t>(share * static_cast<double>(bytes));
  auto store = store_in_memory(budget, Run::regions(kTensors, batches, in_place));
  const std::vector<RegionSpec> others = Run::overflow_regions(kTensors, in_place);
  EXPECT_EQ(others.empty(), share >= 1);
  Run run(kTensors, std::move(store), batches, 1, in_place, on_card,
          others.empty() ? nullptr : store_in_memory(budget, others));
  run.initial(reference);
  for (std::int64_t step = 1; step <= 4; ++step) {
    run.spill(reference, step);
    run.enqueue(step, 0.5F);
    run.executor->drain();
    reference.step(step, batches, 0.5F);
    for (std::size_t t = 0; t < kTensors.size(); ++t) {
      ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(run.weight[t])),
                                     std::as_bytes(std::span(reference.weight[t]))))
          << "tensor " << t << " after step " << step;
    }
  }
  for (std::size_t c = 0; c < run.plan.chunks().size(); ++c) {
    run.stream.read(
        static_cast<int>(c), Version::kLive,
        [&](const ChunkPiece& piece, const StateStream::PieceState& state) {
          const auto t = static_cast<std::size_t>(piece.tensor);
          const auto equal = [&](std::span<const float> found, const std::vector<float>& all) {
            return std::ranges::equal(
                found, std::span(all).subspan(static_cast<std::size_t>(piece.first), found.size()));
          };
          EXPECT_TRUE(equal(state[0], reference.m[t]));
          EXPECT_TRUE(equal(state[1], reference.v[t]));
          EXPECT_TRUE(equal(state[2], reference.master[t]));
        });
  }
}

TEST(StateStreamInPlaceTest, BitsAreThoseOfAdamWInMemory) {
  for (const int batches : {1, 3}) {
    for (const bool on_card : {false, true}) {
      for (const double share : {0.0, 0.3, 0.7, 1.0}) {
        SCOPED_TRACE(testing::Message() << batches << " extents, on a card: " << on_card << ", "
                                        << share << " of the bytes in place");
        expect_same_bits_in_place<bf16, bf16>(batches, on_card, share);
        expect_same_bits_in_place<float, float>(batches, on_card, share);
        expect_same_bits_in_place<bf16, float>(batches, on_card, share);
      }
    }
  }
}

TEST(StateStreamInPlaceTest, TheRingHoldsCopiesOfWeightsAndGradientsAlone) {
  const ChunkPlan plan(kTensors, kElems);
  const auto most = static_cast<std::size_t>(kElems);
  const std::vector<DType> half(kTensors.size(), DType::kBF16), whole(kTensors.size(), DType::kF32);
  const InPlace all{InPlace::kAll, 3};
  const auto ring = [&](const StateStream::Types& types) {
    return StateStream::ring_bytes(plan, types, 3);
  };
  EXPECT_EQ(ring({DType::kBF16, half}), (12 + 3 * 2 + 2) * most);
  EXPECT_EQ(ring({DType::kBF16, half, all}), 2 * most);
  EXPECT_EQ(ring({DType::kBF16, half, all, true}), (2 + 2) * most);
  EXPECT_EQ(ring({DType::kF32, whole, all}), 4 * most);
  EXPECT_EQ(ring({DType::kBF16, whole, all}), 2 * most);
  EXPECT_EQ(ring({DType::kBF16, whole, all, false, true}), 4 * most);
  EXPECT_EQ(ring({DType::kF32, whole, all, true, true}), (4 + 4) * most);
}

TEST(StateStreamInPlaceTest, AStoreOnADriveIsRefused) {
  Disk disk(Streamed<bf16, bf16>::regions(kTensors, 1));
  EXPECT_THAT(
      [&] {
        (Streamed<bf16, bf16>(kTensors, disk.create(false), 1, 3, InPlace{InPlace::kAll, 1}));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("store in host memory")));
}

// ---- Errors ----

using Bf16Run = Streamed<bf16, bf16>;

TEST(StateStreamErrorTest, AFailedReadNamesTheChunkAndTheStepIsLost) {
  const Reference<bf16, bf16> reference(kTensors);
  Disk disk(Bf16Run::regions(kTensors, 1));
  {
    Bf16Run run(kTensors, disk.create(false), 1, 3);
    run.initial(reference);
    run.spill(reference, 1);
    disk.faults[0]->fail(IoKind::kRead, FaultIo::kAlways, EIO);
    const auto step = [&] {
      run.enqueue(1, 1);  // Later chunks may find that the executor has failed already.
      run.executor->drain();
    };
    EXPECT_THAT(step,
                ThrowsMessage<IoError>(testing::AllOf(HasSubstr("fetch"), HasSubstr("chunk"))));
  }
  EXPECT_EQ(disk.open()->live().step, 0U);
}

TEST(StateStreamErrorTest, ARingBelowOneChunkIsRefusedWithBothSizes) {
  Disk disk(Bf16Run::regions(kTensors, 1));
  EXPECT_THAT([&] { Bf16Run run(kTensors, disk.create(false), 1, 0); }, testing::Throws<Error>());
  const auto store = disk.open();
  Budget budget = Budget::unlimited();
  PinnedPool ring(budget, DeviceId::host(), {.slab_bytes = 4096});
  const ChunkPlan plan(kTensors, kElems);
  const std::vector<DType> weights(kTensors.size(), DType::kBF16);
  EXPECT_THAT(
      [&] {
        StateStream stream(*store, nullptr, ring, plan, {}, {DType::kBF16, weights});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("the ring has 4096 bytes")));
}

TEST(StateStreamErrorTest, ThePinnedTierHoldsTheRingAndNothingElse) {
  const Reference<bf16, bf16> reference(kTensors);
  Disk disk(Bf16Run::regions(kTensors, 2));
  Bf16Run run(kTensors, disk.create(false), 2, 2);
  run.initial(reference);
  const std::uint64_t before = run.budget.peak(Tier::kPinned);
  for (std::int64_t step = 1; step < 4; ++step) {
    run.spill(reference, step);
    run.enqueue(step, 1);
    run.executor->drain();
    run.store->commit(static_cast<std::uint64_t>(step), {});
  }
  run.close();
  EXPECT_EQ(run.budget.peak(Tier::kPinned), before);
  EXPECT_EQ(run.ring.in_flight(), 0U);
}

}  // namespace
}  // namespace sluiceway::test
