#include "src/strict_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "qpair/serialize.hpp"

namespace qpair::detail {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 8;

Error corrupt(std::string message) {
  return Error::make(ErrorCode::corrupt_message, std::move(message));
}

// Looks at the document without building it: how deep it goes, whether a key comes twice. The parser asks
// before it descends, so a bomb of brackets is refused at the ninth.
class Inspector : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return refuse("holds a byte string, which no field has"); }
  bool start_object(std::size_t) override { return descend(); }
  bool start_array(std::size_t) override { return descend(); }
  bool end_object() override { return ascend(); }
  bool end_array() override { return ascend(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return refuse("has a field twice");
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return refuse(fmt::format("does not parse from byte {} on", position));
  }

  std::string why = "does not parse";

 private:
  bool refuse(std::string reason) {
    why = std::move(reason);
    return false;
  }
  bool descend() {
    if (keys_.size() == kMaxDepth) return refuse(fmt::format("is nested more than {} deep", kMaxDepth));
    keys_.emplace_back();
    return true;
  }
  bool ascend() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Result<json> parse_object(std::string_view bytes) {
  if (bytes.size() > kMaxSerializedBytes) {
    return tl::unexpected(corrupt(
        fmt::format("the message has {} bytes; at most {} are read", bytes.size(), kMaxSerializedBytes)));
  }
  if (bytes.empty()) return tl::unexpected(corrupt("the message is empty"));
  // Ours are always maps: major type 5 of CBOR (RFC 8949, 3.1) has the first byte 0xa0 to 0xbf, which starts
  // no JSON.
  const bool cbor = (static_cast<std::uint8_t>(bytes.front()) & 0xe0) == 0xa0;
  try {
    Inspector inspector;
    if (!json::sax_parse(
            bytes.begin(), bytes.end(), &inspector,
            cbor ? nlohmann::detail::input_format_t::cbor : nlohmann::detail::input_format_t::json)) {
      return tl::unexpected(corrupt(fmt::format("the {} message {}", cbor ? "CBOR" : "JSON", inspector.why)));
    }
    json document = cbor ? json::from_cbor(bytes.begin(), bytes.end(), true, false)
                         : json::parse(bytes.begin(), bytes.end(), nullptr, false);
    if (!document.is_object()) return tl::unexpected(corrupt("the message is not an object"));
    return document;
  } catch (const std::exception& error) {
    return tl::unexpected(corrupt(fmt::format("the message does not parse: {}", error.what())));
  }
}

FieldReader::FieldReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) error_ = corrupt(fmt::format("{} is not an object", where_));
}

void FieldReader::fail(const char* name, std::string_view why) {
  if (!error_) error_ = corrupt(fmt::format("{}.{} {}", where_, name, why));
}

const json* FieldReader::value(const char* name) {
  if (error_) return nullptr;
  known_.insert(name);
  const auto found = object_.find(name);
  if (found == object_.end()) {
    fail(name, "is missing");
    return nullptr;
  }
  return &*found;
}

bool FieldReader::is_null(const char* name) {
  const json* field = value(name);
  return field == nullptr || field->is_null();
}

std::uint64_t FieldReader::number(const char* name, std::uint64_t most) {
  const json* field = value(name);
  if (field == nullptr) return 0;
  if (!field->is_number_unsigned()) {
    fail(name, "is not a whole number from 0 up");
    return 0;
  }
  const auto number = field->get<std::uint64_t>();
  if (number > most) {
    fail(name, fmt::format("is {}; at most {} is allowed", number, most));
    return 0;
  }
  return number;
}

bool FieldReader::boolean(const char* name) {
  const json* field = value(name);
  if (field == nullptr) return false;
  if (!field->is_boolean()) {
    fail(name, "is not true or false");
    return false;
  }
  return field->get<bool>();
}

std::string FieldReader::text(const char* name) {
  const json* field = value(name);
  if (field == nullptr) return {};
  if (!field->is_string()) {
    fail(name, "is not a string");
    return {};
  }
  auto text = field->get<std::string>();
  constexpr std::size_t kLongest = 255;
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (text.size() > kLongest || !printable) {
    fail(name, "is not a string of at most 255 printable ASCII characters");
    return {};
  }
  return text;
}

Result<void> FieldReader::finish() {
  if (!error_) {
    for (const auto& [name, field] : object_.items()) {
      if (known_.contains(name)) continue;
      // The name is the sender's: show no more of it than is safe to print.
      std::string shown;
      for (const char c : name.substr(0, 32)) shown += c >= ' ' && c <= '~' ? c : '?';
      error_ = corrupt(fmt::format("{} has a field '{}' that this version does not know", where_, shown));
      break;
    }
  }
  if (error_) return tl::unexpected(*error_);
  return {};
}

}  // namespace qpair::detail
