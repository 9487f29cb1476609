// What `qpair doctor` reads from the system: rights, limits, the GPU driver, huge pages.

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "check.hpp"
#include "emulated_nic.hpp"
#include "failure.hpp"
#include "units.hpp"

namespace qpair::tool {
namespace {

namespace fs = std::filesystem;

bool exists(const char* path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::optional<std::string> file_text(const fs::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The value of "Name: value" or "Name:value" in a file of such lines.
std::optional<std::string> field(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    const std::size_t start = line.find_first_not_of(" \t", name.size() + 1);
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return std::nullopt;
}

bool has_ipc_lock_capability() {
  constexpr unsigned kCapIpcLock = 14;  // linux/capability.h
  const auto effective = field("/proc/self/status", "CapEff");
  return effective && (std::strtoull(effective->c_str(), nullptr, 16) >> kCapIpcLock & 1) != 0;
}

void check_emulated_nic(Checks& checks) {
  if (on_emulated_nic()) {
    checks.push_back({"emulated NIC", Verdict::Ok, "in use: what follows is about it", ""});
    return;
  }
  try {
    checks.push_back({"emulated NIC", Verdict::Ok, softnic_library().string(), ""});
  } catch (const Failure& failure) {
    checks.push_back({"emulated NIC", Verdict::Warn, failure.what(), "install qpair whole: cmake --install"});
  }
}

// What the emulated NIC needs from the kernel to sleep while nothing goes on.
void check_doorbell_wakeup(Checks& checks) {
  if (!on_emulated_nic()) return;
#ifdef UFFD_USER_MODE_ONLY
  const long fd = ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  if (fd >= 0) {
    ::close(static_cast<int>(fd));
    checks.push_back({"doorbell wake-up", Verdict::Ok, "userfaultfd: an idle NIC sleeps", ""});
    return;
  }
#endif
  checks.push_back({"doorbell wake-up", Verdict::Warn,
                    fmt::format("no userfaultfd ({}): the NIC looks for doorbells in short intervals",
                                std::strerror(errno)),
                    "allow the userfaultfd system call (seccomp profile of the container)"});
}

// Every device node of uverbs: libibverbs opens it for reading and writing.
void check_device_nodes(Checks& checks) {
  const fs::path folder = "/dev/infiniband";
  if (!exists(folder.c_str())) {
    checks.push_back(
        {"/dev/infiniband", Verdict::Fail, "does not exist",
         exists("/sys/class/infiniband_verbs")
             ? "the kernel has RDMA devices: give the container --device=/dev/infiniband"
             : "load the driver (modprobe ib_uverbs mlx5_ib), or use the emulated NIC: qpair run, "
               "qpair doctor --emulated"});
    return;
  }
  std::vector<std::string> nodes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("uverbs")) nodes.push_back(name);
  }
  std::sort(nodes.begin(), nodes.end());
  if (error || nodes.empty()) {
    checks.push_back({"/dev/infiniband", Verdict::Fail,
                      error ? error.message() : "has no uverbs device in it",
                      "load the driver: modprobe ib_uverbs mlx5_ib"});
    return;
  }
  for (const std::string& name : nodes) {
    const fs::path path = folder / name;
    if (::access(path.c_str(), R_OK | W_OK) == 0) {
      checks.push_back({path.string(), Verdict::Ok, "readable and writable", ""});
    } else {
      checks.push_back({path.string(), Verdict::Fail, std::strerror(errno),
                        "let this user read and write it: a udev rule with MODE=\"0666\", or a group"});
    }
  }
}

void check_memlock(Checks& checks) {
  constexpr rlim_t kEnough = rlim_t{64} << 20;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string size =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_size(static_cast<std::uint64_t>(limit.rlim_cur));
  if (limit.rlim_cur == RLIM_INFINITY) {
    checks.push_back({"locked memory", Verdict::Ok, size, ""});
  } else if (on_emulated_nic()) {
    checks.push_back(
        {"locked memory", Verdict::Ok, size + ", which the emulated NIC does not count against", ""});
  } else if (has_ipc_lock_capability()) {
    checks.push_back(
        {"locked memory", Verdict::Ok, size + ", not applied: this process has CAP_IPC_LOCK", ""});
  } else {
    checks.push_back({"locked memory", limit.rlim_cur < kEnough ? Verdict::Fail : Verdict::Warn,
                      "limit " + size + "; registered memory counts against it",
                      "ulimit -l unlimited (limits.conf: memlock; systemd: LimitMEMLOCK=infinity; docker: "
                      "--ulimit memlock=-1)"});
  }
}

// GPUDirect RDMA needs the GPU's pages either through nvidia_peermem or as dma-buf; doorbells rung by the GPU
// need the driver to let it map the NIC's registers, which PeerMappingOverride allows.
void check_gpu(Checks& checks) {
  if (!exists("/proc/driver/nvidia/version")) {
    checks.push_back({"NVIDIA GPU", Verdict::Ok, "none: GPUDirect RDMA is not wanted", ""});
    return;
  }
  checks.push_back(
      {"NVIDIA GPU", Verdict::Ok,
       fmt::format("driver {}", field("/proc/driver/nvidia/version", "NVRM version").value_or("?")), ""});
  const bool peermem = exists("/sys/module/nvidia_peermem") || exists("/sys/module/nv_peer_mem");
  checks.push_back(peermem ? Check{"nvidia_peermem", Verdict::Ok, "loaded", ""}
                           : Check{"nvidia_peermem", Verdict::Warn, "not loaded",
                                   "modprobe nvidia_peermem, unless GPU memory is registered as dma-buf"});
  const std::string dwords = field("/proc/driver/nvidia/params", "RegistryDwords").value_or("");
  const bool mapping = dwords.find("PeerMappingOverride=1") != std::string::npos;
  checks.push_back(
      mapping ? Check{"PeerMappingOverride", Verdict::Ok, "set", ""}
              : Check{"PeerMappingOverride", Verdict::Warn, "not set: a GPU kernel cannot ring doorbells",
                      "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d, "
                      "then reload the driver"});
}

void check_huge_pages(Checks& checks) {
  const auto total = file_text("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  const auto free = file_text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  if (!total || !free) {
    checks.push_back({"huge pages", Verdict::Warn, "the kernel has none of 2 MiB", ""});
    return;
  }
  const unsigned long free_count = std::strtoul(free->c_str(), nullptr, 10);
  const unsigned long total_count = std::strtoul(total->c_str(), nullptr, 10);
  checks.push_back({"huge pages", free_count > 0 ? Verdict::Ok : Verdict::Warn,
                    fmt::format("{} of {} free (2 MiB)", free_count, total_count),
                    free_count > 0 ? "" : "sysctl vm.nr_hugepages=512 makes large registrations cheaper"});
}

}  // namespace

void check_system(Checks& checks) {
  check_emulated_nic(checks);
  check_doorbell_wakeup(checks);
  check_device_nodes(checks);
  check_memlock(checks);
  check_gpu(checks);
  check_huge_pages(checks);
}

}  // namespace qpair::tool
