#pragma once
// Saying why a command was refused.

#include <string_view>

namespace qpair::softnic::driver {

// Says the sentence and gives the errno back, negative, for `return refuse(EINVAL, "…")`.
[[nodiscard]] int refuse(int error, std::string_view sentence);

// The same for things that the device does not do: said the first time only, since programs probe and fall
// back.
[[nodiscard]] int unsupported(const char* what);

}  // namespace qpair::softnic::driver
