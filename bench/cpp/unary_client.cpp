// Asks a softmaxd server for the softmax of one float32 matrix again and again, with protoc's stubs alone.
//
//   unary_client TARGET ROWS COLS CALLS [--stream ROWS_PER_MESSAGE MESSAGES_IN_FLIGHT]
//
// The first call is not timed; its answer is checked: each row sums to 1 and has its largest value where the request
// has. Prints the seconds of each further call, one JSON number a line. A call is a unary Softmax of the whole matrix,
// or, with --stream, a SoftmaxStream of its blocks of rows. The requests are made before; a call serializes them and
// parses the answers.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "softmaxd/v1/softmax.grpc.pb.h"

namespace {

namespace pb = softmaxd::v1;

struct Matrix {
  std::int64_t rows, cols;
  std::vector<float> values;  // rows x cols, row-major
};

Matrix random_matrix(std::int64_t rows, std::int64_t cols) {
  Matrix matrix{rows, cols, std::vector<float>(rows * cols)};
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 3);
  for (float& value : matrix.values) value = normal(generator);
  return matrix;
}

void require(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

// The matrix in requests of either kind, with at most `rows_per_request` rows each.
template <typename Request>
std::vector<Request> requests_of(const Matrix& matrix, std::int64_t rows_per_request) {
  std::vector<Request> requests;
  for (std::int64_t first = 0; first < matrix.rows; first += rows_per_request) {
    const std::int64_t rows = std::min(rows_per_request, matrix.rows - first);
    Request& request = requests.emplace_back();
    request.set_data_type(pb::DATA_TYPE_FLOAT32);
    request.add_shape(rows);
    request.add_shape(matrix.cols);
    request.set_payload(matrix.values.data() + first * matrix.cols, rows * matrix.cols * sizeof(float));
  }
  return requests;
}

// Holds an answer against the rows from `first` on; returns how many rows it has.
std::int64_t check(const std::string& payload, const Matrix& matrix, std::int64_t first) {
  const std::int64_t row_bytes = matrix.cols * sizeof(float);
  const std::int64_t rows = payload.size() / row_bytes;
  if (rows * row_bytes != static_cast<std::int64_t>(payload.size()) || first + rows > matrix.rows)
    throw std::runtime_error("the answer has the wrong size");
  std::vector<float> answer(matrix.cols);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(answer.data(), payload.data() + row * row_bytes, row_bytes);
    double sum = 0;
    for (float value : answer) sum += value;
    const float* source = matrix.values.data() + (first + row) * matrix.cols;
    const auto wanted = std::max_element(source, source + matrix.cols) - source;
    const auto largest = *std::max_element(answer.begin(), answer.end());
    if (!(std::abs(sum - 1) < 1e-5) || answer[wanted] != largest)
      throw std::runtime_error("a row of the answer is wrong");
  }
  return rows;
}

void check(const std::vector<std::string>& payloads, const Matrix& matrix) {
  std::int64_t first = 0;
  for (const std::string& payload : payloads) first += check(payload, matrix, first);
  if (first != matrix.rows) throw std::runtime_error("rows are missing");
}

// Returns the answer's payload.
std::vector<std::string> call_unary(pb::SoftmaxService::Stub& stub, const pb::SoftmaxRequest& request) {
  pb::SoftmaxResponse response;
  grpc::ClientContext context;
  require(stub.Softmax(&context, request, &response));
  return {std::move(*response.mutable_payload())};
}

// Returns the answers' payloads if they are to be kept.
std::vector<std::string> call_stream(pb::SoftmaxService::Stub& stub,
                                     const std::vector<pb::SoftmaxStreamRequest>& requests, std::ptrdiff_t in_flight,
                                     bool keep) {
  grpc::ClientContext context;
  auto stream = stub.SoftmaxStream(&context);
  std::counting_semaphore<> free(in_flight);
  std::thread writer([&] {
    for (const pb::SoftmaxStreamRequest& request : requests) {
      free.acquire();
      if (!stream->Write(request)) return;
    }
    stream->WritesDone();
  });
  std::string fault;
  std::vector<std::string> payloads;
  std::size_t answers = 0;
  for (pb::SoftmaxStreamResponse response; stream->Read(&response); ++answers) {
    free.release();
    if (response.status().code() != 0) fault = response.status().message();
    if (keep) payloads.push_back(response.payload());
  }
  free.release(requests.size());  // a call that broke leaves the writer waiting
  writer.join();
  require(stream->Finish());
  if (!fault.empty()) throw std::runtime_error(fault);
  if (answers != requests.size()) throw std::runtime_error("answers are missing");
  return payloads;
}

int run(const std::vector<std::string>& arguments) {
  const bool streams = arguments.size() == 7 && arguments[4] == "--stream";
  if (arguments.size() != 4 && !streams) {
    std::fprintf(stderr, "unary_client TARGET ROWS COLS CALLS [--stream ROWS_PER_MESSAGE MESSAGES_IN_FLIGHT]\n");
    return 2;
  }
  const Matrix matrix = random_matrix(std::stoll(arguments[1]), std::stoll(arguments[2]));
  grpc::ChannelArguments unlimited;
  unlimited.SetMaxReceiveMessageSize(-1);
  unlimited.SetMaxSendMessageSize(-1);
  const auto stub = pb::SoftmaxService::NewStub(
      grpc::CreateCustomChannel(arguments[0], grpc::InsecureChannelCredentials(), unlimited));
  std::function<std::vector<std::string>(bool)> call;
  if (streams) {
    const std::ptrdiff_t in_flight = std::stoll(arguments[6]);
    call = [&stub, in_flight, requests = requests_of<pb::SoftmaxStreamRequest>(matrix, std::stoll(arguments[5]))](
               bool keep) { return call_stream(*stub, requests, in_flight, keep); };
  } else {
    call = [&stub, requests = requests_of<pb::SoftmaxRequest>(matrix, matrix.rows)](bool) {
      return call_unary(*stub, requests.front());
    };
  }
  check(call(true), matrix);
  for (long left = std::stol(arguments[3]); left > 0; --left) {
    const auto start = std::chrono::steady_clock::now();
    call(false);
    std::printf("%.9f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "unary_client: %s\n", error.what());
    return 1;
  }
}
