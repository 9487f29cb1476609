#pragma once
// Printing: every type of qpair that has a to_string() can also be written to a std::ostream and given to
// fmt.

#include <fmt/format.h>

#include <concepts>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>

namespace qpair {

namespace detail {

// True for the types of namespace qpair: only those are printed by the templates below. A function that ADL
// finds for exactly the types of this namespace, enums included.
template <typename T>
concept Printable = (std::is_class_v<T> || std::is_enum_v<T>)&&requires(const T& value) {
  { to_string(value) } -> std::same_as<std::string>;
}
&&requires(const T* pointer) {
  is_of_qpair(pointer);
};

}  // namespace detail

// Found by ADL for types of this namespace; never called.
template <typename T>
void is_of_qpair(const T* pointer);

template <detail::Printable T>
std::ostream& operator<<(std::ostream& stream, const T& value) {
  return stream << to_string(value);
}

}  // namespace qpair

template <qpair::detail::Printable T>
struct fmt::formatter<T> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(const T& value, Context& context) const {
    return fmt::formatter<std::string_view>::format(to_string(value), context);
  }
};
