// Runs GPU kernels on the CPU, for the sanitizers: what a kernel takes from the vendor's headers, as far as ours do.
//
// Stands for those headers where SOFTMAXD_SIMT is defined. SIMT_WAVE=32 at compile time makes waves of 32 lanes instead
// of 64, in all files of a program. SIMT_SEED=n in the environment makes the order of blocks, waves and lanes random,
// so that a result which depends on it shows; the thread sanitizer sees a missing barrier in any order. A barrier or a
// shuffle that not all of the block or wave come to ends the program with a line that says so.
//
// The blocks of a launch run one after the other: simt::run. Those that wait for each other, through atomics in global
// memory, run together: simt::run_together. Such a kernel calls simt::pause() where it waits; if it waits for ever, a
// line says so and ends the program. Clusters run one after the other, the blocks of each together: simt::run_clusters.
// The shared memory of both is simt::dynamic_shared(); a __shared__ variable would be one
// and the same in all its blocks.
//
// What it cannot show: the rounding of a device's expf; two blocks of one simt::run that touch the same memory; a read
// of a __shared__ variable before this block wrote it, which finds what the last block left. (GCC gives no variable of
// a template a section of its own, so that they cannot be found and overwritten between blocks.)
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "block.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// Not thread_local: the address sanitizer puts no red zones there. So not for blocks that run together.
#define __shared__ static

#define threadIdx simt::thread_index
#define blockIdx simt::block_index
#define blockDim simt::block_size
#define __syncthreads simt::synchronize_threads
#define __shfl_xor simt::shuffle_xor
#define __shfl simt::shuffle
inline constexpr int warpSize = simt::kWaveLanes;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using __half = _Float16;
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half __float2half(float x) { return static_cast<__half>(x); }

inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline __half __ushort_as_half(std::uint16_t bits) { return std::bit_cast<__half>(bits); }
inline std::uint16_t __half_as_ushort(__half x) { return std::bit_cast<std::uint16_t>(x); }
