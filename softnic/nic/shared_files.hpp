#pragma once
// The files behind the program's memory that other processes can map too: memfds, files in /dev/shm, whatever
// is mapped shared. Found through /proc/self, so it does not matter who mapped it, how, and whether the
// program has closed its descriptor (where it may look: without privileges an open descriptor is needed).

#include <cstdint>
#include <optional>
#include <vector>

#include "softnic/wire/descriptor.hpp"

namespace qpair::softnic::nic {

class SharedFiles {
 public:
  struct Place {
    std::uint64_t file = 0;    // its number; never used again
    std::uint64_t offset = 0;  // of the first byte
  };

  // Where [address, address + length) lies, if in one file. The file is kept until release(), once for each
  // time that it was found.
  std::optional<Place> find(std::uint64_t address, std::uint64_t length);
  // True: that was the last.
  bool release(std::uint64_t file);

  int descriptor(std::uint64_t file) const;
  std::uint64_t size(std::uint64_t file) const;
  void abandon();

 private:
  struct File {
    std::uint64_t number = 0;
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint64_t size = 0;
    unsigned users = 0;
    wire::Descriptor descriptor;
  };
  File* at(std::uint64_t number);

  std::vector<File> files_;
  std::uint64_t next_ = 1;
};

}  // namespace qpair::softnic::nic
