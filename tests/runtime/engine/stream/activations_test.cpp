// Activations: tensors come back with their bits, from host memory and from a drive, in any order.
#include "runtime/engine/stream/activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/buffer.h"
#include "runtime/store/open_io.h"
#include "tests/support/backend.h"
#include "tests/support/fault_io.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

Budget::Limits unlimited() {
  Budget::Limits limits;
  limits.fill(Budget::kUnlimited);
  return limits;
}

// Where activations wait, and on which device they are needed.
struct Where {
  DeviceId device;
  std::string drive;  // A name of io_back_ends(); empty: host memory.
};

std::string where_name(const testing::TestParamInfo<Where>& each) {
  const std::string place = each.param.drive.empty() ? "memory" : each.param.drive;
  return place + (each.param.device.is_host() ? "_host" : "_cuda");  // As CMake filters names.
}

std::vector<Where> all_places() {
  std::vector<Where> places;
  for (const DeviceId device : built_devices()) {
    places.push_back({device, ""});
    for (const std::string& name : io_back_ends()) {
      if (name != "memory") places.push_back({device, name});
    }
  }
  return places;
}

class ActivationsTest : public testing::TestWithParam<Where> {
 protected:
  ActivationsTest() {
    compute.enqueue([this](StreamRef ref) { stream = ref; });
    compute.synchronize();
  }

  DeviceId device() const { return GetParam().device; }
  std::unique_ptr<Drive> drive() {
    if (GetParam().drive.empty()) return nullptr;
    opened = open_back_end(GetParam().drive, 4096, 8);
    return std::make_unique<Drive>(std::move(opened.io));
  }
  EngineLanes::Options lanes() const {
    EngineLanes::Options options(device());
    options.budget = budget;
    return options;
  }
  Buffer on_device(std::size_t bytes) {
    return Buffer(budget, Tier::kDevice, device(), bytes, "a tensor", Fill::kNone);
  }

  Budget budget{unlimited()};
  Stream compute = GetParam().device.is_host() ? Stream::borrowed(StreamRef::host())
                                               : Stream::owned(GetParam().device, {"compute"});
  StreamRef stream = StreamRef::host();
  OpenedBackEnd opened;
};

void forget(Activations& activations, int id) {
  while (!activations.forget(id)) std::this_thread::yield();
}

struct Kept {
  std::vector<std::byte> value;
  Buffer from, into;
};

std::vector<std::byte> random_bytes(Rng& rng, std::size_t bytes) {
  std::vector<std::byte> value(bytes);
  for (std::byte& each : value) each = static_cast<std::byte>(rng.below(256));
  return value;
}

TEST_P(ActivationsTest, TensorsComeBackWithTheirBitsInAnyOrder) {
  Rng rng(GetParam().drive.size() + 3);
  Activations activations(lanes(), drive());
  for (int round = 0; round < 3; ++round) {
    std::map<int, Kept> kept;
    for (int i = 0; i < 12; ++i) {
      const auto bytes = static_cast<std::size_t>(1 + rng.below(30'000));
      Kept one{random_bytes(rng, bytes), on_device(bytes), {}};
      copy_device_bytes(device(), one.from.data(), one.value.data(), bytes);
      const int id = activations.keep(one.from.data(), bytes, stream);
      if (rng.below(2) == 0) {  // The copy is done, so its source may change.
        activations.wait_left(id);
        EXPECT_TRUE(activations.has_left(id));
        const std::vector<std::byte> other(bytes, std::byte{0xFF});
        copy_device_bytes(device(), one.from.data(), other.data(), bytes);
      }
      kept.emplace(id, std::move(one));
    }
    EXPECT_EQ(activations.waiting(), 12);
    std::vector<int> order;
    for (const auto& [id, one] : kept) {
      order.insert(order.begin() + rng.below(std::ssize(order) + 1), id);
    }
    for (const int id : order) {
      Kept& one = kept.at(id);
      if (rng.below(4) == 0) {
        forget(activations, id);
        continue;
      }
      one.into = on_device(one.value.size());
      activations.bring(id, one.into.data(), stream);
      for (int time = 0; rng.below(4) != 0; ++time) {  // As often as a graph is run through.
        if (time > 0) activations.bring(id, one.into.data(), stream);
        activations.await(id, stream);
        compute.synchronize();
        std::vector<std::byte> found(one.value.size());
        copy_device_bytes(device(), found.data(), one.into.data(), found.size());
        EXPECT_TRUE(found == one.value) << "activation " << id << " of round " << round;
      }
      forget(activations, id);
    }
    EXPECT_EQ(activations.waiting(), 0);
  }
}

// The first step's memory and drive space serve all later ones. With a drive, page-locked memory
// does not depend on how many tensors wait; how much of it is in use at once depends on the drive's
// pace.
TEST_P(ActivationsTest, StepsOfEqualShapesAllocateOnce) {
  constexpr std::size_t kBytes = 64 << 10;
  constexpr int kCount = 24;
  const bool has_drive = !GetParam().drive.empty();
  const Buffer tensor = on_device(kBytes), into = on_device(kBytes);
  Activations activations(lanes(), drive());
  for (int step = 0; step < 3; ++step) {
    std::vector<int> ids;
    for (int i = 0; i < kCount; ++i) {
      ids.push_back(activations.keep(tensor.data(), kBytes, stream));
    }
    for (; !ids.empty(); ids.pop_back()) {
      activations.bring(ids.back(), into.data(), stream);
      activations.await(ids.back(), stream);
      forget(activations, ids.back());
    }
    EXPECT_EQ(budget.peak(Tier::kDisk), has_drive ? kCount * kBytes : 0);
    if (has_drive) {
      EXPECT_LE(budget.peak(Tier::kPinned), (Activations::kInFlight + 2) * kBytes);
    } else {
      EXPECT_EQ(budget.peak(Tier::kPinned), kCount * kBytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, ActivationsTest, testing::ValuesIn(all_places()), where_name);

// In the tests below, tensors are declared before the Activations, whose copies may still read them
// when a test ends.
EngineLanes::Options on_host(const Budget::Limits& limits) {
  EngineLanes::Options options(DeviceId::host());
  options.budget = Budget(limits);
  return options;
}

TEST(ActivationsErrorTest, AFullBudgetIsNamedWithBothByteCounts) {
  Budget::Limits limits = unlimited();
  limits[static_cast<std::size_t>(Tier::kPinned)] = 8192;
  std::vector<std::byte> tensor(8192, std::byte{1}), into(8192);
  Activations activations(on_host(limits), nullptr);
  const int id = activations.keep(tensor.data(), tensor.size(), StreamRef::host());
  EXPECT_THAT([&] { activations.keep(tensor.data(), 5, StreamRef::host()); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("4096 bytes"), HasSubstr("8192 bytes"))));
  activations.bring(id, into.data(), StreamRef::host());  // The first one is as it was.
  activations.await(id, StreamRef::host());
  EXPECT_EQ(into, tensor);
}

// A few large tensors after many small ones: what is free makes room.
TEST(ActivationsErrorTest, FreePlacesMakeRoomForLargerOnes) {
  Budget::Limits limits = unlimited();
  limits[static_cast<std::size_t>(Tier::kPinned)] = 64 << 10;
  std::vector<std::byte> tensor(32 << 10);
  Activations activations(on_host(limits), nullptr);
  for (const std::size_t bytes : {4096U, 32U << 10U, 8192U}) {
    std::vector<int> ids;
    for (std::size_t held = 0; held < 64 << 10; held += bytes) {
      ids.push_back(activations.keep(tensor.data(), bytes, StreamRef::host()));
    }
    for (const int id : ids) forget(activations, id);
  }
}

TEST(ActivationsErrorTest, CallsOutOfPlaceAreRefused) {
  std::vector<std::byte> tensor(10), into(10);
  Activations activations(on_host(unlimited()), nullptr);
  EXPECT_THAT([&] { activations.keep(tensor.data(), 0, StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("0 bytes")));
  EXPECT_THAT([&] { activations.bring(7, into.data(), StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("activation 7 does not wait")));
  const int id = activations.keep(tensor.data(), tensor.size(), StreamRef::host());
  EXPECT_THAT([&] { activations.await(id, StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("call bring() first")));
  activations.bring(id, into.data(), StreamRef::host());
  EXPECT_THAT([&] { activations.bring(id, into.data(), StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("on its way back already")));
  activations.await(id, StreamRef::host());
  forget(activations, id);
  EXPECT_THAT([&] { activations.forget(id); }, ThrowsMessage<InvalidArgument>(HasSubstr("wait")));
}

TEST(ActivationsErrorTest, MoreThanCanWaitAreRefusedAndTheOthersComeBack) {
  std::vector<std::byte> tensor(1, std::byte{9}), into(1);
  Activations activations(on_host(unlimited()), nullptr);
  std::vector<int> ids;
  for (int i = 0; i < Activations::kMostTensors; ++i) {
    ids.push_back(activations.keep(tensor.data(), 1, StreamRef::host()));
  }
  EXPECT_THAT([&] { activations.keep(tensor.data(), 1, StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("call backward")));
  activations.bring(ids.back(), into.data(), StreamRef::host());
  activations.await(ids.back(), StreamRef::host());
  EXPECT_EQ(into, tensor);
  forget(activations, ids.back());
  EXPECT_EQ(activations.keep(tensor.data(), 1, StreamRef::host()), ids.back());
}

TEST(ActivationsErrorTest, AFailedDriveIsNamedByTheNextCallAndEndsAtOnce) {
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    OpenedBackEnd opened = open_back_end("posix", 4096, 8);
    auto io = std::make_unique<FaultIo>(std::move(opened.io));
    FaultIo& faults = *io;
    auto drive = std::make_unique<Drive>(std::move(io));
    std::vector<std::byte> tensor(4096, std::byte{9}), into(4096);
    Activations activations(on_host(unlimited()), std::move(drive));
    if (kind == IoKind::kWrite) faults.fail(kind, FaultIo::kAlways, EIO);
    const auto steps = [&] {
      std::vector<int> ids;
      for (int i = 0; i < 8; ++i) {
        ids.push_back(activations.keep(tensor.data(), tensor.size(), StreamRef::host()));
      }
      for (const int id : ids) {
        if (kind == IoKind::kRead) faults.fail(kind, FaultIo::kAlways, EIO);
        activations.bring(id, into.data(), StreamRef::host());
        activations.await(id, StreamRef::host());
      }
    };
    EXPECT_THAT(steps, ThrowsMessage<Error>(HasSubstr("activation "))) << to_string(kind);
    EXPECT_GT(activations.waiting(), 0);
  }
}

}  // namespace
}  // namespace sluiceway::test
