// The GPU runtime under one set of names: HIP for AMD and Hygon, CUDA for NVIDIA.
//
// A file of this folder includes this and nothing of a vendor's. Only what we use is here; every call's error comes
// back as a value, so that none can be overlooked: see check() in runtime_error.h.
#pragma once

#if defined(SOFTMAXD_SIMT)  // tests/native/simt runs all of this on the CPU
#include "simt.h"
#include "simt_runtime.h"
#elif defined(__CUDACC__)
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#endif

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

namespace softmaxd::gpu {

// The two vendors' names differ by their first letters, but for a few.
#if defined(SOFTMAXD_SIMT)
#define SOFTMAXD_NAME(name) simt##name
#elif defined(__CUDACC__)
#define SOFTMAXD_NAME(name) cuda##name
#else
#define SOFTMAXD_NAME(name) hip##name
#endif

using Error = SOFTMAXD_NAME(Error_t);
using Stream = SOFTMAXD_NAME(Stream_t);
using Event = SOFTMAXD_NAME(Event_t);
using IpcHandle = SOFTMAXD_NAME(IpcMemHandle_t);
inline constexpr Error kSuccess = SOFTMAXD_NAME(Success);

#if defined(SOFTMAXD_SIMT)
inline constexpr const char* kRuntimeName = "simt";
inline constexpr Error kOutOfMemory = simtErrorMemoryAllocation;
using DeviceProperties = simtDeviceProp;
inline Error allocate_pinned(void** data, std::size_t bytes) { return simtMallocHost(data, bytes); }
inline Error release_pinned(void* data) { return simtFreeHost(data); }
inline std::string product_name(const DeviceProperties& properties) { return properties.name; }
inline bool has_clusters(const DeviceProperties& properties) { return properties.clusters != 0; }
#elif defined(__CUDACC__)
inline constexpr const char* kRuntimeName = "cuda";
inline constexpr Error kOutOfMemory = cudaErrorMemoryAllocation;
inline constexpr auto kCooperativeLaunch = cudaDevAttrCooperativeLaunch;
inline constexpr auto kMultiprocessorCount = cudaDevAttrMultiProcessorCount;
using DeviceProperties = cudaDeviceProp;
inline Error allocate_pinned(void** data, std::size_t bytes) { return cudaMallocHost(data, bytes); }
inline Error release_pinned(void* data) { return cudaFreeHost(data); }
inline std::string product_name(const DeviceProperties& properties) { return properties.name; }
inline bool has_clusters(const DeviceProperties& properties) { return properties.major >= 9; }
#else
inline constexpr const char* kRuntimeName = "hip";
inline constexpr Error kOutOfMemory = hipErrorOutOfMemory;
inline constexpr auto kCooperativeLaunch = hipDeviceAttributeCooperativeLaunch;
inline constexpr auto kMultiprocessorCount = hipDeviceAttributeMultiprocessorCount;
using DeviceProperties = hipDeviceProp_t;
inline Error allocate_pinned(void** data, std::size_t bytes) {
  return hipHostMalloc(data, bytes, hipHostMallocDefault);
}
inline Error release_pinned(void* data) { return hipHostFree(data); }
// The product's name is empty on some boards; the architecture never is.
inline std::string product_name(const DeviceProperties& properties) {
  const std::string name = properties.name;
  return name.empty() ? properties.gcnArchName : name + " (" + properties.gcnArchName + ")";
}
inline bool has_clusters(const DeviceProperties&) { return false; }
#endif

inline const char* error_name(Error error) { return SOFTMAXD_NAME(GetErrorName)(error); }
// Returns the calling thread's last error and forgets it.
inline Error last_error() { return SOFTMAXD_NAME(GetLastError)(); }

inline Error driver_version(int* version) { return SOFTMAXD_NAME(DriverGetVersion)(version); }
inline Error device_count(int* count) { return SOFTMAXD_NAME(GetDeviceCount)(count); }
inline Error device_properties(DeviceProperties* properties, int device) {
  return SOFTMAXD_NAME(GetDeviceProperties)(properties, device);
}
// Sets the device of the calling thread.
inline Error set_device(int device) { return SOFTMAXD_NAME(SetDevice)(device); }
inline Error memory_info(std::size_t* free, std::size_t* total) { return SOFTMAXD_NAME(MemGetInfo)(free, total); }
inline Error allocate_device(void** data, std::size_t bytes) { return SOFTMAXD_NAME(Malloc)(data, bytes); }
inline Error release_device(void* data) { return SOFTMAXD_NAME(Free)(data); }

// Pins memory of the host for all devices, so that they read and write it by themselves.
inline Error register_host(void* data, std::size_t bytes) {
  return SOFTMAXD_NAME(HostRegister)(data, bytes, SOFTMAXD_NAME(HostRegisterPortable));
}
inline Error unregister_host(void* data) { return SOFTMAXD_NAME(HostUnregister)(data); }

// As in "0000:3b:00.0".
inline Error pci_bus_id(char* id, int bytes, int device) { return SOFTMAXD_NAME(DeviceGetPCIBusId)(id, bytes, device); }
// Maps what another process has allocated on the thread's device.
inline Error open_ipc_memory(void** data, const IpcHandle& handle) {
  return SOFTMAXD_NAME(IpcOpenMemHandle)(data, handle, SOFTMAXD_NAME(IpcMemLazyEnablePeerAccess));
}
inline Error close_ipc_memory(void* data) { return SOFTMAXD_NAME(IpcCloseMemHandle)(data); }

// Says where the allocation that `data` lies in starts, and how large it is.
inline Error address_range(void** start, std::size_t* bytes, void* data) {
#if defined(SOFTMAXD_SIMT) || !defined(__CUDACC__)
  return SOFTMAXD_NAME(MemGetAddressRange)(start, bytes, data);
#else
  // The driver's own: the runtime has none, and the driver's library is not linked.
  constexpr const char* kName = "cuMemGetAddressRange";
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const Error error = cudaGetDriverEntryPointByVersion(kName, &entry, 12000, cudaEnableDefault, &found);
#else
  const Error error = cudaGetDriverEntryPoint(kName, &entry, cudaEnableDefault, &found);
#endif
  if (error != kSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  CUdeviceptr address = 0;
  const auto ask = reinterpret_cast<decltype(&cuMemGetAddressRange)>(entry);
  const CUresult result = ask(&address, bytes, reinterpret_cast<CUdeviceptr>(data));
  *start = reinterpret_cast<void*>(address);
  return static_cast<Error>(result);  // both count alike
#endif
}

// A stream that does not wait for the null stream.
inline Error create_stream(Stream* stream) {
  return SOFTMAXD_NAME(StreamCreateWithFlags)(stream, SOFTMAXD_NAME(StreamNonBlocking));
}
inline Error destroy_stream(Stream stream) { return SOFTMAXD_NAME(StreamDestroy)(stream); }
inline Error synchronize_stream(Stream stream) { return SOFTMAXD_NAME(StreamSynchronize)(stream); }

inline Error create_event(Event* event) { return SOFTMAXD_NAME(EventCreate)(event); }
inline Error destroy_event(Event event) { return SOFTMAXD_NAME(EventDestroy)(event); }
inline Error record_event(Event event, Stream stream) { return SOFTMAXD_NAME(EventRecord)(event, stream); }
inline Error synchronize_event(Event event) { return SOFTMAXD_NAME(EventSynchronize)(event); }
inline Error elapsed_milliseconds(float* milliseconds, Event from, Event to) {
  return SOFTMAXD_NAME(EventElapsedTime)(milliseconds, from, to);
}

// The host's side of both is pinned or registered: from pageable memory they would not return before the copy.
inline Error copy_to_device(void* device, const void* pinned, std::size_t bytes, Stream stream) {
  return SOFTMAXD_NAME(MemcpyAsync)(device, pinned, bytes, SOFTMAXD_NAME(MemcpyHostToDevice), stream);
}
inline Error copy_to_host(void* pinned, const void* device, std::size_t bytes, Stream stream) {
  return SOFTMAXD_NAME(MemcpyAsync)(pinned, device, bytes, SOFTMAXD_NAME(MemcpyDeviceToHost), stream);
}

inline Error fill_device(void* device, unsigned char byte, std::size_t bytes, Stream stream) {
  return SOFTMAXD_NAME(MemsetAsync)(device, byte, bytes, stream);
}

// Blocks of a kernel that a device holds at the same time; 0 where it cannot promise that all of a launch are held.
template <class... Parameters>
std::size_t blocks_held(void (*kernel)(Parameters...), unsigned threads, std::size_t shared_bytes, int device) {
#if defined(SOFTMAXD_SIMT)
  static_cast<void>(kernel);
  return simtBlocksTogether(threads, shared_bytes, device);
#else
  int is_promised = 0;
  int multiprocessors = 0;
  int blocks = 0;
  if (SOFTMAXD_NAME(DeviceGetAttribute)(&is_promised, kCooperativeLaunch, device) != kSuccess || is_promised == 0 ||
      SOFTMAXD_NAME(DeviceGetAttribute)(&multiprocessors, kMultiprocessorCount, device) != kSuccess ||
      SOFTMAXD_NAME(OccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, kernel, static_cast<int>(threads),
                                                               shared_bytes) != kSuccess) {
    static_cast<void>(SOFTMAXD_NAME(GetLastError)());
    return 0;
  }
  return static_cast<std::size_t>(blocks) * static_cast<std::size_t>(multiprocessors);
#endif
}

// Starts a launch whose blocks are all held at the same time, so that they may wait for each other; refused by the
// runtime where that cannot be. Each block has `shared_bytes` at dynamic_shared().
template <class... Parameters, class... Arguments>
Error launch_together(void (*kernel)(Parameters...), std::size_t blocks, unsigned threads, std::size_t shared_bytes,
                      Stream stream, Arguments... arguments) {
#if defined(SOFTMAXD_SIMT)
  return simtLaunchTogether(stream, blocks, threads, shared_bytes, [=] { kernel(arguments...); });
#else
  std::tuple<Parameters...> values(arguments...);
  const auto start = [&](auto&... each) {
    void* pointers[] = {static_cast<void*>(&each)...};
    return SOFTMAXD_NAME(LaunchCooperativeKernel)(reinterpret_cast<const void*>(kernel),
                                                  dim3(static_cast<unsigned>(blocks)), dim3(threads), pointers,
                                                  shared_bytes, stream);
  };
  return std::apply(start, values);
#endif
}

// Clusters: blocks that are held at the same time and see each other's shared memory.
#if defined(SOFTMAXD_SIMT) || defined(__CUDACC__)
#define SOFTMAXD_HAS_CLUSTERS 1

// Starts a launch of clusters of `cluster_blocks` blocks each; refused by the runtime where a device cannot hold one.
// Each block has `shared_bytes` at dynamic_shared().
template <class... Parameters, class... Arguments>
Error launch_clusters(void (*kernel)(Parameters...), std::size_t clusters, unsigned cluster_blocks, unsigned threads,
                      std::size_t shared_bytes, Stream stream, Arguments... arguments) {
#if defined(SOFTMAXD_SIMT)
  return simtLaunchClusters(stream, clusters, cluster_blocks, threads, shared_bytes, [=] { kernel(arguments...); });
#else
  // More than 8 blocks are for a device to allow.
  const Error error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {cluster_blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster_blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
#endif
}

// A barrier of all threads of a cluster, in two halves: what a thread wrote before it arrived is seen by those that
// have waited.
__device__ inline void arrive_at_cluster() {
#if defined(SOFTMAXD_SIMT)
  simt::arrive_at_cluster();
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ inline void wait_for_cluster() {
#if defined(SOFTMAXD_SIMT)
  simt::wait_for_cluster();
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Where another block of the cluster, by its number there, has what this one has at `own` in its shared memory.
template <class Value>
__device__ Value* in_block_of_cluster(Value* own, unsigned block) {
#if defined(SOFTMAXD_SIMT)
  return reinterpret_cast<Value*>(simt::shared_of_cluster(reinterpret_cast<unsigned char*>(own), block));
#elif __CUDA_ARCH__ >= 900
  return static_cast<Value*>(__cluster_map_shared_rank(own, block));
#else
  static_cast<void>(block);
  return own;
#endif
}
#else
#define SOFTMAXD_HAS_CLUSTERS 0
#endif

#undef SOFTMAXD_NAME

// The block's own memory of the size that launch_together() was told; aligned to 16 bytes.
__device__ inline unsigned char* dynamic_shared() {
#if defined(SOFTMAXD_SIMT)
  return simt::dynamic_shared();
#else
  extern __shared__ uint4 memory[];
  return reinterpret_cast<unsigned char*>(memory);
#endif
}

// Adds to a counter that all blocks see, and returns what it was. What this thread, and who met it at a barrier before,
// has written is seen by who finds the new value, or a later one, by load_counter().
__device__ inline unsigned add_to_counter(unsigned* counter, unsigned value) {
#if defined(SOFTMAXD_SIMT)
  return __atomic_fetch_add(counter, value, __ATOMIC_ACQ_REL);
#elif defined(__CUDACC__)
  unsigned before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
#else
  return __hip_atomic_fetch_add(counter, value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
#endif
}

__device__ inline unsigned load_counter(unsigned* counter) {
#if defined(SOFTMAXD_SIMT)
  return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
#elif defined(__CUDACC__)
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
#else
  return __hip_atomic_load(counter, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
#endif
}

// Writes a word that other blocks read while this one runs, all of it at once. Orders nothing else.
__device__ inline void store_shared_word(std::uint64_t* to, std::uint64_t word) {
#if defined(SOFTMAXD_SIMT)
  __atomic_store_n(to, word, __ATOMIC_RELAXED);
#elif defined(__CUDACC__)
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
#else
  __hip_atomic_store(to, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#endif
}

__device__ inline std::uint64_t load_shared_word(const std::uint64_t* from) {
#if defined(SOFTMAXD_SIMT)
  return __atomic_load_n(from, __ATOMIC_RELAXED);
#elif defined(__CUDACC__)
  std::uint64_t word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
#else
  return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#endif
}

// A rest between two looks at what others write.
__device__ inline void pause() {
#if defined(SOFTMAXD_SIMT)
  simt::pause();
#elif defined(__CUDACC__)
  __nanosleep(20);
#else
  __builtin_amdgcn_s_sleep(1);
#endif
}

// Returns the value of the lane whose number differs by `mask`, up to 16: within 32 lanes, whatever a wave has. All of
// these come here.
__device__ inline float shuffle_xor(float value, int mask) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
#else
  return __shfl_xor(value, mask);
#endif
}

// Returns the word of another lane of the `width` that this one is among; all of them come here.
__device__ inline std::uint32_t shuffle_from(std::uint32_t word, unsigned lane, unsigned width) {
#if defined(__CUDACC__)
  return __shfl_sync(0xFFFFFFFFU, word, static_cast<int>(lane), static_cast<int>(width));
#else
  return __float_as_uint(__shfl(__uint_as_float(word), static_cast<int>(lane), static_cast<int>(width)));
#endif
}

// What the other lanes of this one's 32 have read and written before, they have before this one goes on. All of them
// come here.
__device__ inline void synchronize_lanes() {
#if defined(SOFTMAXD_SIMT)
  simt::synchronize_lanes();
#elif defined(__CUDACC__)
  __syncwarp();
#else
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#endif
}

// The larger of two; NaN where x is.
__device__ inline float not_below(float x, float lowest) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  float result;  // one instruction in place of two
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(lowest));
  return result;
#else
  return x < lowest ? lowest : x;
#endif
}

// 1 / x, rounded to nearest.
__device__ inline float reciprocal(float x) {
#if defined(__CUDACC__)
  return __frcp_rn(x);
#else
  return 1.0F / x;
#endif
}

// A number that is not negative, or 0 where it is below 2^-126.
__device__ inline float flush(float x) {
#if defined(__CUDACC__)
  float result;  // one instruction in place of two
  asm("mul.ftz.f32 %0, %1, 0f3F800000;" : "=f"(result) : "f"(x));
  return result;
#else
  return x < 1.17549435e-38F ? 0.0F : x;
#endif
}

// What is accessed once, and gives way to other data in the caches.
__device__ inline uint4 read_16_bytes_once(const void* from) {
#if defined(SOFTMAXD_SIMT)
  return *static_cast<const uint4*>(from);
#elif defined(__CUDACC__)
  return __ldcs(static_cast<const uint4*>(from));
#else
  using Vector = std::uint32_t __attribute__((ext_vector_type(4)));
  const Vector bytes = __builtin_nontemporal_load(static_cast<const Vector*>(from));
  return {bytes.x, bytes.y, bytes.z, bytes.w};
#endif
}

__device__ inline void write_16_bytes_once(void* to, const uint4& bytes) {
#if defined(SOFTMAXD_SIMT)
  *static_cast<uint4*>(to) = bytes;
#elif defined(__CUDACC__)
  __stcs(static_cast<uint4*>(to), bytes);
#else
  using Vector = std::uint32_t __attribute__((ext_vector_type(4)));
  __builtin_nontemporal_store(Vector{bytes.x, bytes.y, bytes.z, bytes.w}, static_cast<Vector*>(to));
#endif
}

// Writes 16 bytes at once, to a multiple of 16.
__device__ inline void write_16_bytes(void* to, const uint4& bytes) {
#if defined(__CUDACC__)
  __stwb(static_cast<uint4*>(to), bytes);  // an assignment becomes four, where the registers do not lie side by side
#else
  *static_cast<uint4*>(to) = bytes;
#endif
}

// 2^x for x from -0.5 to 0.5, within 2^-22.
__device__ inline float exp2_of_fraction(float x) {
#if defined(__CUDACC__)
  float power;  // exp2f would add instructions for what is subnormal, which is not met here
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

// Threads of the largest block in which each can have the registers for a leaf: 64 of them on NVIDIA; up to 73 on AMD,
// where 1024 threads would have 64.
#if defined(__CUDACC__)
inline constexpr unsigned kMaxBlockThreads = 1024;
#else
inline constexpr unsigned kMaxBlockThreads = 512;
#endif

// What one launch can have in x on every runtime.
inline constexpr std::size_t kMaxBlocks = (std::size_t{1} << 31) - 1;

// Starts `blocks` blocks of `threads` threads; returns the launch's own error.
template <class... Parameters, class... Arguments>
Error launch(void (*kernel)(Parameters...), std::size_t blocks, unsigned threads, Stream stream,
             Arguments... arguments) {
#if defined(SOFTMAXD_SIMT)
  return simtLaunch(stream, blocks, threads, [=] { kernel(arguments...); });
#else
  // clang-format off
  kernel<<<dim3(static_cast<unsigned>(blocks)), dim3(threads), 0, stream>>>(arguments...);
  // clang-format on
  return last_error();
#endif
}

// Calls start(first, count) for as many launches as `blocks` blocks need, of up to `most` each; stops at the first
// error.
template <class Start>
Error for_each_launch(std::size_t blocks, Start start, std::size_t most = kMaxBlocks) {
  Error error = kSuccess;
  for (std::size_t first = 0; first < blocks && error == kSuccess; first += most) {
    error = start(first, blocks - first < most ? blocks - first : most);
  }
  return error;
}

}  // namespace softmaxd::gpu
