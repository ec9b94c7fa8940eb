// sluiceway._core: converts, releases the GIL, calls. No logic lives here.
#include "python/bindings/bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ runtime of Sluiceway; use the classes of `sluiceway` instead.";
  sluiceway::bind_errors(m);
  sluiceway::bind_warning(m);
  sluiceway::bind_device(m);
  sluiceway::bind_adam(m);
  sluiceway::bind_checksum(m);
  sluiceway::bind_codec(m);
  sluiceway::bind_codec_families(m);
  sluiceway::bind_cost_model(m);
  sluiceway::bind_denormals(m);
  sluiceway::bind_drive(m);
  sluiceway::bind_loss_scale(m);
  sluiceway::bind_low_rank(m);
  sluiceway::bind_noise(m);
  sluiceway::bind_store(m);
  sluiceway::bind_trace(m);
  sluiceway::bind_engine(m);
  sluiceway::bind_weight_plan(m);
  sluiceway::bind_subspace_engine(m);
  sluiceway::bind_offload_engine(m);
  sluiceway::bind_zo_arena(m);  // Whose class the engine takes.
  sluiceway::bind_zo_engine(m);
  sluiceway::bind_zo_plan(m);
}
