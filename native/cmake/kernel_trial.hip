// Not a part of the module: what a GPU compiler has to compile at configure before it is taken for the module.
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#endif

#include <cmath>

// expf comes from the device library, which is a package of its own beside some compilers.
__global__ void kernel_trial(float* x) { x[threadIdx.x] = expf(x[threadIdx.x]); }
