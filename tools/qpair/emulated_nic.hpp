#pragma once
// How a program gets the emulated NIC: libqpair-softnic.so in LD_PRELOAD, and what the user asked of the NIC
// in QPAIR_NIC_* variables (the NIC parses them again; softnic/config.hpp lists them).

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace qpair::tool {

// The options as they were typed, checked by their validators. Empty: not given. Each falls back to its
// variable, so that `qpair run` inside `qpair run` keeps what was said outside.
struct NicOptions {
  std::string mtu;
  std::string link_layer;
  std::string wire;
  std::string address;
  std::string interface;
  std::string loss;
  std::string duplicate;
  std::string reorder;
  std::string delay;
  std::string seed;
  std::string capture;
  std::string trace;
  bool strict = false;
  bool quiet = false;
};

inline constexpr const char* kNicOptionGroup = "Emulated NIC";  // all of them are in it

void add_nic_options(CLI::App& app, NicOptions& options);      // all but where the NIC's address comes from
void add_address_options(CLI::App& app, NicOptions& options);  // --address, --interface

using Environment = std::vector<std::pair<std::string, std::string>>;

// The variables that give a program the NIC. Keeps what is in LD_PRELOAD already. Fails when the library is
// missing.
Environment nic_environment(const NicOptions& options);

// Fails when --address cannot be had, before a program is started that would only see "no device".
void check_address_is_free(const NicOptions& options);

// libqpair-softnic.so beside this executable: bin/../lib of the build tree, or the installed library
// directory.
std::filesystem::path softnic_library();

// This executable, also when it was deleted or renamed since.
std::filesystem::path own_executable();

// Is libqpair-softnic.so in this process already?
bool on_emulated_nic();

// Runs this same command again, on the emulated NIC. Returns at once when it is on it already.
void ensure_emulated_nic(const NicOptions& options);

// Becomes the program. Exit status as of a shell: 127 when there is no such program, 126 when it cannot be
// executed.
[[noreturn]] void exec_program(const std::vector<std::string>& command, const Environment& environment);

// `text` as one word of a POSIX shell.
std::string shell_quoted(const std::string& text);

}  // namespace qpair::tool
