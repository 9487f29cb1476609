#pragma once
// How a command ends other than well. The tool throws it, main() prints it: one line on stderr, then the exit
// status.

#include <stdexcept>
#include <string>

namespace qpair::tool {

inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& sentence, int status = kFailed)
      : std::runtime_error(sentence), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

}  // namespace qpair::tool
