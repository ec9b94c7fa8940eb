#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/noise.cuh"
#include "kernels/philox.h"

namespace sluiceway::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Stores the words of a call; words[0] is stream word `first`.
struct WordSink {
  std::uint32_t* words;
  std::uint64_t first, end;

  __device__ void take(std::uint64_t q, std::uint32_t word) const {
    if (q >= first && q < end) words[q - first] = word;
  }
};

// Stores halves of words; halves[0] is the half `first`. A word is stored whole where possible.
struct HalfSink {
  std::uint16_t* halves;
  std::uint64_t first, end;

  __device__ void take(std::uint64_t q, std::uint32_t word) const {
    const std::uint64_t low = 2 * q, high = low + 1;
    std::uint16_t* const to = halves + static_cast<std::int64_t>(low - first);
    const bool has_low = low >= first && low < end, has_high = high >= first && high < end;
    if (has_low && has_high && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
      *reinterpret_cast<std::uint32_t*>(to) = word;
      return;
    }
    if (has_low) to[0] = static_cast<std::uint16_t>(word);
    if (has_high) halves[high - first] = static_cast<std::uint16_t>(word >> 16);
  }
};

// Each thread computes one Philox block. 16 adjacent threads have 16 blocks, whose words w are 16
// in a row, so each of the four stores of a warp is two runs of 64 bytes.
//
// Roof: integer arithmetic, 10 rounds of about 6 instructions for 16 bytes written.
template <class Sink>
__global__ void fill_noise(NoiseSource source, std::uint64_t first_block, std::uint64_t blocks,
                           Sink sink) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= blocks) return;
  const std::uint64_t block = first_block + i, q = block / 16 * 64 + block % 16;
  const PhiloxCounter words = noise_block(source, block);
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) sink.take(q + 16 * w, words[w]);
}

// Writes words [first, end) of the stream, by whole groups of 16 blocks.
template <class Sink>
void fill_words(const NoiseKey& key, std::uint64_t first, std::uint64_t end, const Sink& sink,
                StreamRef stream) {
  const std::uint64_t first_block = first / 64 * 16;
  const std::uint64_t blocks = first == end ? 0 : (end + 63) / 64 * 16 - first_block;
  const auto grid = static_cast<unsigned>((blocks + kThreads - 1) / kThreads);
  launch("fill_noise", Kernel<fill_noise<Sink>>(), {grid, kThreads}, stream, NoiseSource::of(key),
         first_block, blocks, sink);
}

}  // namespace

void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint32_t> out,
               StreamRef stream) {
  const std::uint64_t end = first + out.size();
  fill_words(key, first, end, WordSink{out.data(), first, end}, stream);
}

void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint16_t> out,
               StreamRef stream) {
  const std::uint64_t end = first + out.size();
  const std::uint64_t last_word = out.empty() ? first / 2 : (end + 1) / 2;
  fill_words(key, first / 2, last_word, HalfSink{out.data(), first, end}, stream);
}

}  // namespace sluiceway::cuda
