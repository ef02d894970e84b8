// Times the GPU variants on an NVIDIA device beside a copy of the same bytes; `make bench-gpu` builds and runs it.
//
// Shapes of 64 MiB and more, in and out, are timed by events, call by call; smaller ones as replays of a captured
// graph. Medians. float32; tests/native/gpu checks the values.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "device.h"
#include "gpu/variants.h"

using softmaxd::DType;
using softmaxd::Matrix;
using softmaxd::gpu::Job;
using testing::Array;
using testing::check;

namespace {

constexpr std::size_t kSmallBytes = std::size_t{64} << 20;
constexpr int kRepeats = 31;
constexpr int kReplays = 20;  // in one graph

constexpr Matrix kShapes[] = {{262'144, 128, {}}, {65'536, 1024, {}}, {16'384, 4096, {}}, {8192, 8192, {}},
                              {2048, 32'768, {}}, {512, 131'072, {}}, {1, 1024, {}},      {4, 32'768, {}},
                              {4, 65'536, {}},    {16, 131'072, {}},  {1, 1'048'576, {}}, {4, 1'048'576, {}},
                              {1, 16'777'216, {}}};

float median(std::vector<float> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Microseconds of one call of run(), which puts its work into `stream`.
template <class Run>
float time_us(std::size_t bytes, cudaStream_t stream, Run run) {
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  const bool is_small = bytes < kSmallBytes;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  if (is_small) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < kReplays; ++i) run();
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "graph");
  }
  const auto once = [&] { is_small ? check(cudaGraphLaunch(replay, stream), "graph") : run(); };
  for (int i = 0; i < 3; ++i) once();
  std::vector<float> times;
  for (int i = 0; i < kRepeats; ++i) {
    check(cudaEventRecord(start, stream), "event");
    once();
    check(cudaEventRecord(stop, stream), "event");
    check(cudaEventSynchronize(stop), "event");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "event");
    times.push_back(milliseconds * 1e3F / (is_small ? kReplays : 1));
  }
  if (is_small) {
    check(cudaGraphExecDestroy(replay), "graph");
    check(cudaGraphDestroy(graph), "graph");
  }
  check(cudaEventDestroy(start), "event");
  check(cudaEventDestroy(stop), "event");
  return median(times);
}

}  // namespace

int main() {
  std::printf("device: %s\n%20s %10s %10s %10s\n", testing::device_name().c_str(), "rows x cols", "copy us", "basic us",
              "five_pass");
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  for (const Matrix& matrix : kShapes) {
    const std::size_t size = matrix.rows * matrix.cols;
    Array source(size, DType::kFloat32);
    Array destination(size, DType::kFloat32);
    Array workspace(softmaxd::gpu::five_pass_workspace_bytes(matrix) / sizeof(float), DType::kFloat32);
    std::vector<double> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<double>(i * 2654435761U % 1000) / 250;
    source.write(values);
    const Job job{source.data(), destination.data(), matrix, {}, static_cast<float*>(workspace.data()), stream};
    const std::size_t bytes = 2 * source.bytes();
    const float copy_us = time_us(bytes, stream, [&] {
      check(cudaMemcpyAsync(destination.data(), source.data(), source.bytes(), cudaMemcpyDeviceToDevice, stream),
            "copy");
    });
    const float basic_us = time_us(bytes, stream, [&] { check(softmaxd::gpu::run_basic(job), "basic"); });
    const float five_pass_us = time_us(bytes, stream, [&] { check(softmaxd::gpu::run_five_pass(job), "five_pass"); });
    std::printf("%10zu x %7zu %10.1f %10.1f %10.1f\n", matrix.rows, matrix.cols, copy_us, basic_us, five_pass_us);
  }
  return 0;
}
