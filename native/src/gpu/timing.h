// How long a variant takes on a device.
#pragma once

#include "gpu/device_context.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {

// Returns the seconds of one launch of `variant` on `matrix`, of rows and cols >= 1: the median of several samples,
// each of launches that follow each other without a wait for the host. The matrix and its result are two places of the
// device's memory, from its pool, and full of numbers around 1.
//
// Throws OutOfMemory or DeviceError; the device has then let go of all memory.
double time_variant(DeviceContext& device, const Variant& variant, const Matrix& matrix);

}  // namespace softmaxd::gpu
