// Takes AdamW steps over states in a store for PARAMETERS parameters, without a model or Python.
//
//   state_driver FOLDER PARAMETERS STEPS MICRO_BATCHES RING_MIB IO(auto|uring|posix)
//
// The driver generates gradients chunk by chunk in the ring and spills them as bf16. It discards
// the updated weights. It prints one JSON object: the process's peak memory, the bytes that crossed
// the drive by our counters and by the kernel's, seconds.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/offload/kernel_bytes.h"
#include "kernels/base/check.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/schedule/executor.h"
#include "runtime/store/open_io.h"

namespace sluiceway {
namespace {

constexpr std::int64_t kWidest = std::int64_t{4096} * 4096;  // A weight of a model, more or less.
constexpr int kDepth = 16;

struct Arguments {
  std::string folder;
  std::int64_t parameters = 0;
  int steps = 0;
  int micro_batches = 1;
  std::size_t ring_bytes = 0;
  IoChoice io = IoChoice::kAuto;
};

Arguments parse(int count, char** words) {
  SLUICEWAY_CHECK(count == 7, "state_driver: ", count - 1,
                  " arguments, expected FOLDER PARAMETERS STEPS MICRO_BATCHES RING_MIB IO");
  return {words[1],
          std::atoll(words[2]),
          std::atoi(words[3]),
          std::atoi(words[4]),
          static_cast<std::size_t>(std::atoll(words[5])) << 20,
          parse_io_choice(words[6])};
}

class Driver {
 public:
  explicit Driver(const Arguments& arguments)
      : arguments_(arguments),
        plan_(tensors(arguments.parameters)),
        weights_(tensors(arguments.parameters).size(), DType::kBF16),
        ring_(budget_, DeviceId::host(),
              {.slab_bytes = arguments.ring_bytes, .pages = Pages::kHuge}),
        store_(make_store()),
        stream_(*store_, nullptr, ring_, plan_, {}, types_) {
    Executor::Config config;
    config.lanes = {
        {"fetch", &fetch_, kDepth, 0}, {"host", &host_, 1, 0}, {"store", &store_lane_, kDepth, 0}};
    config.key_count = static_cast<int>(plan_.chunks().size());
    executor_ = std::make_unique<Executor>(config);
  }

  ~Driver() {
    executor_.reset();
    store_.reset();
    std::filesystem::remove(path());
  }

  nlohmann::json run() {
    stream_.write_initial([](const ChunkPiece& piece, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>((piece.first + static_cast<std::int64_t>(i)) % 1000) * 1e-4F;
      }
    });
    store_->commit(0, {});
    const auto ours = counters();
    const auto kernel = kernel_bytes();
    nlohmann::json seconds = nlohmann::json::array();
    for (int step = 1; step <= arguments_.steps; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      spill(step);
      update(step);
      store_->commit(static_cast<std::uint64_t>(step), {});
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      seconds.push_back(took.count());
    }
    const auto ours_after = counters();
    const auto kernel_after = kernel_bytes();
    return {{"parameters", plan_.tensor_elems()},
            {"micro_batches", arguments_.micro_batches},
            {"backend", store_->drives().front()->properties().backend},
            {"direct", store_->drives().front()->properties().direct},
            {"note", store_->drives().front()->properties().note},
            {"store_bytes", store_->drives().front()->size_bytes()},
            {"ring_bytes", ring_.slab_bytes()},
            {"huge_bytes", ring_.huge_bytes()},
            {"pinned_peak", budget_.peak(Tier::kPinned)},
            {"host_peak", budget_.peak(Tier::kHost)},
            {"resident_peak", resident_peak()},
            {"steps", arguments_.steps},
            {"seconds", seconds},
            {"read", ours_after.bytes_read - ours.bytes_read},
            {"written", ours_after.bytes_written - ours.bytes_written},
            {"kernel_read", kernel_after.read - kernel.read},
            {"kernel_written", kernel_after.written - kernel.written}};
  }

 private:
  static std::vector<std::int64_t> tensors(std::int64_t parameters) {
    std::vector<std::int64_t> elems;
    for (; parameters > 0; parameters -= elems.back()) {
      elems.push_back(std::min(parameters, kWidest));
    }
    return elems;
  }

  std::string path() const { return arguments_.folder + "/state_driver.store"; }

  std::unique_ptr<ChunkStore> make_store() {
    Contents contents;
    contents.regions = StateStream::regions(plan_, types_, 2,
                                            static_cast<std::uint32_t>(arguments_.micro_batches));
    const Layout layout = new_layout(contents, {1});
    create_drive_file(path(), layout.drives.front().bytes);
    OpenOptions options;
    options.io = arguments_.io;
    options.depth = std::size_t{4} * kDepth;
    options.memory = ring_.slab();
    ChunkStore::Drives drives;
    drives.push_back(std::make_unique<Drive>(open_io(path(), options)));
    return ChunkStore::create(budget_, std::move(drives), layout);
  }

  Drive::Counters counters() const { return store_->drives().front()->counters(); }

  // Makes every chunk of every micro-batch in a lease, writes it, and then returns the lease.
  void spill(int step) {
    std::vector<std::future<void>> written;
    for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
      for (int batch = 0; batch < arguments_.micro_batches; ++batch) {
        const auto bytes = static_cast<std::size_t>(plan_.chunks()[c].stored_elems) * sizeof(bf16);
        auto lease = std::make_shared<PinnedPool::Lease>(
            ring_.acquire(bytes, "gradient", std::chrono::hours(1), kBlockBytes));
        auto word = static_cast<std::uint16_t>(step * 31 + batch * 7 + static_cast<int>(c));
        for (bf16& g :
             std::span(reinterpret_cast<bf16*>(lease->bytes().data()), bytes / sizeof(bf16))) {
          word = static_cast<std::uint16_t>(word * 25173 + 13849);
          g.bits = static_cast<std::uint16_t>(0x3C00 | (word & 0x80FF));  // About +-0.01.
        }
        auto end = std::make_shared<std::promise<void>>();
        written.push_back(end->get_future());
        store_->write_extent({StateStream::kGradientRegion, c}, static_cast<std::uint64_t>(batch),
                             lease->bytes(), [end, lease](const std::exception_ptr& error) {
                               error ? end->set_exception(error) : end->set_value();
                             });
      }
    }
    for (std::future<void>& each : written) each.get();
  }

  void update(int step) {
    for (std::size_t c = 0; c < plan_.chunks().size(); ++c) {
      ChunkUpdate update;
      update.pieces.assign(plan_.chunks()[c].pieces.size(), {{1e-3, 0.9, 0.999, 1e-8, 0.01, step}});
      update.extents = arguments_.micro_batches;
      Payload payload = stream_.update(static_cast<int>(c), std::move(update));
      payload.key = static_cast<int>(c);
      payload.deadline = c;
      executor_->submit(std::move(payload));
    }
    executor_->release();
    executor_->drain();
  }

  Arguments arguments_;
  Budget budget_ = Budget::unlimited();
  ChunkPlan plan_;
  std::vector<DType> weights_;  // Types that a model would compute with.
  StateStream::Types types_{DType::kBF16, weights_};
  PinnedPool ring_;
  std::unique_ptr<ChunkStore> store_;
  StateStream stream_;
  Stream fetch_ = Stream::host({"fetch"}), host_ = Stream::host({"host"}),
         store_lane_ = Stream::host({"store"});
  std::unique_ptr<Executor> executor_;
};

}  // namespace
}  // namespace sluiceway

int main(int count, char** words) {
  try {
    sluiceway::Driver driver(sluiceway::parse(count, words));
    std::cout << driver.run().dump() << "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
