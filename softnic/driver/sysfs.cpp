#include "softnic/driver/sysfs.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <rdma/rdma_user_cm.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace qpair::softnic::driver {
namespace {

// Makes files below one directory. The first failure is kept and everything after it does nothing.
class TreeWriter {
 public:
  explicit TreeWriter(const std::string& directory)
      : name_(directory), root_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (root_ < 0) fail("");
  }
  ~TreeWriter() {
    if (root_ >= 0) close(root_);
  }
  TreeWriter(const TreeWriter&) = delete;
  TreeWriter& operator=(const TreeWriter&) = delete;

  const std::string& error() const { return error_; }

  // With the directories above it.
  void directory(const std::string& path) {
    for (std::size_t slash = path.find('/'); error_.empty(); slash = path.find('/', slash + 1)) {
      const std::string part = path.substr(0, slash);
      if (mkdirat(root_, part.c_str(), 0755) != 0 && errno != EEXIST) fail(part);
      if (slash == std::string::npos) return;
    }
  }

  void file(const std::string& path, std::string_view content, mode_t mode = 0444) {
    if (!error_.empty()) return;
    const int descriptor = openat(root_, path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor < 0) return fail(path);
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written != static_cast<ssize_t>(content.size())) fail(path);
    fchmod(descriptor, mode);  // whatever the umask says
    close(descriptor);
  }

  // A line, as nearly every sysfs attribute is.
  void attribute(const std::string& path, std::string_view value) { file(path, fmt::format("{}\n", value)); }

  void link(const std::string& path, const std::string& target) {
    if (error_.empty() && symlinkat(target.c_str(), root_, path.c_str()) != 0) fail(path);
  }

  // Another name of a file: attributes that are equal and never change need not be written again and again.
  void same(const std::string& path, const std::string& existing) {
    if (error_.empty() && linkat(root_, existing.c_str(), root_, path.c_str(), 0) != 0) fail(path);
  }

  FileIdentity identity(const std::string& path) {
    struct stat status {};
    if (error_.empty() && fstatat(root_, path.c_str(), &status, 0) != 0) fail(path);
    return {status.st_dev, status.st_ino};
  }

 private:
  void fail(const std::string& path) {
    if (error_.empty()) error_ = fmt::format("{}/{}: {}", name_, path, std::strerror(errno));
  }

  std::string name_;
  int root_;
  std::string error_;
};

std::string guid_text(std::uint64_t guid) {
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48U, (guid >> 32U) & 0xffff,
                     (guid >> 16U) & 0xffff, guid & 0xffff);
}

std::string gid_text(const ibv_gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < 16; i += 2) {
    text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
  }
  return text;
}

// core/sysfs.c, rate_show.
std::string rate_text(const ibv_port_attr& port) {
  struct Speed {
    unsigned value;
    unsigned tenths;  // of Gb/s, for a lane
    const char* name;
  };
  constexpr std::array<Speed, 9> kSpeeds = {{{1, 25, ""},
                                             {2, 50, " DDR"},
                                             {4, 100, " QDR"},
                                             {8, 100, " FDR10"},
                                             {16, 140, " FDR"},
                                             {32, 250, " EDR"},
                                             {64, 500, " HDR"},
                                             {128, 1000, " NDR"},
                                             {256, 2000, " XDR"}}};
  // enum ib_port_width
  const unsigned lanes = port.active_width == 1    ? 1
                         : port.active_width == 2  ? 4
                         : port.active_width == 4  ? 8
                         : port.active_width == 8  ? 12
                         : port.active_width == 16 ? 2
                                                   : 1;
  Speed speed = kSpeeds[0];
  for (const Speed& known : kSpeeds) {
    if (known.value == port.active_speed) speed = known;
  }
  const unsigned tenths = speed.tenths * lanes;
  return fmt::format("{}{} Gb/sec ({}X{})", tenths / 10, tenths % 10 != 0 ? ".5" : "", lanes, speed.name);
}

// core/sysfs.c, state_show and phys_state_show.
std::string state_text(unsigned state) {
  constexpr std::array kNames = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  return fmt::format("{}: {}", state, state < kNames.size() ? kNames[state] : "UNKNOWN");
}

std::string physical_state_text(unsigned state) {
  constexpr std::array kNames = {
      "<unknown>",         "Sleep",   "Polling", "Disabled", "PortConfigurationTraining", "LinkUp",
      "LinkErrorRecovery", "Phy Test"};
  return fmt::format("{}: {}", state, state < kNames.size() ? kNames[state] : "<unknown>");
}

// The memory of the emulated device is near to every CPU. cpumap and cpulist as lib/bitmap.c prints them.
struct LocalCpus {
  std::string map;
  std::string list;
};
LocalCpus local_cpus() {
  const long count = std::clamp(sysconf(_SC_NPROCESSORS_CONF), 1L, 8192L);
  LocalCpus cpus;
  cpus.list = count == 1 ? "0" : fmt::format("0-{}", count - 1);
  for (long group = (count - 1) / 32; group >= 0; --group) {
    const long here = std::min(count - group * 32, 32L);
    const std::uint32_t bits = here == 32 ? 0xffffffffU : (1U << static_cast<unsigned>(here)) - 1;
    cpus.map += cpus.map.empty() ? fmt::format("{:x}", bits) : fmt::format(",{:08x}", bits);
  }
  return cpus;
}

// Real devices have no such attribute.
constexpr const char* kFailures = "/failures";

// Where the pieces are, relative to the root.
struct Places {
  std::string pci = fmt::format("sys/devices/{}/{}", kPciRoot, kPciAddress);
  std::string ib;      // …/infiniband/mlx5_0
  std::string uverbs;  // …/infiniband_verbs/uverbs0
  std::string port;    // …/ports/1
};

void write_pci_device(TreeWriter& tree, const Places& at, const SysfsFacts& facts) {
  constexpr unsigned kSubsystem = 0x0023;
  const auto& id = facts.identity;
  const std::string modalias = fmt::format("pci:v{:08X}d{:08X}sv{:08X}sd{:08X}bc02sc00i00", id.vendor_id,
                                           id.device_id, id.vendor_id, kSubsystem);
  const LocalCpus cpus = local_cpus();
  tree.directory(at.pci);
  tree.attribute(at.pci + "/vendor", fmt::format("{:#06x}", id.vendor_id));
  tree.attribute(at.pci + "/device", fmt::format("{:#06x}", id.device_id));
  tree.attribute(at.pci + "/subsystem_vendor", fmt::format("{:#06x}", id.vendor_id));
  tree.attribute(at.pci + "/subsystem_device", fmt::format("{:#06x}", kSubsystem));
  tree.attribute(at.pci + "/revision", fmt::format("{:#04x}", id.hardware_revision));
  const bool ethernet = facts.port.link_layer == IBV_LINK_LAYER_ETHERNET;
  tree.attribute(at.pci + "/class", ethernet ? "0x020000" : "0x020700");
  tree.attribute(at.pci + "/modalias", modalias);
  tree.attribute(
      at.pci + "/uevent",
      fmt::format("DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID={:04X}:{:04X}\nPCI_SUBSYS_ID={:04X}:{:04X}\n"
                  "PCI_SLOT_NAME={}\nMODALIAS={}",
                  id.vendor_id, id.device_id, id.vendor_id, kSubsystem, kPciAddress, modalias));
  tree.attribute(at.pci + "/numa_node", "-1");
  tree.attribute(at.pci + "/local_cpus", cpus.map);
  tree.attribute(at.pci + "/local_cpulist", cpus.list);
  tree.attribute(at.pci + "/max_link_speed", "32.0 GT/s PCIe");
  tree.attribute(at.pci + "/max_link_width", "16");
  tree.attribute(at.pci + "/current_link_speed", "32.0 GT/s PCIe");
  tree.attribute(at.pci + "/current_link_width", "16");
  tree.attribute(at.pci + "/enable", "1");
  tree.attribute(at.pci + "/irq", "0");

  // The net devices that belong to the card are the machine's own.
  tree.directory(at.pci + "/net");
  std::string last;
  for (const nic::GidEntry& gid : facts.gids) {
    if (gid.net_device.empty() || gid.net_device == last) continue;
    if (last.empty()) tree.link(at.pci + "/net/" + gid.net_device, "/sys/class/net/" + gid.net_device);
    last = gid.net_device;
  }

  tree.directory("sys/bus/pci/devices");
  tree.link(fmt::format("sys/bus/pci/devices/{}", kPciAddress),
            fmt::format("../../../devices/{}/{}", kPciRoot, kPciAddress));
  tree.directory("sys/bus/pci/drivers/mlx5_core");
  tree.directory("sys/module/mlx5_core");
  tree.link("sys/bus/pci/drivers/mlx5_core/module", "../../../../module/mlx5_core");
  tree.link(fmt::format("sys/bus/pci/drivers/mlx5_core/{}", kPciAddress),
            fmt::format("../../../../devices/{}/{}", kPciRoot, kPciAddress));
  tree.link(at.pci + "/driver", "../../../bus/pci/drivers/mlx5_core");
  tree.link(at.pci + "/subsystem", "../../../bus/pci");
}

void write_verbs_class(TreeWriter& tree, const Places& at, const SysfsFacts& facts) {
  tree.directory(at.uverbs);
  tree.attribute(at.uverbs + "/dev", fmt::format("{}:{}", kDeviceMajor, kDeviceMinor));
  tree.attribute(at.uverbs + "/ibdev", facts.identity.name);
  tree.attribute(at.uverbs + "/abi_version", "1");  // hw/mlx5: MLX5_IB_UVERBS_ABI_VERSION
  tree.attribute(at.uverbs + "/uevent",
                 fmt::format("MAJOR={}\nMINOR={}\nDEVNAME=infiniband/uverbs0\nDEVMODE=0666", kDeviceMajor,
                             kDeviceMinor));
  tree.link(at.uverbs + "/device", fmt::format("../../../{}", kPciAddress));
  tree.link(at.uverbs + "/subsystem", "../../../../../class/infiniband_verbs");

  const std::string device = at.uverbs.substr(std::strlen("sys/"));
  tree.directory("sys/class/infiniband_verbs");
  tree.attribute("sys/class/infiniband_verbs/abi_version", "6");  // IB_USER_VERBS_ABI_VERSION
  tree.link("sys/class/infiniband_verbs/uverbs0", "../../" + device);
  tree.directory("sys/dev/char");
  tree.link(fmt::format("sys/dev/char/{}:{}", kDeviceMajor, kDeviceMinor), "../../" + device);

  tree.directory("dev/infiniband");
  tree.file("dev/infiniband/uverbs0", "", 0666);
}

// core/ucma.c. In a real sysfs the directory is a link to devices/virtual/misc/rdma_cm.
void write_cm_device(TreeWriter& tree) {
  const std::string at = "sys/class/misc/rdma_cm";
  tree.directory(at);
  tree.attribute(at + "/dev", fmt::format("{}:{}", kCmMajor, kCmMinor));
  tree.attribute(at + "/abi_version", fmt::format("{}", RDMA_USER_CM_ABI_VERSION));
  tree.attribute(at + "/uevent", fmt::format("MAJOR={}\nMINOR={}\nDEVNAME=infiniband/rdma_cm\nDEVMODE=0666",
                                             kCmMajor, kCmMinor));
  tree.file("dev/infiniband/rdma_cm", "", 0666);
}

void write_gid_table(TreeWriter& tree, const Places& at, const SysfsFacts& facts,
                     const std::string& invalid) {
  const std::string attributes = at.port + "/gid_attrs";
  tree.directory(at.port + "/gids");
  tree.directory(attributes + "/types");
  tree.directory(attributes + "/ndevs");
  std::string no_gid;
  for (int index = 0; index < facts.port.gid_tbl_len; ++index) {
    const nic::GidEntry* entry = nullptr;
    for (const nic::GidEntry& gid : facts.gids) {
      if (gid.index == static_cast<unsigned>(index)) entry = &gid;
    }
    const std::string gid = fmt::format("{}/gids/{}", at.port, index);
    const std::string type = fmt::format("{}/types/{}", attributes, index);
    const std::string net_device = fmt::format("{}/ndevs/{}", attributes, index);
    if (entry != nullptr) {
      tree.attribute(gid, gid_text(entry->gid));
      tree.attribute(type, entry->roce_v2 ? "RoCE v2" : "IB/RoCE v1");
      tree.attribute(net_device, entry->net_device);
      continue;
    }
    if (no_gid.empty()) {
      tree.attribute(gid, gid_text(ibv_gid{}));
      no_gid = gid;
    } else {
      tree.same(gid, no_gid);
    }
    tree.same(type, invalid);
    tree.same(net_device, invalid);
  }
}

void write_port(TreeWriter& tree, const Places& at, const SysfsFacts& facts) {
  const ibv_port_attr& port = facts.port;
  tree.directory(at.port);
  tree.attribute(at.port + "/state", state_text(port.state));
  tree.attribute(at.port + "/phys_state", physical_state_text(port.phys_state));
  tree.attribute(at.port + "/link_layer",
                 port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand");
  tree.attribute(at.port + "/rate", rate_text(port));
  tree.attribute(at.port + "/lid", fmt::format("{:#x}", port.lid));
  tree.attribute(at.port + "/lid_mask_count", fmt::format("{}", port.lmc));
  tree.attribute(at.port + "/sm_lid", fmt::format("{:#x}", port.sm_lid));
  tree.attribute(at.port + "/sm_sl", fmt::format("{}", port.sm_sl));
  tree.attribute(at.port + "/cap_mask", fmt::format("{:#010x}", port.port_cap_flags));
  tree.directory(at.port + "/pkeys");
  for (int index = 0; index < port.pkey_tbl_len; ++index) {
    tree.attribute(fmt::format("{}/pkeys/{}", at.port, index), index == 0 ? "0xffff" : "0x0000");
  }
}

// The files hold 0. What counts is told by the file's identity, and its value is made when it is opened
// (counter_files.hpp); the others are all one file.
std::vector<LiveCounter> write_counters(TreeWriter& tree, const Places& at) {
  std::vector<LiveCounter> live;
  const std::string zero = "zero";
  tree.attribute(zero, "0");
  const auto write_folder = [&](const std::string& folder, const auto& files) {
    tree.directory(folder);
    for (const observe::CounterFile& counter : files) {
      const std::string path = fmt::format("{}/{}", folder, counter.name);
      if (counter.value == nullptr) {
        tree.same(path, zero);
        continue;
      }
      tree.attribute(path, "0");
      live.push_back({tree.identity(path), counter.value});
    }
  };
  write_folder(at.port + "/counters", observe::kPortCounters);
  write_folder(at.port + "/hw_counters", observe::kHardwareCounters);
  tree.attribute(at.port + "/hw_counters/lifespan", "10");
  return live;
}

void write_ib_device(TreeWriter& tree, const Places& at, const SysfsFacts& facts) {
  const auto& id = facts.identity;
  tree.directory(at.ib);
  tree.attribute(at.ib + "/node_type", "1: CA");
  tree.attribute(at.ib + "/node_guid", guid_text(id.node_guid));
  tree.attribute(at.ib + "/sys_image_guid", guid_text(id.system_image_guid));
  tree.attribute(at.ib + "/node_desc", id.name);
  tree.attribute(at.ib + "/fw_ver", id.firmware);
  tree.attribute(at.ib + "/hw_rev", fmt::format("{:x}", id.hardware_revision));
  tree.attribute(at.ib + "/hca_type", fmt::format("MT{}", id.device_id));  // hw/mlx5/main.c, hca_type_show
  tree.attribute(at.ib + "/board_id", id.board_id);
  tree.file(at.ib + kFailures, "");
  tree.attribute(at.ib + "/uevent", fmt::format("NAME={}", id.name));
  tree.link(at.ib + "/device", fmt::format("../../../{}", kPciAddress));
  tree.link(at.ib + "/subsystem", "../../../../../class/infiniband");
  tree.directory("sys/class/infiniband");
  tree.link("sys/class/infiniband/" + id.name, "../../" + at.ib.substr(std::strlen("sys/")));
}

}  // namespace

SysfsFacts SysfsFacts::of(const nic::Nic& nic) {
  return {nic.identity(), nic.gids(), nic.port()};
}

tl::expected<SysfsTree, std::string> SysfsTree::write(const SysfsFacts& facts, const std::string& directory) {
  TreeWriter tree(directory);
  Places at;
  at.ib = fmt::format("{}/infiniband/{}", at.pci, facts.identity.name);
  at.uverbs = at.pci + "/infiniband_verbs/uverbs0";
  at.port = at.ib + "/ports/1";
  const std::string invalid = "invalid";
  tree.file(invalid, "");
  write_pci_device(tree, at, facts);
  write_verbs_class(tree, at, facts);
  write_cm_device(tree);
  write_ib_device(tree, at, facts);
  write_port(tree, at, facts);
  std::vector<LiveCounter> counters = write_counters(tree, at);
  write_gid_table(tree, at, facts, invalid);

  SysfsTree result;
  result.root_ = directory;
  result.failures_ = tree.identity(at.ib + kFailures);
  result.node_ = tree.identity("dev/infiniband/uverbs0");
  result.cm_node_ = tree.identity("dev/infiniband/rdma_cm");
  result.invalid_attribute_ = tree.identity(invalid);
  result.counters_ = std::move(counters);
  if (!tree.error().empty()) return tl::unexpected(tree.error());
  return result;
}

const LiveCounter* SysfsTree::counter(const FileIdentity& file) const {
  for (const LiveCounter& counter : counters_) {
    if (counter.file == file) return &counter;
  }
  return nullptr;
}

}  // namespace qpair::softnic::driver
