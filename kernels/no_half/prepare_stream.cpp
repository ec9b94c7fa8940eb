#include "kernels/cuda/prepare_stream.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void prepare_stream(StreamRef stream) {
  if (!stream.is_host()) throw_no_half("prepare_stream");
}

}  // namespace sluiceway::cuda
