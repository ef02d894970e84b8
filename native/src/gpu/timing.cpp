#include "gpu/timing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "gpu/runtime_error.h"

namespace softmaxd::gpu {
namespace {

constexpr std::size_t kSamples = 11;
// Of a sample, as far as its launches are not too few or too many.
constexpr double kSampleSeconds = 200e-6;
constexpr double kMinLaunches = 2;
constexpr double kMaxLaunches = 32;
// Copies of a piece ahead of a sample: they keep the device busy while the host puts the launches behind them, which
// takes it some microseconds each, longer than a small kernel runs. About 0.5 ms over a bus of 50 GB/s.
constexpr std::size_t kCopiesAhead = 24;

// An element type's bits: the sign, the exponent, `mantissa_bits` of mantissa.
struct Layout {
  unsigned mantissa_bits;
  unsigned bias;
};
constexpr std::array<Layout, kDTypeCount> kLayouts{{{23, 127}, {10, 15}, {7, 127}}};  // by DType

// Fills memory with elements of both signs, of magnitudes from 0.5 to 8.
void fill_with_numbers(std::byte* memory, std::size_t bytes, DType dtype) {
  const Layout layout = kLayouts[static_cast<std::size_t>(dtype)];
  const std::size_t item_bytes = item_size(dtype);
  std::mt19937 random(1);
  for (std::size_t offset = 0; offset + item_bytes <= bytes; offset += item_bytes) {
    const auto draw = static_cast<std::uint32_t>(random());
    const std::uint32_t sign = draw >> 31U << (8 * item_bytes - 1);
    const std::uint32_t exponent = (layout.bias - 1 + (draw >> 29U) % 4) << layout.mantissa_bits;
    const std::uint32_t bits = sign | exponent | (draw & ((1U << layout.mantissa_bits) - 1));
    std::memcpy(memory + offset, &bits, item_bytes);  // little-endian, as everything here
  }
}

// One variant's launches on one matrix.
class Trial {
 public:
  Trial(DeviceContext& device, const Variant& variant, const Matrix& matrix, Lane& lane, TimedEvent& start)
      : device_(device),
        variant_(variant),
        matrix_(matrix),
        bytes_(matrix.rows * matrix.cols * item_size(matrix.dtype)),
        lane_(lane),
        start_(start),
        numbers_(device.pinned_pool.borrow(kPieceBytes)),
        source_(device.device_pool.borrow(bytes_)),
        destination_(device.device_pool.borrow(std::max(bytes_, kPieceBytes))),
        workspace_(device.device_pool.borrow(std::max<std::size_t>(1, variant.workspace_bytes(matrix)))) {}

  void fill_source() {
    fill_with_numbers(numbers_.data(), kPieceBytes, matrix_.dtype);
    for (std::size_t offset = 0; offset < bytes_; offset += kPieceBytes) {
      copy_numbers(source_.data() + offset, std::min(kPieceBytes, bytes_ - offset));
    }
  }

  // Returns the seconds of each of `count` launches.
  double sample(std::size_t count) {
    for (std::size_t i = 0; i < kCopiesAhead; ++i) copy_numbers(destination_.data(), kPieceBytes);
    launch_once();
    start_.record(lane_.stream);
    for (std::size_t i = 0; i < count; ++i) launch_once();
    TimedEvent& end = lane_.slots[0].computed;
    end.record(lane_.stream);
    end.wait();
    return end.seconds_since(start_) / static_cast<double>(count);
  }

 private:
  void copy_numbers(std::byte* to, std::size_t bytes) {
    check(copy_to_device(to, numbers_.data(), bytes, lane_.stream), "copying to the device");
  }

  void launch_once() {
    auto* const workspace = reinterpret_cast<float*>(workspace_.data());
    check(variant_.run({source_.data(),
                        destination_.data(),
                        matrix_,
                        {},
                        workspace,
                        lane_.counters,
                        device_.device.index,
                        lane_.stream}),
          "starting the kernel");
  }

  const DeviceContext& device_;
  const Variant& variant_;
  const Matrix matrix_;
  const std::size_t bytes_;
  Lane& lane_;
  TimedEvent& start_;
  const BufferPool::Loan numbers_;
  const BufferPool::Loan source_;
  const BufferPool::Loan destination_;
  const BufferPool::Loan workspace_;
};

double median_of_samples(Trial& trial) {
  trial.fill_source();
  const double rough_seconds = trial.sample(1);  // also loads the kernel
  const auto launches =
      static_cast<std::size_t>(std::clamp(std::ceil(kSampleSeconds / rough_seconds), kMinLaunches, kMaxLaunches));
  std::array<double, kSamples> seconds{};
  for (double& each : seconds) each = trial.sample(launches);
  std::nth_element(seconds.begin(), seconds.begin() + kSamples / 2, seconds.end());
  return seconds[kSamples / 2];
}

}  // namespace

double time_variant(DeviceContext& device, const Variant& variant, const Matrix& matrix) {
  device.make_current();
  auto start = device.start_events.borrow();
  auto lane = device.lanes.borrow();
  Trial trial(device, variant, matrix, *lane, *start);
  try {
    return median_of_samples(trial);
  } catch (...) {
    // The device must be done with the memory; an error is on its way already.
    disregard(synchronize_stream(lane->stream));
    throw;
  }
}

}  // namespace softmaxd::gpu
