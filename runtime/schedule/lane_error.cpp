#include "runtime/schedule/lane_error.h"

#include <new>
#include <string>

#include "kernels/base/check.h"

namespace sluiceway {

std::exception_ptr name_error(std::exception_ptr error, std::string_view lane,
                              std::string_view payload) {
  const auto named = [&](std::string_view what) {
    return concat("executor: lane ", lane, ", payload ", payload, ": ", what);
  };
  try {
    std::rethrow_exception(std::move(error));
  } catch (const IoError& e) {
    return std::make_exception_ptr(
        IoError(named(e.what()), e.error_number(), e.path(), e.offset()));
  } catch (const InvalidArgument& e) {
    return std::make_exception_ptr(InvalidArgument(named(e.what())));
  } catch (const OutOfMemory& e) {
    return std::make_exception_ptr(OutOfMemory(named(e.what())));
  } catch (const Timeout& e) {
    return std::make_exception_ptr(Timeout(named(e.what())));
  } catch (const Corrupt& e) {
    return std::make_exception_ptr(Corrupt(named(e.what())));
  } catch (const Unavailable& e) {
    return std::make_exception_ptr(Unavailable(named(e.what())));
  } catch (const CudaError& e) {
    return std::make_exception_ptr(CudaError(named(e.what())));
  } catch (const std::bad_alloc& e) {
    return std::make_exception_ptr(OutOfMemory(named(e.what())));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(Error(named(e.what())));
  } catch (...) {
    return std::make_exception_ptr(Error(named("not a std::exception")));
  }
}

}  // namespace sluiceway
