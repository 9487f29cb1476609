#pragma once
// Descriptors that the emulated kernel handed out: the open device, event files. hooks/ routes the program's calls here.

#include <sys/types.h>

#include <cstddef>
#include <memory>

namespace qpair::softnic::driver {

// One open file description. dup() shares it, the last close() destroys it. Thread-safe. Results are as of system
// calls in the kernel: negative errno for failure.
class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File() = default;

  virtual int ioctl(unsigned long request, void* argument);            // -ENOTTY by default
  virtual ssize_t write(const void* bytes, std::size_t size);          // -EINVAL
  // `fd` is the descriptor that the program used: blocking and O_NONBLOCK are those of the real file below it.
  virtual ssize_t read(int fd, void* bytes, std::size_t size);         // -EINVAL
  // Before the real mmap of the file: 0, or why not. After it: where the program has it.
  virtual int before_mmap(std::size_t length, int protection, int flags, off_t offset);  // -ENODEV
  virtual void after_mmap(void* address, std::size_t length, off_t offset);
  virtual bool is_device() const { return false; }  // fstat then shows the character device
};

// Opens /dev/infiniband/uverbs0. `fd`: the new descriptor. Negative errno: why not.
int open_device(std::shared_ptr<File>& file);

// Which descriptors are ours. Lookup is lock-free and cheap for the descriptors that are not.
class FileTable {
 public:
  static FileTable& instance();
  void install(int fd, std::shared_ptr<File> file);
  std::shared_ptr<File> find(int fd) const;
  void remove(int fd);             // at close; the File may be destroyed here
  void duplicate(int from, int to);
};

}  // namespace qpair::softnic::driver
