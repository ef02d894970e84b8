// The device core - pools, lanes, pipeline, choice of a device - against float64, from several threads at once:
// `make test-gpu` runs it on a device, `make sanitize` on the simulated one.
//
// Prints the devices and what was done. Exits with 1 at a wrong value, at an allocation in the steady state or at an
// error that is not the expected one, and with 2 where there is no device.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cases.h"
#include "gpu/device_context.h"
#include "softmaxd/error.h"
#include "softmaxd/gpu_context.h"

using softmaxd::Choice;
using softmaxd::GpuContext;
using softmaxd::GpuOptions;
using softmaxd::kNoLimit;
using softmaxd::Matrix;
using softmaxd::gpu::kPieceBytes;
using testing::Bytes;

namespace {

// Of float16 the columns alone decide, between the readable variants; else the number of rows does too.
const std::vector<Choice> kChoices{{softmaxd::DType::kFloat16, kNoLimit, 300, "basic"},
                                   {softmaxd::DType::kFloat16, kNoLimit, kNoLimit, "five_pass"},
                                   {{}, 1, kNoLimit, "split_row"},
                                   {{}, kNoLimit, 1024, "warp_row"},
                                   {{}, kNoLimit, kNoLimit, "reread_row"}};

constexpr std::size_t kThreads = 3;
constexpr std::size_t kCallers = 3;

// A few elements, blocks of rows whose last is smaller, rows that are longer than a piece. In bytes a row: see check().
struct Case {
  std::size_t rows;
  std::size_t row_bytes;
};
constexpr Case kQuickCases[] = {{1, 4}, {3, 68}, {5, 4096}, {9, kPieceBytes / 16}};
constexpr Case kQuickWideCase = {1, kPieceBytes + 4096};
constexpr Case kCases[] = {{9, kPieceBytes / 2},  {2, 2 * kPieceBytes}, {70'000, 12},
                           {4099, 4096},          {40, kPieceBytes},    {3, 3 * kPieceBytes + 8},
                           {17, 5 * kPieceBytes}, {1, 70 * kPieceBytes}};

std::atomic<std::size_t> failures{0};

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::printf("FAILED %s\n", what.c_str());
}

void check(GpuContext& context, const testing::Type& type, const Case& shape, const char* variant,
           std::mt19937& random) {
  const Matrix matrix{shape.rows, shape.row_bytes / softmaxd::item_size(type.dtype), type.dtype};
  const Bytes source = testing::encode(testing::inputs(matrix.rows, matrix.cols, random), type.dtype);
  Bytes got(source.size(), 0xA5);
  const auto phases = context.softmax(source.data(), got.data(), matrix, {}, variant);
  expect(phases.upload_seconds > 0 && phases.kernel_seconds > 0 && phases.download_seconds >= 0,
         std::string("phases of ") + type.name);
  failures += testing::wrong_results("pipeline", type, matrix, false, source, got);
}

// Every type and shape by both variants, from each of several threads; the result's rows are checked.
void check_all(GpuContext& context, bool is_quick) {
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937 random(static_cast<unsigned>(caller));
      try {
        for (const testing::Type& type : testing::kTypes) {
          for (const Case& shape : kQuickCases) check(context, type, shape, "", random);
          check(context, type, {5, 40}, "five_pass", random);
          check(context, type, {5, 4096}, "basic", random);
          if (&type == testing::kTypes) check(context, type, kQuickWideCase, "", random);
          if (is_quick || caller != 0) continue;
          for (const Case& shape : kCases) check(context, type, shape, "", random);
        }
      } catch (const std::exception& error) {
        expect(false, error.what());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

std::size_t allocations(const GpuContext& context) {
  std::size_t sum = 0;
  for (const auto& pool : context.pools()) {
    expect(pool.used_bytes == 0, pool.name + " has " + std::to_string(pool.used_bytes) + " bytes on loan at rest");
    sum += pool.allocations;
  }
  return sum;
}

void check_steady_state(const std::vector<Choice>& choices, bool is_quick) {
  GpuContext context(GpuOptions{{}, choices, kThreads, 0});
  for (const auto& device : context.devices()) {
    std::printf("device %d: %s, %s\n", device.index, softmaxd::gpu_runtime(), device.name.c_str());
  }
  check_all(context, is_quick);
  const std::size_t before = allocations(context);
  check_all(context, is_quick);
  expect(allocations(context) == before, "allocations in the steady state");
  std::printf("steady state: %zu allocations before, %zu after\n", before, allocations(context));
}

// A pool with room for the lanes and a little more: what does not fit is refused, what fits goes on.
void check_out_of_memory() {
  std::size_t reserved = 0;
  {
    GpuContext context(GpuOptions{{0}, kChoices, kThreads, 0});
    reserved = context.pools().front().reserved_bytes;
  }
  GpuContext context(GpuOptions{{0}, kChoices, kThreads, reserved + 6 * kPieceBytes});
  std::mt19937 random(1);
  const testing::Type& type = testing::kTypes[0];
  check(context, type, {1, kPieceBytes + 4}, "", random);
  check(context, type, {1, 5 * kPieceBytes}, "", random);  // only once the first one's buffer is trimmed
  const Matrix matrix{1, 10 * kPieceBytes, type.dtype};    // more than the bound, also once all is trimmed
  Bytes data(matrix.cols * 4);
  try {
    context.softmax(data.data(), data.data(), matrix);
    expect(false, "more than the pool's bound was lent");
  } catch (const softmaxd::OutOfMemory& error) {
    std::printf("refused: %s\n", error.what());
  }
  check(context, type, {1, kPieceBytes + 4}, "", random);
  allocations(context);
}

// Every variant can be timed, also while others compute; what does not fit is refused. Nothing stays on loan.
void check_timing() {
  GpuContext context(GpuOptions{{0}, {}, kThreads, 0});
  std::jthread other([&] {
    std::mt19937 random(4);
    check(context, testing::kTypes[0], {40, 4096}, "", random);
  });
  for (const testing::Type& type : testing::kTypes) {
    for (const auto& variant : context.variants()) {
      expect(context.time_variant(variant.name, {5, 77, type.dtype}) > 0, "time of " + variant.name);
    }
  }
  other.join();
  const std::size_t before = allocations(context);
  context.time_variant("reread_row", {5, 77, testing::kTypes[0].dtype});
  expect(allocations(context) == before, "allocations for what was timed before");
  try {
    context.time_variant("reread_row", {std::size_t{1} << 40, 100, testing::kTypes[0].dtype});
    expect(false, "more than the device's memory was lent");
  } catch (const softmaxd::OutOfMemory& error) {
    std::printf("refused: %s\n", error.what());
  }
  for (const Matrix& matrix : {Matrix{0, 5, softmaxd::DType::kFloat32}, Matrix{5, 1025, softmaxd::DType::kFloat32}}) {
    try {
      context.time_variant("warp_row", matrix);
      expect(false, "what cannot be timed was");
    } catch (const softmaxd::InvalidArgument& error) {
      std::printf("refused: %s\n", error.what());
    }
  }
  allocations(context);
}

#if defined(SOFTMAXD_SIMT)
// While one device computes a large matrix, small ones go to the other.
void check_least_loaded() {
  setenv("SIMT_DEVICES", "2", 1);
  GpuContext context(GpuOptions{{}, kChoices, 1, 0});
  const std::size_t of_first = simt::launches[0];
  const std::size_t of_second = simt::launches[1];
  std::mt19937 random(2);
  const testing::Type& type = testing::kTypes[0];
  std::atomic<bool> is_done{false};
  std::thread busy([&] {
    std::mt19937 own(3);
    check(context, type, {200, 4096}, "", own);
    is_done = true;
  });
  while (simt::launches[0] == of_first && simt::launches[1] == of_second) std::this_thread::yield();
  expect(simt::launches[1] == of_second, "two devices at rest: the first one is to be taken");
  const std::size_t before = simt::launches[0];
  while (!is_done) check(context, type, {1, 400}, "", random);
  busy.join();
  expect(simt::launches[1] > of_second, "no call went to the device without work");
  std::printf("two devices: %zu launches, %zu launches\n", simt::launches[0] - before, simt::launches[1] - of_second);
}
#endif

}  // namespace

int main(int count, char** arguments) {
  const bool is_quick = count == 2 && std::string(arguments[1]) == "--quick";
  try {
    check_steady_state(kChoices, is_quick);
    if (!is_quick) check_steady_state({}, is_quick);
    check_timing();
    check_out_of_memory();
#if defined(SOFTMAXD_SIMT)
    check_least_loaded();
#endif
  } catch (const softmaxd::Unsupported& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
  std::printf("%zu failures\n", failures.load());
  return failures == 0 ? 0 : 1;
}
