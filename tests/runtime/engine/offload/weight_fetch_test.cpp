// Blocks arrive as they were stored, or unpacked from 8 bits, whatever is behind their elements.
#include "runtime/engine/offload/weight_fetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/elements.h"
#include "kernels/base/error.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/offload/extent_sum.h"
#include "tests/support/backend.h"
#include "tests/support/fp8_reference.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

constexpr std::int64_t kChunk = 3 * ChunkPlan::kStoredAlignment;

TensorSpec spec_of(std::int64_t rows, std::int64_t cols, DType dtype, bool fp8) {
  TensorSpec spec;
  spec.name = concat("weight of ", rows, " x ", cols);
  spec.shape = {rows, cols};
  spec.dtype = dtype;
  spec.streamed = true;
  spec.frozen = spec.fp8 = fp8;
  return spec;
}

// A tensor in the store, with noise behind the elements of each chunk, and as a turn must see it.
struct Stored {
  std::vector<std::byte> bytes, elements;
};

template <typename T>
std::vector<std::byte> elements_of(std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::ranges::transform(values, elements<T>(std::span(bytes)).begin(),
                         [](float value) { return from_float<T>(value); });
  return bytes;
}

Stored store(const TensorSpec& spec, Rng& rng) {
  Stored stored;
  const std::int64_t each = ChunkPlan::elems_of_each(spec.elems(), kChunk);
  for (std::int64_t first = 0; first < spec.elems(); first += each) {
    std::vector<float> values(std::size_t(std::min(each, spec.elems() - first)));
    for (float& value : values) {
      value = static_cast<float>(rng.normal()) * std::ldexp(1.0F, int(rng.below(30)) - 20);
    }
    with_type(spec.dtype, [&](auto type) {
      using T = decltype(type);
      std::vector<std::byte> chunk = elements_of<T>(values), seen = chunk;
      if (spec.fp8) {
        chunk = reference_fp8_image(values);
        seen = elements_of<T>(reference_fp8_values(chunk, values.size()));
      }
      stored.elements.insert(stored.elements.end(), seen.begin(), seen.end());
      stored.bytes.insert(stored.bytes.end(), chunk.begin(), chunk.end());
    });
    const std::int64_t room = round_up(std::int64_t(values.size()), ChunkPlan::kStoredAlignment);
    const WeightForm form = stored_form(spec.how_streamed(), spec.dtype);
    const std::size_t whole = round_up(std::size_t(form.bytes(std::uint64_t(room))), kBlockBytes);
    const std::size_t begin = std::size_t(first / each) * StoredWeight::chunk_bytes(form, each);
    while (stored.bytes.size() < begin + whole) stored.bytes.push_back(std::byte(rng.below(256)));
  }
  return stored;
}

class WeightFetchTest : public testing::TestWithParam<DeviceId> {
 protected:
  WeightFetchTest() {
    for (const TensorSpec& spec : specs_) stored_.push_back(store(spec, rng_));
  }

  EngineLanes::Options lanes() const {
    EngineLanes::Options options(GetParam());
    options.limits.fill(Budget::kUnlimited);
    return options;
  }

  WeightFetch::Reader reader() {
    WeightFetch::Reader reader;
    reader.read = [this](int tensor, std::uint64_t first, std::span<std::byte> into,
                         WeightSource::Done done) {
      const std::vector<std::byte>& from = stored_.at(std::size_t(tensor)).bytes;
      ASSERT_LE(first + into.size(), from.size());
      std::thread([from = std::span(from).subspan(first, into.size()), into, done] {
        std::ranges::copy(from, into.begin());
        done(nullptr);
      }).detach();
    };
    reader.chunk_elems = kChunk;
    return reader;
  }

  std::vector<std::byte> seen(const void* weight, int tensor) const {
    std::vector<std::byte> bytes(stored_[std::size_t(tensor)].elements.size());
    copy_device_bytes(GetParam(), bytes.data(), weight, bytes.size());
    return bytes;
  }

  void expect_block(WeightFetch& fetch, WeightFetch::Phase phase, int block, StreamRef stream) {
    const std::vector<const void*> found = fetch.acquire(phase, block, stream);
    wait_for(stream);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const int tensor = fetch.tensors_of(block)[i];
      EXPECT_TRUE(seen(found[i], tensor) == stored_[std::size_t(tensor)].elements)
          << specs_[std::size_t(tensor)].name << ", block " << block;
    }
    fetch.release(phase, block, stream);
  }

  // Sizes of one chunk and of several, whole chunks and odd ones.
  const std::vector<TensorSpec> specs_ = {
      spec_of(61, 97, DType::kBF16, true), spec_of(64, 96, DType::kBF16, false),
      spec_of(128, 96, DType::kF16, true), spec_of(131, 211, DType::kF32, true),
      spec_of(57, 71, DType::kF32, false), spec_of(1, 4097, DType::kBF16, true)};
  const std::vector<std::vector<int>> blocks_ = {{0, 1}, {2}, {3, 4}, {5}};
  Rng rng_{21};
  std::vector<Stored> stored_;
};

TEST_P(WeightFetchTest, BlocksArriveInTheTypeOfTheModel) {
  const int count = static_cast<int>(blocks_.size());
  run_on_stream(GetParam(), [&](StreamRef stream) {  // Which outlives them.
    for (const int ahead : {0, 1, 2}) {
      WeightFetch fetch(lanes(), reader(), specs_, blocks_, ahead);
      for (int pass = 0; pass < 2; ++pass) {
        for (int block = 0; block < count; ++block) {
          expect_block(fetch, WeightFetch::Phase::kForward, block, stream);
        }
        for (int block = count; block-- > 0;) {
          expect_block(fetch, WeightFetch::Phase::kBackward, block, stream);
        }
        fetch.finish();
      }
    }
  });
}

TEST_P(WeightFetchTest, ItTakesWhatItsFootprintSays) {
  const auto footprint = WeightFetch::footprint(specs_, blocks_, 1, kChunk);
  EngineLanes::Options exact = lanes();
  exact.limits[std::size_t(Tier::kDevice)] = footprint.device;
  exact.limits[std::size_t(Tier::kPinned)] = footprint.pinned;
  { const WeightFetch fits(exact, reader(), specs_, blocks_, 1); }
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    EngineLanes::Options less = exact;
    --less.limits[std::size_t(tier)];
    EXPECT_THROW(WeightFetch(less, reader(), specs_, blocks_, 1), OutOfMemory);
  }
  std::uint64_t once = 0;
  for (std::size_t t = 0; t < specs_.size(); ++t) {
    once += specs_[t].fp8 ? stored_[t].bytes.size() : stored_[t].elements.size();
  }
  EXPECT_EQ(footprint.forward, once);
}

INSTANTIATE_TEST_SUITE_P(Devices, WeightFetchTest, testing::ValuesIn(built_devices()), device_name);

TEST(StoredWeightTest, APartIsWholeChunks) {
  const StoredWeight weight(WeightForm::fp8_image(), DType::kBF16, 10 * kChunk, kChunk);
  const std::uint64_t chunk = 2 * kBlockBytes;  // 6,144 elements, and 48 scales.
  EXPECT_EQ(weight.chunk_bytes(), chunk);
  EXPECT_EQ(weight.bytes(), 10 * chunk);
  EXPECT_EQ(weight.part_bytes(1), chunk);
  EXPECT_EQ(weight.part_bytes(3 * chunk + 1), 3 * chunk);
  EXPECT_EQ(weight.part_bytes(100 * chunk), 10 * chunk);
}

TEST(StoredWeightTest, APartIsUnpackedInItsPlace) {
  Rng rng(3);
  const TensorSpec spec = spec_of(131, 211, DType::kF32, true);
  const Stored stored = store(spec, rng);
  const StoredWeight weight = spec.stored_weight(kChunk);
  const std::uint64_t chunk = weight.chunk_bytes();
  for (const std::uint64_t first : {std::uint64_t{0}, chunk, 3 * chunk}) {
    for (const std::uint64_t bytes : {chunk, 2 * chunk}) {
      std::vector<std::byte> into(stored.elements.size(), std::byte{0xEE}), expected = into;
      const std::uint64_t end = std::min(first + bytes, weight.bytes());
      weight.unpack(first, std::span(stored.bytes).subspan(first, end - first), into,
                    StreamRef::host());
      const auto elements = [&](std::uint64_t at) {
        const std::size_t each = std::size_t(ChunkPlan::elems_of_each(spec.elems(), kChunk));
        return std::min<std::size_t>(at / chunk * each * sizeof(float), into.size());
      };
      std::copy(stored.elements.begin() + std::ptrdiff_t(elements(first)),
                stored.elements.begin() + std::ptrdiff_t(elements(first + bytes)),
                expected.begin() + std::ptrdiff_t(elements(first)));
      EXPECT_TRUE(into == expected) << "bytes " << first << " to " << end;
    }
  }
}

}  // namespace
}  // namespace sluiceway::test
