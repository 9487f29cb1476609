#pragma once
// Names and numbers for types, so that messages can say what they carry.

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>

#include "qpair/completion.hpp"
#include "qpair/config.hpp"
#include "qpair/device.hpp"
#include "qpair/domain.hpp"
#include "qpair/error.hpp"
#include "qpair/memory.hpp"
#include "qpair/queue_pair.hpp"
#include "qpair/serialize.hpp"

namespace qpair {

// The name of a type; specialise it for your own:  template <> inline constexpr std::string_view
// qpair::kTypeName<my::Message> = "my::Message";  Names are part of the protocol: they must not change.
template <typename T>
inline constexpr std::string_view kTypeName{};

template <>
inline constexpr std::string_view kTypeName<RdmaQueuePair> = "qpair::RdmaQueuePair";
template <>
inline constexpr std::string_view kTypeName<RdmaQpInfo> = "qpair::RdmaQpInfo";
template <>
inline constexpr std::string_view kTypeName<RdmaBuffer> = "qpair::RdmaBuffer";
template <>
inline constexpr std::string_view kTypeName<MemoryRegion> = "qpair::MemoryRegion";
template <>
inline constexpr std::string_view kTypeName<RdmaDomain> = "qpair::RdmaDomain";
template <>
inline constexpr std::string_view kTypeName<RdmaDevice> = "qpair::RdmaDevice";
template <>
inline constexpr std::string_view kTypeName<RdmaPort> = "qpair::RdmaPort";
template <>
inline constexpr std::string_view kTypeName<Gid> = "qpair::Gid";
template <>
inline constexpr std::string_view kTypeName<IbverbsConfig> = "qpair::IbverbsConfig";
template <>
inline constexpr std::string_view kTypeName<PollTarget> = "qpair::PollTarget";
template <>
inline constexpr std::string_view kTypeName<Signal> = "qpair::Signal";
template <>
inline constexpr std::string_view kTypeName<Format> = "qpair::Format";
template <>
inline constexpr std::string_view kTypeName<LinkLayer> = "qpair::LinkLayer";
template <>
inline constexpr std::string_view kTypeName<GidType> = "qpair::GidType";
template <>
inline constexpr std::string_view kTypeName<IbvWc> = "qpair::IbvWc";
template <>
inline constexpr std::string_view kTypeName<WrId> = "qpair::WrId";
template <>
inline constexpr std::string_view kTypeName<DoorBell> = "qpair::DoorBell";
template <>
inline constexpr std::string_view kTypeName<Error> = "qpair::Error";
template <>
inline constexpr std::string_view kTypeName<ErrorCode> = "qpair::ErrorCode";

// The enumerator's name. Overload it, in your own namespace, for your own enums.
[[nodiscard]] std::optional<std::string_view> arm_name(PollTarget value);
[[nodiscard]] std::optional<std::string_view> arm_name(Signal value);
[[nodiscard]] std::optional<std::string_view> arm_name(Format value);
[[nodiscard]] std::optional<std::string_view> arm_name(LinkLayer value);
[[nodiscard]] std::optional<std::string_view> arm_name(GidType value);
[[nodiscard]] std::optional<std::string_view> arm_name(ErrorCode value);

// 64-bit FNV-1a: the same on every build, compiler and machine.
[[nodiscard]] constexpr std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash ^= static_cast<std::uint8_t>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

// Differs between any two types of one binary; means nothing outside it.
class TypeId {
 public:
  template <typename T>
  static TypeId of() {
    return TypeId(&kMark<T>);
  }
  friend bool operator==(TypeId, TypeId) = default;
  friend bool operator<(TypeId a, TypeId b) { return std::less<>()(a.mark_, b.mark_); }
  [[nodiscard]] std::size_t hash() const { return std::hash<const void*>()(mark_); }

 private:
  template <typename T>
  static inline char kMark = 0;  // not const, so that no linker folds two of them into one
  explicit TypeId(const void* mark) : mark_(mark) {}
  const void* mark_;
};

namespace detail {

template <typename T>
struct IsVariant : std::false_type {};
template <typename... Ts>
struct IsVariant<std::variant<Ts...>> : std::true_type {};

template <typename T>
concept HasArmName = requires(const T& value) {
  { arm_name(value) } -> std::convertible_to<std::optional<std::string_view>>;
};

}  // namespace detail

template <typename T>
struct Named {
  // "qpair::RdmaQueuePair"
  static constexpr std::string_view type_name() {
    static_assert(!kTypeName<T>.empty(), "specialise qpair::kTypeName for this type");
    return kTypeName<T>;
  }
  // Stable across builds and compilers.
  static constexpr std::uint64_t type_hash() { return name_hash(type_name()); }
  static TypeId type_id() { return TypeId::of<T>(); }
  // Ports of types are those from 2^63 on.
  static constexpr std::uint64_t port() { return type_hash() | (std::uint64_t{1} << 63); }

  // Which arm an enum (its enumerator's name) or a variant (the type name of the alternative) has. Nothing
  // for other types, for a number that is no enumerator, and for a variant without a value.
  static std::optional<std::string_view> arm([[maybe_unused]] const T& value) {
    if constexpr (detail::IsVariant<T>::value) {
      if (value.valueless_by_exception()) return {};
      return std::visit(
          []<typename A>(const A&) -> std::optional<std::string_view> { return Named<A>::type_name(); },
          value);
    } else if constexpr (detail::HasArmName<T>) {
      return arm_name(value);
    } else {
      return {};
    }
  }
  // The same for a pointer that is known to point at a T.
  static std::optional<std::string_view> arm_unchecked(const void* value) {
    return arm(*static_cast<const T*>(value));
  }
};

}  // namespace qpair

template <>
struct std::hash<qpair::TypeId> {
  std::size_t operator()(qpair::TypeId id) const noexcept { return id.hash(); }
};
