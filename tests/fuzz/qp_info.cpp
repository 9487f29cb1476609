// Whatever bytes a peer sends in place of its RdmaQpInfo or another value: parsed strictly or refused, and
// what was accepted says the same thing when it is written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "qpair/serialize.hpp"

namespace {

template <typename T>
void parse(std::string_view bytes) {
  const qpair::Result<T> value = qpair::deserialize<T>(bytes);
  if (!value) {
    if (value.error().code() != qpair::ErrorCode::corrupt_message || value.error().message().empty())
      std::abort();
    return;
  }
  for (const qpair::Format format : {qpair::Format::Json, qpair::Format::Cbor}) {
    const qpair::Result<T> again = qpair::deserialize<T>(qpair::serialize(*value, format));
    if (!again || !(*again == *value)) std::abort();
  }
  if (to_string(*value).empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse<qpair::RdmaQpInfo>(bytes);
  parse<qpair::RdmaBuffer>(bytes);
  parse<qpair::IbverbsConfig>(bytes);
  parse<qpair::Gid>(bytes);
  parse<qpair::PollTarget>(bytes);
  parse<qpair::IbvWc>(bytes);
  parse<qpair::RdmaPort>(bytes);
  parse<qpair::RdmaDevice>(bytes);
  return 0;
}
