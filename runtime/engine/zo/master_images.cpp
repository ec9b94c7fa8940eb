#include "runtime/engine/zo/master_images.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/elements.h"
#include "kernels/perturb.h"

namespace sluiceway {

MasterImages::MasterImages(HostMasters& masters, WeightForm wire)
    : masters_(masters), wire_(wire), worker_({"zo images", -1}) {
  SLUICEWAY_CHECK(wire != WeightForm(DType::kF32), "master images: the link's form is ",
                  to_string(wire), ", expected a form of 16 bits, or fp8");
}

void MasterImages::stand_for(ZoWeight& use, std::size_t master) const {
  if (use.keep || use.dtype() != DType::kF32) return;
  use.computed = use.copy_dtype();
  use.form = wire_;
  use.host = nullptr;
  use.source = static_cast<int>(master);
}

std::uint64_t MasterImages::read_bytes(std::size_t weight) const {
  return wire_.bytes(static_cast<std::uint64_t>(masters_.weight(weight).elements));
}

void MasterImages::read(std::size_t weight, std::span<std::byte> into, Done done) {
  worker_.post([this, weight, into, done = std::move(done)] {
    std::exception_ptr error;
    try {
      make(weight, into);
    } catch (...) {
      error = std::current_exception();
    }
    done(error);
  });
}

void MasterImages::make(std::size_t weight, std::span<std::byte> into) {
  masters_.catch_up(weight, [&](std::uint64_t begin, std::uint64_t end) {
    const std::span master(masters_.data(weight) + begin * sizeof(float),
                           (end - begin) * sizeof(float));
    const std::span image = into.subspan(wire_.bytes(begin), wire_.bytes(end - begin));
    if (wire_.is_fp8_image()) {
      return cpu::make_fp8_image(elements<float>(master), image);
    }
    cpu::materialise(master, DType::kF32, image, wire_.dtype(), {});
  });
}

}  // namespace sluiceway
