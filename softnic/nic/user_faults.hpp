#pragma once
// Write protection whose faults are told on a descriptor: userfaultfd, user mode only, so that no privilege
// is needed (Documentation/admin-guide/mm/userfaultfd.rst; write protection of shared memory from Linux 5.19
// on).

#include <cstddef>
#include <cstdint>
#include <optional>

namespace qpair::softnic::nic {

class UserFaults {
 public:
  enum class Protection : std::uint8_t { Done, NotThere, Refused };

  UserFaults() = default;
  ~UserFaults();
  UserFaults(const UserFaults&) = delete;
  UserFaults& operator=(const UserFaults&) = delete;

  // The program's pages at `address` may be protected from now on. False: the kernel cannot do that here.
  bool add(std::uint64_t address, std::size_t size);
  void remove(std::uint64_t address, std::size_t size);
  Protection protect(std::uint64_t address, std::size_t size);
  // Lets blocked stores go on.
  void unprotect(std::uint64_t address, std::size_t size);

  // Readable when a store is blocked; -1 while nothing was ever added, or the kernel refuses.
  int descriptor() const { return fd_; }
  // Where the next blocked store wants to go. Nothing: none.
  std::optional<std::uint64_t> next();
  // After fork(): the descriptor belongs to the parent's memory.
  void abandon();

 private:
  bool open();
  int fd_ = -1;
  bool refused_ = false;
};

}  // namespace qpair::softnic::nic
