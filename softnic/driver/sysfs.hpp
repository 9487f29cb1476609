#pragma once
// What the emulated kernel shows of the device in /sys and /dev: real files and links below a scratch
// directory, laid out as in a real sysfs, so that relative links and relative opens come out right without
// anybody's help.
//
//   sys/class/infiniband/mlx5_0            -> ../../devices/pci7171:00/7171:00:00.0/infiniband/mlx5_0
//   sys/class/infiniband_verbs/uverbs0     -> ../../devices/pci7171:00/7171:00:00.0/infiniband_verbs/uverbs0
//   sys/devices/pci7171:00/7171:00:00.0/   the PCI device
//   sys/bus/pci/…  sys/dev/char/231:192    links
//   sys/class/misc/rdma_cm/                the connection manager's device
//   dev/infiniband/uverbs0, rdma_cm        each a placeholder: hooks/ makes it look like the character device
//   that it is for
//
// Formats: kernel, drivers/infiniband/core/sysfs.c, core/uverbs_main.c, hw/mlx5/main.c,
// drivers/pci/pci-sysfs.c.

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "softnic/driver/scratch_directory.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/observe/counters.hpp"

namespace qpair::softnic::driver {

// The device number of uverbs0 (kernel, core/uverbs_main.c: IB_UVERBS_MAJOR, IB_UVERBS_BASE_MINOR).
inline constexpr unsigned kDeviceMajor = 231;
inline constexpr unsigned kDeviceMinor = 192;
// The one of rdma_cm: a miscellaneous device, whose minor number is any that was free (kernel,
// core/ucma.c, MISC_DYNAMIC_MINOR).
inline constexpr unsigned kCmMajor = 10;
inline constexpr unsigned kCmMinor = 121;
// A PCI domain that no machine's firmware hands out, so that the emulated device shadows no real one.
inline constexpr const char* kPciRoot = "pci7171:00";
inline constexpr const char* kPciAddress = "7171:00:00.0";

struct SysfsFacts {
  nic::DeviceIdentity identity;
  std::vector<nic::GidEntry> gids;
  ibv_port_attr port;

  static SysfsFacts of(const nic::Nic& nic);
};

// A file that is told by what it is, not by its name.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

// A file of ports/1/counters or hw_counters, and what it shows.
struct LiveCounter {
  FileIdentity file;
  std::uint64_t (*value)(const observe::Counters&);
};

class SysfsTree {
 public:
  // Writes the tree into a directory that exists. The error is a sentence.
  static tl::expected<SysfsTree, std::string> write(const SysfsFacts& facts, const std::string& directory);

  const std::string& root() const { return root_; }
  // …/infiniband/mlx5_0/failures, which real devices do not have: why the latest work requests failed, a line
  // for each (nic/failures.hpp). Made up when it is opened.
  FileIdentity failures() const { return failures_; }
  // The placeholders of the device nodes.
  FileIdentity node() const { return node_; }
  FileIdentity cm_node() const { return cm_node_; }
  // Attributes that open but whose read() is EINVAL: type and net device of GID table entries that hold no
  // GID. libibverbs tells "no GID" from "broken" by that errno (cmd_device.c, query_sysfs_gid_type).
  FileIdentity invalid_attribute() const { return invalid_attribute_; }
  // Null: the file is no counter, or one that stays 0.
  const LiveCounter* counter(const FileIdentity& file) const;

 private:
  std::string root_;
  FileIdentity node_;
  FileIdentity cm_node_;
  FileIdentity invalid_attribute_;
  std::vector<LiveCounter> counters_;
  FileIdentity failures_;
};

}  // namespace qpair::softnic::driver
