#pragma once
// Every value type of qpair as JSON or CBOR and back.
//
// The text is one object: "type", "version", and the fields by their names in the C++ type. Parsing is
// strict: an unknown, missing or doubled field, a wrong type, a number out of range, another version,
// trailing bytes, or deep nesting is corrupt_message, and the error says which field and why. Hostile input
// costs time linear in its size and no more than kMaxSerializedBytes.
//
// A queue pair itself never travels: serialising one gives a token. Deserialising it inside the process that
// made it gives a handle to the live queue pair; anywhere else, or when the queue pair is gone, the error is
// foreign_process.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "qpair/completion.hpp"
#include "qpair/config.hpp"
#include "qpair/device.hpp"
#include "qpair/memory.hpp"
#include "qpair/queue_pair.hpp"
#include "qpair/result.hpp"

namespace qpair {

enum class Format : std::uint8_t { Json, Cbor };

inline constexpr std::size_t kMaxSerializedBytes = std::size_t{1} << 20;

// The bytes of the format; for Json it is text.
[[nodiscard]] std::string serialize(const RdmaQpInfo& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const RdmaBuffer& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const IbverbsConfig& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const Gid& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const PollTarget& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const IbvWc& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const RdmaPort& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const RdmaDevice& value, Format format = Format::Json);
[[nodiscard]] std::string serialize(const RdmaQueuePair& value, Format format = Format::Json);

// JSON or CBOR: the first byte tells.
template <typename T>
[[nodiscard]] Result<T> deserialize(std::string_view bytes);

template <>
Result<RdmaQpInfo> deserialize<RdmaQpInfo>(std::string_view bytes);
template <>
Result<RdmaBuffer> deserialize<RdmaBuffer>(std::string_view bytes);
template <>
Result<IbverbsConfig> deserialize<IbverbsConfig>(std::string_view bytes);
template <>
Result<Gid> deserialize<Gid>(std::string_view bytes);
template <>
Result<PollTarget> deserialize<PollTarget>(std::string_view bytes);
template <>
Result<IbvWc> deserialize<IbvWc>(std::string_view bytes);
template <>
Result<RdmaPort> deserialize<RdmaPort>(std::string_view bytes);
template <>
Result<RdmaDevice> deserialize<RdmaDevice>(std::string_view bytes);
template <>
Result<RdmaQueuePair> deserialize<RdmaQueuePair>(std::string_view bytes);

template <typename T>
[[nodiscard]] Result<T> deserialize(std::span<const std::byte> bytes) {
  return deserialize<T>(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

[[nodiscard]] std::string to_string(Format format);

}  // namespace qpair
