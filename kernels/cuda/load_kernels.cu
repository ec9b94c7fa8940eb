#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/load_kernels.h"

namespace sluiceway::cuda {
namespace {

struct Entry {
  const void* function;
  std::string name;
};

// Kernels are only ever added, so a device that has loaded n kernels has the first n of the list.
struct List {
  std::mutex mutex;
  std::vector<Entry> kernels;
  std::map<int, std::size_t> loaded;  // By ordinal.
};

List& list() {  // The first caller makes it: static objects of different files have no order.
  static auto* const one = new List;
  return *one;
}

// Returns "expand_blocks<float, Sink>" for "... = sluiceway::cuda::expand_blocks<float, Sink>]".
std::string name_of(std::string_view signature) {
  const std::size_t equals = signature.rfind(" = ");
  if (equals != std::string_view::npos) signature.remove_prefix(equals + 3);
  if (signature.ends_with(']')) signature.remove_suffix(1);
  const std::size_t scope = signature.substr(0, signature.find('<')).rfind("::");
  if (scope != std::string_view::npos) signature.remove_prefix(scope + 2);
  return std::string(signature);
}

}  // namespace

ListedKernel::ListedKernel(const void* function, std::string_view signature) {
  const std::lock_guard lock(list().mutex);
  list().kernels.push_back({function, name_of(signature)});
}

// Asking for the attributes of a kernel loads it.
std::size_t load_kernels(DeviceId device) {
  if (device.is_host()) return 0;
  List& all = list();
  const std::lock_guard lock(all.mutex);
  std::size_t& loaded = all.loaded[device.ordinal()];
  const std::size_t before = loaded;
  if (before == all.kernels.size()) return 0;
  const LaunchDevice current("load_kernels", device.ordinal());
  for (; loaded < all.kernels.size(); ++loaded) {
    const Entry& kernel = all.kernels[loaded];
    cudaFuncAttributes attributes{};
    check_launch(cudaFuncGetAttributes(&attributes, kernel.function),
                 concat("load_kernels: ", kernel.name).c_str());
  }
  return loaded - before;
}

}  // namespace sluiceway::cuda
