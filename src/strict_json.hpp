#pragma once
// Reading JSON and CBOR that may be hostile: bounded, without doubled keys, and with an error for everything
// that is not exactly as it should be.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "qpair/result.hpp"

namespace qpair::detail {

// The one object that `bytes` holds. corrupt_message if it is not exactly one, is too long or too deep, or
// has a key twice.
Result<nlohmann::json> parse_object(std::string_view bytes);

// Reads the fields of an object. The first error sticks; after it every read returns an empty value. finish()
// says how it went, and minds the fields that nobody asked for.
class FieldReader {
 public:
  // `where` goes before the field names in errors: "RdmaQpInfo."
  FieldReader(const nlohmann::json& object, std::string where);

  std::uint64_t number(const char* name, std::uint64_t most);
  template <typename T>
  T integer(const char* name, std::uint64_t most = std::numeric_limits<T>::max()) {
    return static_cast<T>(number(name, most));
  }
  template <typename T>
  std::optional<T> optional_integer(const char* name, std::uint64_t most = std::numeric_limits<T>::max()) {
    if (is_null(name)) return {};
    return integer<T>(name, most);
  }
  bool boolean(const char* name);
  // Printable ASCII.
  std::string text(const char* name);
  // Any value; null when there is an error.
  const nlohmann::json* value(const char* name);
  bool is_null(const char* name);
  void fail(const char* name, std::string_view why);

  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] Result<void> finish();

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
  std::optional<Error> error_;
};

}  // namespace qpair::detail
