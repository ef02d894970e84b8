// Runs every instruction set, dtype and default variant from three threads at once, for the sanitizers to watch.
// So it does with shared mappings whose files are truncated. Exits with 1 if a result computed in place differs from
// one that is not, or if a truncated mapping does not read as zeros. `make sanitize` builds and runs it.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "softmaxd/cpu_context.h"
#include "softmaxd/shared_mapping.h"

using softmaxd::CpuContext;
using softmaxd::DType;
using softmaxd::Matrix;

namespace {

constexpr std::size_t kColumns[] = {1, 7, 33, 2048, 2049, 5000, 300'001};

std::atomic<int> wrong{0};

void check(CpuContext& context, const Matrix& matrix, std::size_t offset, std::mt19937& random) {
  const std::size_t bytes = matrix.rows * matrix.cols * softmaxd::item_size(matrix.dtype);
  std::vector<unsigned char> x(offset + bytes);
  std::vector<unsigned char> y(offset + bytes);
  for (unsigned char& byte : x) byte = static_cast<unsigned char>(random());  // NaN and infinities among them
  context.softmax(x.data() + offset, y.data() + offset, matrix);
  context.softmax(x.data() + offset, x.data() + offset, matrix);
  if (std::memcmp(x.data() + offset, y.data() + offset, bytes) != 0) ++wrong;
}

void check_all(CpuContext& context, unsigned seed) {
  std::mt19937 random(seed);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::size_t cols : kColumns) {
      for (const std::size_t rows : {1, 3}) {
        for (const std::size_t offset : {0, 1}) check(context, {rows, cols, dtype}, offset, random);
      }
      if (cols < 100) check(context, {9, cols, dtype}, 1, random);  // rows side by side
    }
  }
}

// Several threads meet pages that are gone, while others close their mappings.
void check_truncated_mappings(CpuContext& context) {
  constexpr std::size_t kRows = 8;
  const auto columns = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const Matrix matrix{kRows, columns, DType::kFloat32};
  const std::size_t bytes = kRows * columns * 4;
  for (int round = 0; round < 30; ++round) {
    const int file = memfd_create("softmaxd-test", 0);
    if (ftruncate(file, static_cast<off_t>(bytes)) != 0) ++wrong;
    softmaxd::SharedMapping mapping(file, bytes);
    if (ftruncate(file, static_cast<off_t>(columns)) != 0) ++wrong;
    close(file);
    std::vector<float> result(kRows * columns);
    context.softmax(mapping.data(), result.data(), matrix);
    if (mapping.is_intact() || result.back() != 1.0F / static_cast<float>(columns)) ++wrong;
  }
}

}  // namespace

int main() {
  for (const auto& target : softmaxd::cpu_targets()) {
    for (const std::size_t threads : {1, 3}) {
      CpuContext context(threads, target);
      std::vector<std::thread> callers;
      for (unsigned seed = 0; seed < 3; ++seed) callers.emplace_back([&, seed] { check_all(context, seed); });
      for (std::thread& caller : callers) caller.join();
    }
  }
  CpuContext context(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back([&] { check_truncated_mappings(context); });
  for (std::thread& caller : callers) caller.join();
  std::mt19937 random(3);
  for (const std::size_t cols : {33, 2049}) check(context, {(17u << 20) / cols / 4, cols, DType::kFloat32}, 1, random);
  std::printf("%d wrong\n", wrong.load());
  return wrong == 0 ? 0 : 1;
}
