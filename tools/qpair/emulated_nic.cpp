#include "emulated_nic.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "failure.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibraryName = "libqpair-softnic.so";

// --- validators: an empty answer accepts; CLI11 puts the option's name in front of anything else
// ---------------------

std::string check_mtu(const std::string& text) {
  for (const char* allowed : {"256", "512", "1024", "2048", "4096"}) {
    if (text == allowed) return {};
  }
  return fmt::format("'{}' is not a path MTU; it is 256, 512, 1024, 2048 or 4096 bytes", text);
}

std::string check_probability(const std::string& text) {
  if (parse_probability(text)) return {};
  return fmt::format("'{}' is not a probability; write it as 0.01 or 1%, between 0 and 1", text);
}

std::string check_delay(const std::string& text) {
  if (parse_duration(text)) return {};
  return fmt::format(
      "'{}' is not a time; write a number and its unit, ns, us, ms or s, as in 50us, at most 10s", text);
}

std::string check_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc{} && end == text.data() + text.size()) return {};
  return fmt::format("'{}' is not a seed; it is a whole number below 2^64", text);
}

std::string check_output(const std::string& text) {
  std::error_code error;
  const fs::path path(text);
  if (text.empty()) return "the name of the file is empty";
  if (fs::is_directory(path, error)) return fmt::format("'{}' is a directory; a file is needed", text);
  if (fs::exists(path, error)) {
    if (::access(path.c_str(), W_OK) == 0) return {};
    return fmt::format("'{}' cannot be written: {}", text, std::strerror(errno));
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (::access(folder.c_str(), W_OK) == 0) return {};
  return fmt::format("'{}' cannot be made: {}: {}", text, folder.string(), std::strerror(errno));
}

// A socket address of `text`, IPv4 or IPv6, with RoCEv2's port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

constexpr std::uint16_t kRocePort = 4791;  // IANA "roce"

// A link-local address means something on its interface only.
std::uint32_t scope_of(const in6_addr& address) {
  ifaddrs* list = nullptr;
  if (!IN6_IS_ADDR_LINKLOCAL(&address) || ::getifaddrs(&list) != 0) return 0;
  std::uint32_t scope = 0;
  for (const ifaddrs* entry = list; entry != nullptr && scope == 0; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET6) continue;
    const auto* own = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (std::memcmp(&own->sin6_addr, &address, sizeof address) == 0) scope = own->sin6_scope_id;
  }
  ::freeifaddrs(list);
  return scope;
}

std::optional<SocketAddress> roce_address(const std::string& text) {
  SocketAddress result;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(kRocePort);
    result.size = sizeof *v4;
    return result;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(kRocePort);
    v6->sin6_scope_id = scope_of(v6->sin6_addr);
    result.size = sizeof *v6;
    return result;
  }
  return std::nullopt;
}

std::string check_address(const std::string& text) {
  if (roce_address(text)) return {};
  return fmt::format("'{}' is not an IPv4 or IPv6 address", text);
}

std::string check_link_layer(const std::string& text) {
  if (text == "ethernet" || text == "infiniband") return {};
  return fmt::format("'{}' is no link layer; ethernet or infiniband is", text);
}

std::string check_wire(const std::string& text) {
  if (text == "auto" || text == "ring" || text == "udp") return {};
  return fmt::format("'{}' is no wire; auto, ring or udp is", text);
}

bool has_address(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return true;  // cannot tell; the NIC will
  bool found = false;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (interface != entry->ifa_name || entry->ifa_addr == nullptr) continue;
    found = found || entry->ifa_addr->sa_family == AF_INET || entry->ifa_addr->sa_family == AF_INET6;
  }
  ::freeifaddrs(list);
  return found;
}

std::string check_interface(const std::string& text) {
  if (::if_nametoindex(text.c_str()) == 0) {
    return fmt::format("this machine has no network interface '{}'; `ip link` lists them", text);
  }
  if (!has_address(text)) return fmt::format("the interface '{}' has no IPv4 or IPv6 address", text);
  return {};
}

void add_option(CLI::App& app, const std::string& name, std::string& value, const std::string& variable,
                std::string (*check)(const std::string&), const std::string& type, const std::string& help) {
  app.add_option(name, value, help)
      ->envname(variable)
      ->check(CLI::Validator([check](std::string& text) { return check(text); }, ""))
      ->type_name(type)
      ->group(kNicOptionGroup);
}

const char* variable_or_empty(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// `existing` with `entry` in front and nowhere else. LD_PRELOAD separates by colon or space (ld.so(8)).
std::string prepended(const std::string& existing, const std::string& entry) {
  std::string list = entry;
  for (std::size_t start = 0; start < existing.size();) {
    const std::size_t end = std::min(existing.find_first_of(": ", start), existing.size());
    const std::string other = existing.substr(start, end - start);
    if (!other.empty() && other != entry) list += ":" + other;
    start = end + 1;
  }
  return list;
}

}  // namespace

void add_nic_options(CLI::App& app, NicOptions& options) {
  add_option(app, "--mtu", options.mtu, "QPAIR_NIC_MTU", check_mtu, "BYTES",
             "Path MTU: 256, 512, 1024, 2048 or 4096 (default)");
  add_option(app, "--link-layer", options.link_layer, "QPAIR_NIC_LINK_LAYER", check_link_layer, "KIND",
             "ethernet (RoCE, default) or infiniband (LIDs, for programs that know no GIDs)");
  add_option(
      app, "--wire", options.wire, "QPAIR_NIC_WIRE", check_wire, "KIND",
      "To other processes of this user: auto (default: copies where memory can be reached, else a ring in "
      "shared memory), ring (only that), udp (as to other machines)");
  add_option(app, "--loss", options.loss, "QPAIR_NIC_LOSS", check_probability, "P",
             "Lose packets with this probability: 0.01 or 1%");
  add_option(app, "--duplicate", options.duplicate, "QPAIR_NIC_DUPLICATE", check_probability, "P",
             "Deliver packets twice with this probability");
  add_option(app, "--reorder", options.reorder, "QPAIR_NIC_REORDER", check_probability, "P",
             "Let packets overtake others with this probability");
  add_option(app, "--delay", options.delay, "QPAIR_NIC_DELAY", check_delay, "TIME",
             "Hold every packet back: 50us, 1ms");
  add_option(app, "--seed", options.seed, "QPAIR_NIC_SEED", check_seed, "N",
             "Seed of the faults, to have the same ones again");
  add_option(app, "--capture", options.capture, "QPAIR_NIC_CAPTURE", check_output, "FILE",
             "Write every packet to FILE (pcapng, for Wireshark)");
  add_option(app, "--trace", options.trace, "QPAIR_NIC_TRACE", check_output, "FILE",
             "Write a timeline of every work request to FILE (for ui.perfetto.dev)");
  app.add_flag("--strict", options.strict, "End the program when it breaks the hardware protocol")
      ->envname("QPAIR_NIC_STRICT")
      ->group(kNicOptionGroup);
  app.add_flag("--quiet", options.quiet, "Do not explain failures on stderr")
      ->envname("QPAIR_NIC_QUIET")
      ->group(kNicOptionGroup);
}

void add_address_options(CLI::App& app, NicOptions& options) {
  add_option(app, "--address", options.address, "QPAIR_NIC_ADDRESS", check_address, "A",
             "An address of this machine, to reach other machines (default: one of 127.71.0.0/16)");
  add_option(app, "--interface", options.interface, "QPAIR_NIC_INTERFACE", check_interface, "I",
             "The address of this network interface");
  app.get_option("--address")->excludes(app.get_option("--interface"));
}

std::filesystem::path own_executable() {
  std::error_code error;
  fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (error) throw Failure(fmt::format("cannot find my own executable: /proc/self/exe: {}", error.message()));
  return path;
}

std::filesystem::path softnic_library() {
  const fs::path prefix = own_executable().parent_path().parent_path();
  for (const fs::path& folder : {prefix / "lib", prefix / QPAIR_LIBRARY_DIRECTORY}) {
    fs::path candidate = folder / kLibraryName;
    std::error_code error;
    if (fs::is_regular_file(candidate, error)) return candidate;
  }
  throw Failure(fmt::format("the emulated NIC is not installed: no {} in {} or {}", kLibraryName,
                            (prefix / "lib").string(), (prefix / QPAIR_LIBRARY_DIRECTORY).string()));
}

bool on_emulated_nic() {
  return std::string_view(variable_or_empty("LD_PRELOAD")).find(kLibraryName) != std::string_view::npos;
}

Environment nic_environment(const NicOptions& options) {
  const std::string library = softnic_library().string();
  if (library.find_first_of(": ") != std::string::npos) {
    throw Failure(fmt::format(
        "'{}' has a space or a colon in it, which LD_PRELOAD cannot hold; install qpair elsewhere", library));
  }
  std::string preload = prepended(variable_or_empty("LD_PRELOAD"), library);
#ifdef QPAIR_SANITIZER_RUNTIME
  // A sanitizer's runtime has to be the first library of the process.
  preload = prepended(preload, QPAIR_SANITIZER_RUNTIME);
#endif
  Environment environment{{"LD_PRELOAD", preload}};
  const auto add = [&environment](const char* name, const std::string& value) {
    if (!value.empty()) environment.emplace_back(name, value);
  };
  add("QPAIR_NIC_MTU", options.mtu);
  add("QPAIR_NIC_LINK_LAYER", options.link_layer);
  add("QPAIR_NIC_WIRE", options.wire);
  add("QPAIR_NIC_ADDRESS", options.address);
  add("QPAIR_NIC_INTERFACE", options.interface);
  add("QPAIR_NIC_LOSS", options.loss);
  add("QPAIR_NIC_DUPLICATE", options.duplicate);
  add("QPAIR_NIC_REORDER", options.reorder);
  add("QPAIR_NIC_DELAY", options.delay);
  add("QPAIR_NIC_SEED", options.seed);
  if (!options.capture.empty())
    add("QPAIR_NIC_CAPTURE", fs::absolute(options.capture).lexically_normal().string());
  if (!options.trace.empty()) add("QPAIR_NIC_TRACE", fs::absolute(options.trace).lexically_normal().string());
  if (options.strict) add("QPAIR_NIC_STRICT", "1");
  if (options.quiet) add("QPAIR_NIC_QUIET", "1");
  return environment;
}

void check_address_is_free(const NicOptions& options) {
  if (options.address.empty()) return;
  const auto address = roce_address(options.address);
  if (!address) return;
  const int fd = ::socket(address->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Failure(fmt::format("cannot open a UDP socket: {}", std::strerror(errno)));
  const int result = ::bind(fd, reinterpret_cast<const sockaddr*>(&address->storage), address->size);
  const int error = errno;
  ::close(fd);
  if (result == 0) return;
  if (error == EADDRINUSE) {
    throw Failure(fmt::format("UDP port {} of {} is in use: another NIC has this address; give each its own",
                              kRocePort, options.address));
  }
  if (error == EADDRNOTAVAIL) {
    throw Failure(
        fmt::format("{} is not an address of this machine; `ip address` lists them", options.address));
  }
  throw Failure(fmt::format("cannot use the address {}: {}", options.address, std::strerror(error)));
}

void ensure_emulated_nic(const NicOptions& options) {
  if (on_emulated_nic()) return;
  const Environment environment = nic_environment(options);
  std::vector<std::string> command;
  // The kernel's own record of the arguments: nothing has to be put together again.
  std::string line;
  if (FILE* file = std::fopen("/proc/self/cmdline", "re"); file != nullptr) {
    std::array<char, 4096> chunk{};
    std::size_t size = 0;
    while ((size = std::fread(chunk.data(), 1, chunk.size(), file)) > 0) line.append(chunk.data(), size);
    std::fclose(file);
  }
  for (std::size_t start = 0; start < line.size();) {
    const std::size_t end = std::min(line.find('\0', start), line.size());
    command.push_back(line.substr(start, end - start));
    start = end + 1;
  }
  if (command.empty()) throw Failure("cannot read /proc/self/cmdline");
  command.front() = own_executable().string();
  exec_program(command, environment);
}

void exec_program(const std::vector<std::string>& command, const Environment& environment) {
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) {
    const bool path = command.front().find('/') != std::string::npos;
    throw Failure(fmt::format("{}: {}", command.front(), path ? "no such file" : "no such program in PATH"),
                  127);
  }
  throw Failure(fmt::format("{}: cannot be executed: {}", command.front(), std::strerror(error)), 126);
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\'') {
      quoted += "'\\''";
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

}  // namespace qpair::tool
