#pragma once
// Whether a program can have a library preloaded at all.

#include <optional>
#include <string>

namespace qpair::tool {

// Why the dynamic loader will not preload anything into `program` (searched in PATH as execvp() does);
// nothing when it will, or when that cannot be told.
std::optional<std::string> why_not_preloaded(const std::string& program);

}  // namespace qpair::tool
