#include <string>

#include "softmaxd/error.h"
#include "softmaxd/softmax.h"

namespace softmaxd {
namespace {

constexpr std::string_view kNames[kDTypeCount] = {"float32", "float16", "bfloat16"};

}  // namespace

DType dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    if (kNames[i] == name) return static_cast<DType>(i);
  }
  throw InvalidArgument("the dtype is '" + std::string(name) + "'; allowed are float32, float16, bfloat16");
}

std::string_view name_of(DType dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

}  // namespace softmaxd
