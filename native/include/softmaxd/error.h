// The errors that the library throws. Python sees InvalidArgument as ValueError and Unsupported as RuntimeError.
#pragma once

#include <stdexcept>
#include <string>

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

}  // namespace softmaxd
