// The errors that the library throws, and what Python sees of them.
//
//   InvalidArgument  ValueError
//   Unsupported      RuntimeError
//   DeviceError      RuntimeError
//   OutOfMemory      MemoryError
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace softmaxd {

// A caller's argument is out of its range; the message says what was got and what is allowed.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// This machine or this build cannot do what was asked by name.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A device or its runtime failed; the message names what was tried, the runtime's error, the device and the matrix.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// There is no room on a device, or in the bounds that its pools were given, even after all idle memory was given back.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace softmaxd
