// The device core - pools, lanes, pipeline, choice of a device - against float64, from several threads at once:
// `make test-gpu` runs it on a device, `make sanitize` on the simulated one.
//
// Prints the devices and what was done. Exits with 1 at a wrong value, at an allocation in the steady state or at an
// error that is not the expected one, and with 2 where there is no device.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cases.h"
#include "device.h"
#include "gpu/device_context.h"
#include "gpu/pipeline.h"
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
void check_timing(bool is_quick) {
  GpuContext context(GpuOptions{{0}, {}, kThreads, 0});
  std::jthread other([&] {
    std::mt19937 random(4);
    check(context, testing::kTypes[0], {40, 4096}, "", random);
  });
  for (const testing::Type& type : testing::kTypes) {
    for (const auto& variant : context.variants()) {
      expect(context.time_variant(variant.name, {5, 77, type.dtype}) > 0, "time of " + variant.name);
      if (is_quick && &type != testing::kTypes) break;  // the types differ in what they are filled with alone
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

// Calls act(), which must be refused as InvalidArgument with a message that has `said` in it.
template <class Act>
void expect_refused(const std::string& said, Act act) {
  try {
    act();
    expect(false, "not refused: " + said);
  } catch (const softmaxd::InvalidArgument& error) {
    expect(std::string(error.what()).find(said) != std::string::npos, said + " is not said in: " + error.what());
  }
}

#if defined(SOFTMAXD_SIMT)
// Calls act() while simt<call> fails; that must come as a DeviceError with `said` in it.
template <class Act>
void expect_device_error(const char* call, const std::string& said, Act act) {
  setenv("SIMT_FAIL", call, 1);
  try {
    act();
    expect(false, std::string("no error where this fails: ") + call);
  } catch (const softmaxd::DeviceError& error) {
    expect(std::string(error.what()).find(said) != std::string::npos, said + " is not said in: " + error.what());
  }
  unsetenv("SIMT_FAIL");
}
#endif

// Which sides of a call lie in registered memory.
struct Registered {
  bool source;
  bool destination;
};
constexpr Registered kBoth{true, true};
constexpr Registered kSource{true, false};
constexpr Registered kDestination{false, true};

// Rows of a few bytes; pieces of several rows, the last one smaller; rows that are longer than a piece; large matrices.
constexpr Case kDirectSmallCases[] = {{1, 4}, {70, 68}};
constexpr Case kDirectBlockCase = {9, 65'540};
constexpr Case kHalfDirectWideCase = {1, kPieceBytes + 4096};
constexpr Case kDirectWideCase = {1, 2 * kPieceBytes + 4096};
constexpr Case kDirectCases[] = {{40, kPieceBytes}, {70'000, 12}, {5, 3 * kPieceBytes + 8}, {64, kPieceBytes}};

// Pages of their own: runtimes pin whole ones, and not twice.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : size_((bytes + kPage - 1) / kPage * kPage),
        data_(static_cast<std::byte*>(std::aligned_alloc(kPage, size_)), std::free) {
    std::memset(data(), 0xA5, size_);
  }

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kPage = 4096;
  const std::size_t size_;
  const std::unique_ptr<std::byte, decltype(&std::free)> data_;
};

// Each side's memory registered or not, at addresses that no page starts at: the same bits each time.
void check_registered(GpuContext& context, const testing::Type& type, const Case& shape,
                      std::initializer_list<Registered> all_sides, std::mt19937& random) {
  const Matrix matrix{shape.rows, shape.row_bytes / softmaxd::item_size(type.dtype), type.dtype};
  const Bytes source = testing::encode(testing::inputs(matrix.rows, matrix.cols, random), type.dtype);
  Bytes expected(source.size());
  context.softmax(source.data(), expected.data(), matrix);
  constexpr std::size_t kShift = 4;
  for (const Registered& sides : all_sides) {
    const Pages in(source.size() + kShift);
    const Pages out(source.size() + kShift);
    std::memcpy(in.data() + kShift, source.data(), source.size());
    if (sides.source) context.register_memory(in.data(), in.size());
    if (sides.destination) context.register_memory(out.data(), out.size());
#if defined(SOFTMAXD_SIMT)
    const std::size_t before = simt::bytes_moved_directly;
#endif
    const auto phases = context.softmax(in.data() + kShift, out.data() + kShift, matrix);
#if defined(SOFTMAXD_SIMT)
    expect(simt::bytes_moved_directly - before == (sides.source + sides.destination) * source.size(),
           "bytes moved by DMA");
#endif
    expect(phases.upload_seconds > 0 && phases.kernel_seconds > 0 && phases.download_seconds >= 0, "phases");
    expect(std::memcmp(out.data() + kShift, expected.data(), expected.size()) == 0, "bits of registered memory");
    expect(std::memcmp(in.data() + kShift, source.data(), source.size()) == 0, "the source as it was");
    if (sides.source && sides.destination && matrix.rows > 1) {
      context.softmax(in.data() + kShift, in.data() + kShift, matrix);
      expect(std::memcmp(in.data() + kShift, expected.data(), expected.size()) == 0, "bits in place");
    }
    if (sides.source) context.unregister_memory(in.data(), in.size());
    if (sides.destination) context.unregister_memory(out.data(), out.size());
  }
}

void check_registration(bool is_quick) {
  GpuContext context(GpuOptions{{0}, {}, kThreads, 0});
  std::mt19937 random(5);
  const Pages memory(3 * kPieceBytes);
  context.register_memory(memory.data(), memory.size());
  const std::size_t reserved = allocations(context);
  context.softmax(memory.data(), memory.data(), {4, 1024, softmaxd::DType::kFloat32});
  expect(allocations(context) == reserved, "allocations for the first call on registered memory");
  context.unregister_memory(memory.data(), memory.size());
  const testing::Type& first_type = testing::kTypes[0];
  for (const testing::Type& type : testing::kTypes) {
    for (const Case& shape : kDirectSmallCases) {
      check_registered(context, type, shape, {kBoth, kSource, kDestination}, random);
    }
    for (const Case& shape : kDirectCases) {
      if (!is_quick) check_registered(context, type, shape, {kBoth, kSource, kDestination}, random);
    }
  }
  check_registered(context, first_type, kDirectBlockCase, {kBoth, kSource, kDestination}, random);
  check_registered(context, first_type, kHalfDirectWideCase, {kSource, kDestination}, random);
  check_registered(context, first_type, kDirectWideCase, {kBoth}, random);
  const std::size_t before = allocations(context);
  check_registered(context, first_type, kDirectSmallCases[1], {kBoth, kSource, kDestination}, random);
  expect(allocations(context) == before, "allocations for registered memory in the steady state");

  context.register_memory(memory.data() + kPieceBytes, kPieceBytes);
  for (const auto& [first, bytes] :
       {std::pair{kPieceBytes, kPieceBytes}, std::pair{kPieceBytes - 8, std::size_t{9}},
        std::pair{2 * kPieceBytes - 1, kPieceBytes}, std::pair{std::size_t{0}, memory.size()}}) {
    expect_refused("overlaps", [&] { context.register_memory(memory.data() + first, bytes); });
  }
  expect_refused("0 bytes", [&] { context.register_memory(memory.data(), 0); });
  expect_refused("not registered", [&] { context.unregister_memory(memory.data(), kPieceBytes); });
  expect_refused("not registered", [&] { context.unregister_memory(memory.data() + kPieceBytes, kPieceBytes - 1); });
#if defined(SOFTMAXD_SIMT)
  // What lies in registered memory in part is copied.
  const std::size_t moved = simt::bytes_moved_directly;
  context.softmax(memory.data() + kPieceBytes / 2, memory.data() + kPieceBytes / 2,
                  {4, kPieceBytes / 16, softmaxd::DType::kFloat32});
  context.softmax(memory.data() + kPieceBytes + 4, memory.data() + kPieceBytes + 4,
                  {4, kPieceBytes / 16, softmaxd::DType::kFloat32});
  expect(simt::bytes_moved_directly == moved, "memory beyond what is registered moved by DMA");
  expect_device_error("HostRegister", "registering 100 bytes", [&] { context.register_memory(memory.data(), 100); });
#endif
  context.register_memory(memory.data(), 100);
  allocations(context);
}

// A matrix whose rows do not go into one launch, the last one of fewer rows.
void check_launches_on_device() {
  constexpr std::size_t kRowWorkspaceBytes = 24;
  const std::size_t rows = (std::size_t{64} << 20) / kRowWorkspaceBytes;
  const Matrix narrow{rows + 1, 1, softmaxd::DType::kFloat32};
  expect(softmaxd::gpu::blocks_on_device(narrow, kRowWorkspaceBytes).rows == rows, "rows of a launch");
  expect(softmaxd::gpu::blocks_on_device(narrow, 0).rows == rows + 1, "rows of a launch without a workspace");
  expect(softmaxd::gpu::blocks_on_device(narrow, SIZE_MAX).rows == 1, "rows of a launch with a large workspace");

  softmaxd::gpu::DeviceContext device(0, 1, 0);
  const softmaxd::gpu::Variant& variant = softmaxd::gpu::variants()[softmaxd::gpu::kFivePass];
  const testing::Type& type = testing::kTypes[0];
  const Matrix matrix{7, 2500, type.dtype};
  std::mt19937 random(8);
  const Bytes source = testing::encode(testing::inputs(matrix.rows, matrix.cols, random), type.dtype);
  testing::Array in(matrix.rows * matrix.cols, type.dtype);
  testing::Array out(matrix.rows * matrix.cols, type.dtype);
  in.write(source);
  out.poison();
  softmaxd::gpu::run_on_device(device, variant, {3, false}, static_cast<const std::byte*>(in.data()),
                               static_cast<std::byte*>(out.data()), matrix, {});
  failures += testing::wrong_results("on a device", type, matrix, false, source, out.read());
  expect(device.device_pool.use().used_bytes == 0, "a workspace is on loan at rest");
}

#if defined(SOFTMAXD_SIMT)
// Exports an array's memory: on a real device another process must, see tests/native/gpu/ipc_exporter.py.
std::string handle_of(const testing::Array& array) {
  simtIpcMemHandle_t handle;
  testing::check(simtIpcGetMemHandle(&handle, array.data()), "export");
  return {handle.reserved, sizeof handle.reserved};
}

void check_on_device(GpuContext& context, const testing::Type& type, const Case& shape, const char* variant,
                     std::mt19937& random) {
  constexpr std::size_t kOffset = 12;  // in bytes; of a matrix whose rows no 16 bytes start at
  const Matrix matrix{shape.rows, shape.row_bytes / softmaxd::item_size(type.dtype), type.dtype};
  const Bytes source = testing::encode(testing::inputs(matrix.rows, matrix.cols, random), type.dtype);
  Bytes expected(source.size());
  context.softmax(source.data(), expected.data(), matrix, {}, variant);

  testing::Array in((source.size() + kOffset) / softmaxd::item_size(type.dtype), type.dtype);
  testing::Array out(source.size() / softmaxd::item_size(type.dtype), type.dtype);
  Bytes shifted(kOffset, 0xA5);
  shifted.insert(shifted.end(), source.begin(), source.end());
  in.write(shifted);
  out.poison();
  const auto from = context.open_device_memory(handle_of(in), "0000:a0:00.0", in.bytes());
  const auto to = context.open_device_memory(handle_of(out), "0000:A0:00.0", out.bytes());
  const auto phases = context.softmax_on_device(*from, kOffset, *to, 0, matrix, {}, variant);
  expect(phases.upload_seconds == 0 && phases.kernel_seconds > 0 && phases.download_seconds == 0, "phases on a device");
  expect(out.read() == expected, std::string("bits on a device of ") + type.name);
  expect(in.read() == shifted, "the source on a device as it was");
  context.softmax_on_device(*from, kOffset, *from, kOffset, matrix, {}, variant);
  const Bytes in_place = in.read();
  expect(std::memcmp(in_place.data() + kOffset, expected.data(), expected.size()) == 0, "bits in place on a device");
}

void check_device_memory() {
  setenv("SIMT_DEVICES", "2", 1);
  std::mt19937 random(6);
  {
    GpuContext context(GpuOptions{{0}, kChoices, kThreads, 0});
    const testing::Type& first_type = testing::kTypes[0];
    for (const testing::Type& type : testing::kTypes) check_on_device(context, type, {5, 1028}, "", random);
    for (const Case& shape : {Case{1, 4}, Case{70, 68}, Case{1, 65'540}}) {
      check_on_device(context, first_type, shape, "", random);
    }
    for (const char* variant : {"five_pass", "split_row"}) {
      check_on_device(context, first_type, {3, 4100}, variant, random);
    }
    const Matrix matrix{2, 8, softmaxd::DType::kFloat32};
    testing::Array array(32, softmaxd::DType::kFloat32);
    array.write(Bytes(128));
    const std::string handle = handle_of(array);
    const char* const bus = "0000:a0:00.0";
    const auto memory = context.open_device_memory(handle, bus, 128);
    const auto part = context.open_device_memory(handle, bus, 100);
    const auto compute = [&](std::size_t from, std::size_t to) {
      context.softmax_on_device(*memory, from, *part, to, matrix);
    };
    expect(simt::opened_count() == 1, "an allocation is opened once");
    expect_refused("no device with the PCI bus id '0000:a1:00.0'; there are 0000:a0:00.0",
                   [&] { context.open_device_memory(handle, "0000:A1:00.0", 128); });
    expect_refused("has 63 bytes; it must have 64", [&] { context.open_device_memory(handle.substr(1), bus, 128); });
    expect_refused("cannot be opened: simtErrorInvalidHandle",
                   [&] { context.open_device_memory(std::string(64, 'x'), bus, 128); });
    expect_refused("has 128 bytes, fewer than the 129", [&] { context.open_device_memory(handle, bus, 129); });
    expect_refused("source, 2 x 8 float32 from byte 68, does not lie within the memory of 128",
                   [&] { compute(68, 0); });
    expect_refused("source, 2 x 8 float32 from byte 129", [&] { compute(129, 0); });
    expect_refused("from byte 18446744073709551612", [&] { compute(SIZE_MAX - 3, 0); });
    expect_refused("destination, 2 x 8 float32 from byte 40, does not lie within the memory of 100",
                   [&] { compute(0, 40); });
    expect_refused("source starts at byte 2; it must be a multiple of 4", [&] { compute(2, 0); });
    expect_refused("destination starts at byte 31", [&] { compute(0, 31); });
    expect_refused("overlap", [&] { compute(0, 32); });
    expect_refused("overlap", [&] { compute(32, 28); });
    expect_refused("no variant 'fast'", [&] { context.softmax_on_device(*memory, 0, *part, 0, matrix, {}, "fast"); });
    const Matrix large{std::size_t{1} << 40, std::size_t{1} << 40, softmaxd::DType::kFloat32};
    expect_refused("does not lie within", [&] { context.softmax_on_device(*memory, 0, *part, 0, large); });
    const Matrix empty{0, 8, softmaxd::DType::kFloat32};
    expect_refused("from byte 129", [&] { context.softmax_on_device(*memory, 129, *part, 0, empty); });
    compute(64, 0);
    compute(36, 36);
    context.softmax_on_device(*memory, 128, *part, 100, empty);
    context.softmax_on_device(*memory, 0, *part, 100, {8, 0, softmaxd::DType::kFloat32});

    simtSetDevice(1);
    {
      testing::Array elsewhere(32, softmaxd::DType::kFloat32);
      GpuContext other(GpuOptions{{1}, kChoices, 1, 0});
      const auto on_other = other.open_device_memory(handle_of(elsewhere), "0000:a1:00.0", 128);
      expect_refused("different devices, 0 and 1",
                     [&] { context.softmax_on_device(*memory, 0, *on_other, 0, matrix); });
      expect_refused("on device 1, which the context does not have",
                     [&] { context.softmax_on_device(*on_other, 0, *on_other, 0, matrix); });
    }

    for (const char* call : {"Launch", "EventSynchronize"}) {
      expect_device_error(call, "(basic, 2 x 8 float32, device 0)",
                          [&] { context.softmax_on_device(*memory, 0, *part, 0, matrix, {}, "basic"); });
    }
    // A device that has failed refuses every handle, and it is not the handle's fault.
    expect_device_error("MemGetInfo", "opening an IPC handle",
                        [&] { context.open_device_memory(std::string(64, 'x'), bus, 128); });
    testing::Array fresh(32, softmaxd::DType::kFloat32);
    expect_device_error("MemGetAddressRange", "asking for the size",
                        [&] { context.open_device_memory(handle_of(fresh), bus, 128); });
    expect(simt::opened_count() == 1, "memory of no known size is closed");

    part->close();
    part->close();
    expect_refused("the device memory is closed", [&] { compute(0, 0); });
    expect(simt::opened_count() == 1, "what others have open stays open");
    memory->close();
    expect(simt::opened_count() == 0, "what nobody has open is closed");
    const auto again = context.open_device_memory(handle, bus, 128);
    context.softmax_on_device(*again, 0, *again, 64, matrix);
    allocations(context);
  }
  expect(simt::opened_count() == 0, "memory is open at the end");
}

// While one device computes a large matrix, small ones go to the other.
void check_least_loaded() {
  setenv("SIMT_DEVICES", "2", 1);
  GpuContext context(GpuOptions{{}, kChoices, 1, 0});
  const std::size_t of_first = simt::launches[0];
  const std::size_t of_second = simt::launches[1];
  std::mt19937 random(2);
  const testing::Type& type = testing::kTypes[0];
  std::atomic<bool> is_seen{false};
  std::thread busy([&] {
    std::mt19937 own(3);
    do {  // again where it ended before this thread's caller ran
      check(context, type, {200, 4096}, "", own);
    } while (!is_seen);
  });
  while (simt::launches[0] == of_first && simt::launches[1] == of_second) std::this_thread::yield();
  expect(simt::launches[1] == of_second, "two devices at rest: the first one is to be taken");
  const std::size_t before = simt::launches[0];
  for (int i = 0; i < 1000 && simt::launches[1] == of_second; ++i) check(context, type, {1, 400}, "", random);
  is_seen = true;
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
    check_timing(is_quick);
    check_out_of_memory();
    check_registration(is_quick);
    check_launches_on_device();
#if defined(SOFTMAXD_SIMT)
    check_least_loaded();
    check_device_memory();
#else
    std::printf("device memory: left to ipc_exporter.py, since a process cannot open what it exports itself\n");
#endif
  } catch (const softmaxd::Unsupported& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
  std::printf("%zu failures\n", failures.load());
  return failures == 0 ? 0 : 1;
}
