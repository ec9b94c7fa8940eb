#include "compress/host_side.h"

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

ResultSlot::ResultSlot(DeviceId device, Budget& budget, std::string_view purpose) {
  if (!device.is_host()) memory_ = Buffer(budget, Tier::kDevice, device, kBytes, purpose);
}

void* ResultSlot::on_device(StreamRef stream) const {
  if (memory_.size() != 0) return memory_.data();
  throw Unavailable(concat("codec: the stream is on ", to_string(stream.device()),
                           ", but the codec was made for the host device; pass a host stream"));
}

void ResultSlot::copy_to(void* here, std::size_t bytes, StreamRef stream) const {
  wait_for(stream);
  copy_device_bytes(stream.device(), here, on_device(stream), bytes);
}

HostMatrix::HostMatrix(const AnyMatrix& x, StreamRef stream, Budget& budget) : view_(x) {
  if (stream.is_host() || x.rows == 0 || x.cols == 0) return;
  const std::int64_t elems = (x.rows - 1) * x.stride + x.cols;
  copy_ = Buffer(budget, Tier::kHost, stream.device(),
                 static_cast<std::size_t>(elems) * size_bytes(x.dtype), "copy of a gradient",
                 Fill::kNone);
  wait_for(stream);
  copy_device_bytes(stream.device(), copy_.data(), x.data, copy_.size());
  view_.data = copy_.data();
}

}  // namespace sluiceway
