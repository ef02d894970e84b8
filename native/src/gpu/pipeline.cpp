#include "gpu/pipeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>

#include "gpu/runtime_error.h"

namespace softmaxd::gpu {
namespace {

// Rows longer than a piece go to the device together up to this size, so that few long rows take one launch.
constexpr std::size_t kWideGroupBytes = std::size_t{64} << 20;
// Of the launches on what is on the device already.
constexpr std::size_t kLaunchWorkspaceBytes = std::size_t{64} << 20;

std::size_t row_bytes_of(const Matrix& matrix) { return matrix.cols * item_size(matrix.dtype); }

// Device memory for `matrix` with the workspace behind it.
constexpr std::size_t kWorkspaceAlignment = 256;
std::size_t workspace_offset(const Matrix& matrix) {
  const std::size_t bytes = matrix.rows * row_bytes_of(matrix);
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
std::size_t device_bytes(const Variant& variant, const Matrix& matrix) {
  return workspace_offset(matrix) + variant.workspace_bytes(matrix);
}

bool is_direct(const Request& request) { return request.is_source_registered && request.is_destination_registered; }

// Computes in place what is at `memory`, with the workspace behind it.
void compute(const Variant& variant, const Matrix& matrix, const Options& options, std::byte* memory, int device,
             const Lane& lane) {
  auto* const workspace = reinterpret_cast<float*>(memory + workspace_offset(matrix));
  check(variant.run({memory, memory, matrix, options, workspace, lane.counters, device, lane.stream}),
        "starting the kernel");
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A part of the matrix, in bytes from its start.
struct Piece {
  std::size_t offset;
  std::size_t bytes;
};

// Work on the pieces of a range of bytes. Each thread starts a piece before it finishes the one before.
class PieceWork : public cpu::SharedWork {
 public:
  PieceWork(DeviceContext& device, std::size_t bytes, std::size_t piece_bytes)
      : device_(device), bytes_(bytes), piece_bytes_(piece_bytes) {}

  // Has up to `most` threads at work, the calling one included.
  // Throws what the first piece that failed threw; nothing is under way any more.
  void run(cpu::ThreadPool& threads, std::size_t most) {
    threads.run(*this, std::min((bytes_ - 1) / piece_bytes_, most - 1));
    if (error_) std::rethrow_exception(error_);
  }

  void participate() final {
    try {
      device_.make_current();
      auto lane = device_.lanes.borrow();
      try {
        move_pieces(*lane);
      } catch (...) {
        // The device must be done with the memory; an error is on its way already.
        disregard(synchronize_stream(lane->stream));
        for (Slot& slot : lane->slots) slot.let_go();
        throw;
      }
    } catch (...) {
      next_ = bytes_;  // nobody starts another piece
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

 protected:
  // Brings a piece on its way; the slot is its own until finish().
  virtual void start(const Piece& piece, Lane& lane, Slot& slot) = 0;
  // Waits for the piece, completes it and lets go of the slot's memory.
  virtual void finish(const Piece& piece, Slot& slot) = 0;

  DeviceContext& device_;

 private:
  std::optional<Piece> take() {
    const std::size_t offset = next_.fetch_add(piece_bytes_);
    if (offset >= bytes_) return std::nullopt;
    return Piece{offset, std::min(piece_bytes_, bytes_ - offset)};
  }

  void move_pieces(Lane& lane) {
    std::optional<Piece> under_way;
    for (std::size_t turn = 0;; turn = 1 - turn) {
      const std::optional<Piece> piece = take();
      if (piece) start(*piece, lane, lane.slots[turn]);
      if (under_way) finish(*under_way, lane.slots[1 - turn]);
      if (!piece) return;
      under_way = piece;
    }
  }

  const std::size_t bytes_;
  const std::size_t piece_bytes_;
  std::atomic<std::size_t> next_{0};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

// When the device was done with what, over all pieces of a request.
class Timeline {
 public:
  explicit Timeline(TimedEvent& start) : start_(start) {}

  // The first caller's stream starts the clock; returns once it runs.
  void begin(Stream stream) {
    std::call_once(begun_, [&] { start_.record(stream); });
  }

  // Takes note of a piece that is downloaded.
  void note(const Slot& slot) {
    start_.wait();
    const double uploaded = slot.uploaded.seconds_since(start_);
    const double computed = slot.computed.seconds_since(start_);
    const std::lock_guard lock(mutex_);
    uploaded_ = std::max(uploaded_, uploaded);
    computed_ = std::max(computed_, computed);
  }

  // All pieces are noted; the whole took `seconds`.
  Phases phases(double seconds) const { return {uploaded_, computed_ - uploaded_, std::max(0.0, seconds - computed_)}; }

 private:
  TimedEvent& start_;
  std::once_flag begun_;
  std::mutex mutex_;
  double uploaded_ = 0;
  double computed_ = 0;
};

// Blocks of rows, each a piece: up, computed, down. A side that is registered takes no pinned buffer.
class BlockWork final : public PieceWork {
 public:
  // piece_bytes: what a block has at most.
  BlockWork(DeviceContext& device, const Variant& variant, const Request& request, std::size_t rows_per_block,
            std::size_t piece_bytes, TimedEvent& start)
      : PieceWork(device, request.matrix.rows * row_bytes_of(request.matrix),
                  rows_per_block * row_bytes_of(request.matrix)),
        variant_(variant),
        request_(request),
        slot_bytes_(slot_bytes(piece_bytes)),
        timeline_(start) {}

  Phases phases(double seconds) const { return timeline_.phases(seconds); }

 protected:
  void start(const Piece& piece, Lane& lane, Slot& slot) override {
    timeline_.begin(lane.stream);
    if (!is_direct(request_)) slot.pinned = device_.pinned_pool.borrow(kPieceBytes);
    slot.device = device_.device_pool.borrow(slot_bytes_);
    const std::byte* from = request_.source + piece.offset;
    if (!request_.is_source_registered) {
      std::memcpy(slot.pinned.data(), from, piece.bytes);
      from = slot.pinned.data();
    }
    std::byte* const to = request_.is_destination_registered ? request_.destination + piece.offset : slot.pinned.data();
    check(copy_to_device(slot.device.data(), from, piece.bytes, lane.stream), "copying to the device");
    slot.uploaded.record(lane.stream);
    const Matrix block{piece.bytes / row_bytes_of(request_.matrix), request_.matrix.cols, request_.matrix.dtype};
    compute(variant_, block, request_.options, slot.device.data(), device_.device.index, lane);
    slot.computed.record(lane.stream);
    check(copy_to_host(to, slot.device.data(), piece.bytes, lane.stream), "copying from the device");
    slot.downloaded.record(lane.stream);
  }

  void finish(const Piece& piece, Slot& slot) override {
    slot.downloaded.wait();
    timeline_.note(slot);
    if (!request_.is_destination_registered) {
      std::memcpy(request_.destination + piece.offset, slot.pinned.data(), piece.bytes);
    }
    slot.let_go();
  }

 private:
  const Variant& variant_;
  const Request& request_;
  const std::size_t slot_bytes_;
  Timeline timeline_;
};

// From the host's pageable memory to the device's.
class UploadWork final : public PieceWork {
 public:
  UploadWork(DeviceContext& device, const std::byte* from, std::byte* to, std::size_t bytes)
      : PieceWork(device, bytes, kPieceBytes), from_(from), to_(to) {}

 protected:
  void start(const Piece& piece, Lane& lane, Slot& slot) override {
    slot.pinned = device_.pinned_pool.borrow(kPieceBytes);
    std::memcpy(slot.pinned.data(), from_ + piece.offset, piece.bytes);
    check(copy_to_device(to_ + piece.offset, slot.pinned.data(), piece.bytes, lane.stream), "copying to the device");
    slot.uploaded.record(lane.stream);
  }

  void finish(const Piece&, Slot& slot) override {
    slot.uploaded.wait();
    slot.let_go();
  }

 private:
  const std::byte* const from_;
  std::byte* const to_;
};

// From the device's memory to the host's pageable memory.
class DownloadWork final : public PieceWork {
 public:
  DownloadWork(DeviceContext& device, const std::byte* from, std::byte* to, std::size_t bytes)
      : PieceWork(device, bytes, kPieceBytes), from_(from), to_(to) {}

 protected:
  void start(const Piece& piece, Lane& lane, Slot& slot) override {
    slot.pinned = device_.pinned_pool.borrow(kPieceBytes);
    check(copy_to_host(slot.pinned.data(), from_ + piece.offset, piece.bytes, lane.stream), "copying from the device");
    slot.downloaded.record(lane.stream);
  }

  void finish(const Piece& piece, Slot& slot) override {
    slot.downloaded.wait();
    std::memcpy(to_ + piece.offset, slot.pinned.data(), piece.bytes);
    slot.let_go();
  }

 private:
  const std::byte* const from_;
  std::byte* const to_;
};

// Calls act(lane), which puts work into the lane's stream; returns the seconds that the work took on the device, when
// it is done.
template <class Act>
double run_alone(DeviceContext& device, Act act) {
  auto start = device.start_events.borrow();
  auto lane = device.lanes.borrow();
  TimedEvent& done = lane->slots[0].computed;
  try {
    start->record(lane->stream);
    act(*lane);
    done.record(lane->stream);
    done.wait();
    return done.seconds_since(*start);
  } catch (...) {
    disregard(synchronize_stream(lane->stream));
    throw;
  }
}

// Brings a part of the source into the device's memory.
void upload(DeviceContext& device, cpu::ThreadPool& threads, const Request& request, const Piece& part, std::byte* to,
            std::size_t most_threads) {
  const std::byte* const from = request.source + part.offset;
  if (!request.is_source_registered) return UploadWork(device, from, to, part.bytes).run(threads, most_threads);
  run_alone(device, [&](const Lane& lane) {
    check(copy_to_device(to, from, part.bytes, lane.stream), "copying to the device");
  });
}

// Brings a part of the result from the device's memory to where it belongs.
void download(DeviceContext& device, cpu::ThreadPool& threads, const Request& request, const Piece& part,
              const std::byte* from, std::size_t most_threads) {
  std::byte* const to = request.destination + part.offset;
  if (!request.is_destination_registered) return DownloadWork(device, from, to, part.bytes).run(threads, most_threads);
  run_alone(device, [&](const Lane& lane) {
    check(copy_to_host(to, from, part.bytes, lane.stream), "copying from the device");
  });
}

Phases run_wide(DeviceContext& device, cpu::ThreadPool& threads, const Variant& variant, std::size_t most_threads,
                std::size_t rows_at_once, const Request& request) {
  const std::lock_guard turn(device.wide_turn);
  const std::size_t row_bytes = row_bytes_of(request.matrix);
  Phases phases{};
  for (std::size_t row = 0; row < request.matrix.rows; row += rows_at_once) {
    const auto start = Clock::now();
    const Matrix group{std::min(rows_at_once, request.matrix.rows - row), request.matrix.cols, request.matrix.dtype};
    const Piece part{row * row_bytes, group.rows * row_bytes};
    const BufferPool::Loan memory = device.device_pool.borrow(device_bytes(variant, group));
    upload(device, threads, request, part, memory.data(), most_threads);
    const double uploaded = seconds_since(start);
    const double kernel = run_alone(device, [&](const Lane& lane) {
      compute(variant, group, request.options, memory.data(), device.device.index, lane);
    });
    download(device, threads, request, part, memory.data(), most_threads);
    phases.upload_seconds += uploaded;
    phases.kernel_seconds += kernel;
    phases.download_seconds += std::max(0.0, seconds_since(start) - uploaded - kernel);
  }
  return phases;
}

}  // namespace

Traffic traffic_of(std::size_t threads, bool is_direct) {
  if (!is_direct) return {threads, kSmallestPieceBytes, kPieceBytes};
  return {std::min(threads, kDirectThreads), kSmallestDirectPieceBytes, kDirectPieceBytes};
}

Blocks blocks_of(const Matrix& matrix, std::size_t row_workspace_bytes, const Traffic& traffic) {
  if (matrix.rows == 0 || matrix.cols == 0) return {matrix.rows, true};
  const std::size_t row_bytes = row_bytes_of(matrix);
  std::size_t most = traffic.piece_bytes / row_bytes;
  if (row_workspace_bytes != 0) most = std::min(most, slot_workspace_bytes(traffic.piece_bytes) / row_workspace_bytes);
  if (most == 0) return {std::clamp<std::size_t>(kWideGroupBytes / row_bytes, 1, matrix.rows), false};
  // A piece for each slot of each thread.
  const std::size_t share = matrix.rows * row_bytes / (traffic.threads * Lane::kSlots);
  const std::size_t wanted = std::clamp(share, traffic.smallest_piece_bytes, traffic.piece_bytes) / row_bytes;
  return {std::min({most, std::max<std::size_t>(1, wanted), matrix.rows}), true};
}

Blocks blocks_on_device(const Matrix& matrix, std::size_t row_workspace_bytes) {
  if (matrix.rows == 0 || row_workspace_bytes == 0) return {matrix.rows, false};
  return {std::clamp<std::size_t>(kLaunchWorkspaceBytes / row_workspace_bytes, 1, matrix.rows), false};
}

Phases run_pipeline(DeviceContext& device, cpu::ThreadPool& threads, const Variant& variant, const Traffic& traffic,
                    const Blocks& blocks, const Request& request) {
  const auto begun = Clock::now();
  device.make_current();
  if (!blocks.fit_slots) return run_wide(device, threads, variant, traffic.threads, blocks.rows, request);
  const auto start = device.start_events.borrow();
  BlockWork work(device, variant, request, blocks.rows, traffic.piece_bytes, *start);
  work.run(threads, traffic.threads);
  return work.phases(seconds_since(begun));
}

double run_on_device(DeviceContext& device, const Variant& variant, const Blocks& blocks, const std::byte* source,
                     std::byte* destination, const Matrix& matrix, const Options& options) {
  device.make_current();
  // One for all launches, which follow each other; the first is the largest.
  const std::size_t workspace_bytes = variant.workspace_bytes({blocks.rows, matrix.cols, matrix.dtype});
  BufferPool::Loan workspace;
  if (workspace_bytes != 0) workspace = device.device_pool.borrow(workspace_bytes);
  return run_alone(device, [&](const Lane& lane) {
    for (std::size_t row = 0; row < matrix.rows; row += blocks.rows) {
      const Matrix launched{std::min(blocks.rows, matrix.rows - row), matrix.cols, matrix.dtype};
      const std::size_t offset = row * row_bytes_of(matrix);
      check(variant.run({source + offset, destination + offset, launched, options,
                         reinterpret_cast<float*>(workspace.data()), lane.counters, device.device.index, lane.stream}),
            "starting the kernel");
    }
  });
}

}  // namespace softmaxd::gpu
