#pragma once
// What is mapped where in this process, as the kernel knows it. Programs can map where no interposed mmap()
// sees: UCX, for one, puts a system call of its own in mmap()'s place.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qpair::softnic::nic {

// The list of mappings at the time when it was made.
class OwnMappings {
 public:
  OwnMappings();
  OwnMappings(const OwnMappings&) = delete;
  OwnMappings& operator=(const OwnMappings&) = delete;

  // It could not be read: there is no descriptor left, or no /proc.
  bool is_empty() const { return lines_.empty(); }
  // The addresses at which other shared, writable mappings show the same page of the same file as the one at
  // `page`.
  std::vector<std::uint64_t> others_of(const void* page) const;

  struct Mapping {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    std::uint64_t offset = 0;  // in the file
    std::uint64_t device = 0;  // st_dev
    std::uint64_t inode = 0;
  };
  // The one shared, writable mapping of a file in which all of [address, address + length) lies.
  std::optional<Mapping> shared_at(std::uint64_t address, std::uint64_t length) const;

 private:
  struct Line {  // of /proc/PID/maps, proc(5)
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    std::uint64_t offset = 0;
    std::string_view rights;
    std::string_view file;  // device and inode
  };
  static bool parse(std::string_view text, Line& line);

  std::string text_;
  std::vector<Line> lines_;  // by address
};

}  // namespace qpair::softnic::nic
