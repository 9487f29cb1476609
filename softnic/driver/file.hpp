#pragma once
// Descriptors that the emulated kernel handed out: the open device, event files. hooks/ routes the program's
// calls here.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

namespace qpair::softnic::driver {

// One open file description. dup() shares it, the last close() destroys it. Thread-safe. Results are as of
// system calls in the kernel: negative errno for failure.
class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File() = default;

  virtual int ioctl(unsigned long request, void* argument);    // -ENOTTY by default
  virtual ssize_t write(const void* bytes, std::size_t size);  // -EINVAL
  // `fd` is the descriptor that the program used: blocking and O_NONBLOCK are those of the real file below
  // it.
  virtual ssize_t read(int fd, void* bytes, std::size_t size);  // -EINVAL
  // Before the real mmap of the file: 0, or why not. After it: where the program has it.
  virtual int before_mmap(std::size_t length, int protection, int flags, off_t offset);  // -ENODEV
  virtual void after_mmap(void* address, std::size_t length, off_t offset);
  // Not 0: fstat shows the character device of that number.
  virtual dev_t device_number() const { return 0; }
};

// Opens /dev/infiniband/uverbs0. `fd`: the new descriptor. Negative errno: why not.
int open_device(std::shared_ptr<File>& file);

// Which descriptors are ours. Lookup is lock-free and cheap for the descriptors that are not.
//
// An entry remembers which file its descriptor was. Descriptors also go away where we cannot see it (fclose,
// raw system calls): then the number belongs to another file one day, and find() drops the entry in place of
// answering for it. The child of vfork() shares our memory and closes descriptors before it executes a
// program: remove() and duplicate() do nothing there.
class FileTable {
 public:
  static FileTable& instance();

  // False: nothing was ever installed. Constant-initialised, so that it can be asked before constructors ran.
  static bool in_use() { return in_use_.load(std::memory_order_relaxed); }

  void install(int fd, std::shared_ptr<File> file);
  std::shared_ptr<File> find(int fd) const;
  void remove(int fd);                     // at close; the File may be destroyed here
  void remove_range(int first, int last);  // both included
  void duplicate(int from, int to);

  // Around fork(), on the forking thread; the child's table has the same entries.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  // Memory is the parent's, and everything else the child's own.
  bool in_child_of_vfork() const;

 private:
  struct Entry {
    std::shared_ptr<File> file;
    dev_t device;
    ino_t inode;
  };
  static constexpr std::size_t kBlock = 4096;
  static constexpr std::size_t kBlocks = 1024;
  using Block = std::array<std::atomic<Entry*>, kBlock>;

  std::atomic<Entry*>* slot(int fd) const;
  std::unique_ptr<Entry> take(int fd);
  void put(int fd, std::unique_ptr<Entry> entry);

  static inline constinit std::atomic<bool> in_use_{false};
  std::array<std::atomic<Block*>, kBlocks> blocks_{};
  mutable std::mutex mutex_;  // entries change and shared_ptrs are copied under it
  pid_t owner_ = 0;
};

}  // namespace qpair::softnic::driver
