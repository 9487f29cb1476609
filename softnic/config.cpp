#include "softnic/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "softnic/wire/address.hpp"

namespace qpair::softnic {
namespace {

constexpr std::array<std::uint32_t, 5> kMtus{256, 512, 1024, 2048, 4096};
constexpr std::chrono::nanoseconds kLongestDelay = std::chrono::seconds{10};

// A decimal number that takes up the whole text. std::from_chars, since it knows no locale.
template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) {
    return std::nullopt;
  }
  return number;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) {
    return false;
  }
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<double> parse_probability(std::string_view text) {
  const double scale = take_suffix(text, "%") ? 0.01 : 1;
  const auto number = whole_number<double>(text);
  if (!number || !(*number >= 0 && *number * scale <= 1)) {  // also refuses "nan"
    return std::nullopt;
  }
  return *number * scale;
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  double scale = 1;
  if (text == "0") {
    return std::chrono::nanoseconds{0};
  }
  if (take_suffix(text, "ns")) {
    scale = 1;
  } else if (take_suffix(text, "us")) {
    scale = 1e3;
  } else if (take_suffix(text, "ms")) {
    scale = 1e6;
  } else if (take_suffix(text, "s")) {
    scale = 1e9;
  } else {
    return std::nullopt;
  }
  const auto number = whole_number<double>(text);
  if (!number || !(*number >= 0 && *number * scale <= static_cast<double>(kLongestDelay.count()))) {
    return std::nullopt;
  }
  return std::chrono::nanoseconds{std::llround(*number * scale)};
}

// True: `yes`. False: `no`.
std::optional<bool> one_of(std::string_view text, std::string_view yes, std::string_view no) {
  return text == yes ? std::optional(true) : text == no ? std::optional(false) : std::nullopt;
}

std::optional<bool> parse_flag(std::string_view text) {
  return one_of(text, "1", "0");
}

std::optional<std::uint64_t> parse_seed(std::string_view text) {
  if (text.starts_with("0x")) {
    std::uint64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 2, end, number, 16);
    return error == std::errc{} && stop == end ? std::optional(number) : std::nullopt;
  }
  return whole_number<std::uint64_t>(text);
}

std::optional<std::uint32_t> parse_mtu(std::string_view text) {
  const auto number = whole_number<std::uint32_t>(text);
  return number && std::find(kMtus.begin(), kMtus.end(), *number) != kMtus.end() ? number : std::nullopt;
}

std::optional<NicConfig::Wire> parse_wire(std::string_view text) {
  using Wire = NicConfig::Wire;
  if (text == "auto") return Wire::Auto;
  if (text == "ring") return Wire::Ring;
  return text == "udp" ? std::optional(Wire::Udp) : std::nullopt;
}

const char* wire_name(NicConfig::Wire wire) {
  switch (wire) {
    case NicConfig::Wire::Auto:
      return "auto";
    case NicConfig::Wire::Ring:
      return "ring";
    case NicConfig::Wire::Udp:
      return "udp";
  }
  return "";
}

// Reads the variables one by one; after the first error the rest is left alone.
class Reader {
 public:
  template <typename Value, typename Parse>
  void read(const char* variable, Value& value, Parse parse, std::string_view allowed) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0' || !error_.empty()) {  // set to nothing is as good as not set
      return;
    }
    if (const auto parsed = parse(std::string_view(text))) {
      value = *parsed;
    } else {
      error_ = fmt::format("{}='{}' is not understood: {}", variable, text, allowed);
    }
  }

  static bool is_set(const char* variable) {
    const char* text = std::getenv(variable);
    return text != nullptr && *text != '\0';
  }

  const std::string& error() const { return error_; }

 private:
  std::string error_;
};

std::optional<std::string> any_text(std::string_view text) {
  return std::string(text);
}

std::string list_of_addresses() {
  std::string list;
  for (const wire::LocalAddress& local : wire::local_addresses()) {
    list +=
        fmt::format("{}{} ({})", list.empty() ? "" : ", ", wire::to_string(local.endpoint), local.interface);
  }
  return list;
}

std::string list_of_interfaces() {
  std::vector<std::string> names;
  for (const wire::LocalAddress& local : wire::local_addresses()) {
    if (std::find(names.begin(), names.end(), local.interface) == names.end()) {
      names.push_back(local.interface);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// The address of this machine that the configuration names; nothing when it names none.
tl::expected<std::optional<wire::LocalAddress>, std::string> named_address(const NicConfig& config) {
  if (!config.address.empty() && !config.interface.empty()) {
    return tl::unexpected(
        fmt::format("QPAIR_NIC_ADDRESS='{}' and QPAIR_NIC_INTERFACE='{}' are both set: choose one",
                    config.address, config.interface));
  }
  if (!config.interface.empty()) {
    auto local = wire::address_of_interface(config.interface);
    if (!local) {
      return tl::unexpected(
          fmt::format("QPAIR_NIC_INTERFACE='{}' cannot be used: {}; interfaces with an address: {}",
                      config.interface, local.error(), list_of_interfaces()));
    }
    return *std::move(local);
  }
  if (config.address.empty()) {
    return std::nullopt;
  }
  const auto endpoint = wire::parse_address(config.address);
  if (!endpoint) {
    return tl::unexpected(fmt::format(
        "QPAIR_NIC_ADDRESS='{}' is no IPv4 or IPv6 address, as 192.0.2.1 or fd00::1 are", config.address));
  }
  if (!wire::is_one_machine(*endpoint)) {
    return tl::unexpected(
        fmt::format("QPAIR_NIC_ADDRESS='{}' is not the address of one machine", config.address));
  }
  auto local = wire::find_local(*endpoint);
  if (!local) {
    return tl::unexpected(
        fmt::format("QPAIR_NIC_ADDRESS='{}' is no address of this machine, which has {} and all of "
                    "127.0.0.0/8",
                    config.address, list_of_addresses()));
  }
  return local;
}

// A path MTU has to fit in the interface's; where none was asked for, the largest that fits is taken.
std::string fit_mtu(NicConfig& config, const wire::LocalAddress& local) {
  if (local.mtu == 0) {
    return {};
  }
  const std::uint32_t largest = wire::roce_mtu_for(local.mtu);
  if (config.mtu <= largest) {
    return {};
  }
  if (!Reader::is_set("QPAIR_NIC_MTU")) {
    config.mtu = largest;
    return {};
  }
  return fmt::format(
      "QPAIR_NIC_MTU='{}' does not fit in the {} bytes that packets on {} may have: at most {}", config.mtu,
      local.mtu, local.interface, largest);
}

}  // namespace

tl::expected<NicConfig, std::string> NicConfig::from_environment() {
  constexpr std::string_view kProbability = "a probability is allowed, as 0.01 or 1%, from 0 to 1";
  constexpr std::string_view kFlag = "0 or 1 is allowed";
  NicConfig config;
  Reader reader;
  reader.read("QPAIR_NIC_ADDRESS", config.address, any_text, "");
  reader.read("QPAIR_NIC_INTERFACE", config.interface, any_text, "");
  reader.read("QPAIR_NIC_WIRE", config.wire, parse_wire, "auto, ring or udp is allowed");
  reader.read("QPAIR_NIC_MTU", config.mtu, parse_mtu, "256, 512, 1024, 2048 or 4096 is allowed");
  reader.read("QPAIR_NIC_LOSS", config.loss, parse_probability, kProbability);
  reader.read("QPAIR_NIC_DUPLICATE", config.duplicate, parse_probability, kProbability);
  reader.read("QPAIR_NIC_REORDER", config.reorder, parse_probability, kProbability);
  reader.read("QPAIR_NIC_CORRUPT", config.corrupt, parse_probability, kProbability);
  reader.read("QPAIR_NIC_DELAY", config.delay, parse_duration,
              "a number and ns, us, ms or s is allowed, as 50us, from 0 to 10s");
  reader.read("QPAIR_NIC_SEED", config.seed, parse_seed,
              "a whole number below 2^64 is allowed, decimal or after 0x");
  reader.read("QPAIR_NIC_CAPTURE", config.capture, any_text, "");
  reader.read("QPAIR_NIC_TRACE", config.trace, any_text, "");
  reader.read("QPAIR_NIC_STRICT", config.strict, parse_flag, kFlag);
  reader.read("QPAIR_NIC_QUIET", config.quiet, parse_flag, kFlag);
  reader.read(
      "QPAIR_NIC_LINK_LAYER", config.infiniband,
      [](std::string_view text) { return one_of(text, "infiniband", "ethernet"); },
      "ethernet or infiniband is allowed");
  reader.read(
      "QPAIR_NIC_ABI", config.write_abi, [](std::string_view text) { return one_of(text, "write", "ioctl"); },
      "ioctl or write is allowed");
  if (!reader.error().empty()) {
    return tl::unexpected(reader.error());
  }
  const auto local = named_address(config);
  if (!local) {
    return tl::unexpected(local.error());
  }
  if (*local) {
    std::string error = fit_mtu(config, **local);
    if (!error.empty()) {
      return tl::unexpected(std::move(error));
    }
  }
  return config;
}

std::vector<std::pair<std::string, std::string>> to_environment(const NicConfig& config) {
  const NicConfig defaults;
  std::vector<std::pair<std::string, std::string>> variables;
  const auto add = [&variables](const char* name, const auto& value, const auto& normal) {
    if (value != normal) {
      variables.emplace_back(name, fmt::format("{}", value));
    }
  };
  add("QPAIR_NIC_ADDRESS", config.address, defaults.address);
  add("QPAIR_NIC_INTERFACE", config.interface, defaults.interface);
  if (config.wire != defaults.wire) {
    variables.emplace_back("QPAIR_NIC_WIRE", wire_name(config.wire));
  }
  add("QPAIR_NIC_MTU", config.mtu, defaults.mtu);
  add("QPAIR_NIC_LOSS", config.loss, defaults.loss);
  add("QPAIR_NIC_DUPLICATE", config.duplicate, defaults.duplicate);
  add("QPAIR_NIC_REORDER", config.reorder, defaults.reorder);
  add("QPAIR_NIC_CORRUPT", config.corrupt, defaults.corrupt);
  if (config.delay != defaults.delay) {
    variables.emplace_back("QPAIR_NIC_DELAY", fmt::format("{}ns", config.delay.count()));
  }
  add("QPAIR_NIC_SEED", config.seed, defaults.seed);
  add("QPAIR_NIC_CAPTURE", config.capture, defaults.capture);
  add("QPAIR_NIC_TRACE", config.trace, defaults.trace);
  add("QPAIR_NIC_STRICT", static_cast<int>(config.strict), 0);
  add("QPAIR_NIC_QUIET", static_cast<int>(config.quiet), 0);
  if (config.infiniband) {
    variables.emplace_back("QPAIR_NIC_LINK_LAYER", "infiniband");
  }
  if (config.write_abi) {
    variables.emplace_back("QPAIR_NIC_ABI", "write");
  }
  return variables;
}

}  // namespace qpair::softnic
