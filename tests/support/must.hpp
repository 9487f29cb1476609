#pragma once
// The end of a test, or of its peer process, with a sentence: for where an assertion cannot stand.

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "qpair/result.hpp"

namespace qpair::testing {

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The value; throws Failed with `what` and the reason where there is none.
template <typename T>
T must(Result<T> result, const char* what) {
  if (!result) throw Failed(std::string(what) + ": " + result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace qpair::testing
