// Any bytes through write() and ioctl() of the device, and through write() of rdma_cm: an errno, never a
// crash, a leak or a hang.
//
// The input is a list of records: one byte of what to do, two of how long, then the bytes. Commands are
// copied to the end of a page with a hole behind it, so that a read too far shows. Words of the input that
// look like small numbers are patched to be addresses of buffers that exist, or commands would hardly ever
// get past their first pointer.

#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/rdma_user_cm.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "softnic/driver/cm_file.hpp"
#include "softnic/driver/file.hpp"
#include "softnic/driver/scratch_directory.hpp"

namespace {

using qpair::softnic::driver::CmFile;
using qpair::softnic::driver::File;
using qpair::softnic::driver::FileTable;
using qpair::softnic::driver::ScratchDirectory;

constexpr std::size_t kPage = 4096;

// Command, answers, rings: each is its own mapping with nothing behind it.
class Arena {
 public:
  Arena() {
    for (auto& page : pages_) {
      page = static_cast<std::uint8_t*>(
          mmap(nullptr, 3 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      if (page == MAP_FAILED || mprotect(page, 2 * kPage, PROT_READ | PROT_WRITE) != 0) std::abort();
    }
  }
  std::uint8_t* end(std::size_t which) const { return pages_[which % 8] + 2 * kPage; }
  std::uint64_t address(std::size_t which) const {
    return reinterpret_cast<std::uintptr_t>(pages_[which % 8]);
  }

 private:
  std::uint8_t* pages_[8];
};

// A response goes where the command says, be it into the fuzzer's own heap: such addresses, which libFuzzer
// finds by watching comparisons, are made to point nowhere.
bool is_somebody_elses(std::uint64_t address) {
  // Two small numbers side by side look like an address below this, where nothing lies but the sanitizer's
  // shadow of addresses that nobody has.
  constexpr std::uint64_t kLowest = std::uint64_t{1} << 43;
  if (address < kLowest) return false;
  auto* const page =
      reinterpret_cast<void*>(static_cast<std::uintptr_t>(address & ~std::uint64_t{kPage - 1}));
  return msync(page, kPage, MS_ASYNC) == 0;
}

// 64-bit words 0xa0 to 0xa7 in the input stand for buffers of the arena.
void patch_addresses(std::uint8_t* bytes, std::size_t size, const Arena& arena) {
  for (std::size_t at = 0; at + 8 <= size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof word);
    if (word >= 0xa0 && word <= 0xa7) {
      word = arena.address(word - 0xa0);
    } else if (is_somebody_elses(word)) {
      word = kPage;
    }
    std::memcpy(bytes + at, &word, sizeof word);
  }
}

class Session {
 public:
  Session() {
    fd_ = qpair::softnic::driver::open_device(file_);
    if (fd_ < 0) std::abort();
    FileTable::instance().install(fd_, file_);
  }
  ~Session() {
    close(fd_, file_);
    if (cm_) close(cm_fd_, cm_);
    // Event descriptors that commands left behind.
    for (int fd = 3; fd < 256; ++fd) {
      if (!FileTable::instance().find(fd)) continue;
      FileTable::instance().remove(fd);
      ::close(fd);
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  File& file() { return *file_; }
  // Opened when first wanted. Its events are there or not; nobody waits for them.
  File& cm() {
    static const auto scratch = ScratchDirectory::create();
    if (cm_) return *cm_;
    cm_fd_ = scratch ? CmFile::open(scratch->path(), cm_) : -1;
    if (cm_fd_ < 0 || ::fcntl(cm_fd_, F_SETFL, O_NONBLOCK) != 0) std::abort();
    FileTable::instance().install(cm_fd_, cm_);
    return *cm_;
  }

  static ib_uverbs_attr attribute(std::uint16_t id, const void* at, std::uint16_t size) {
    return {.attr_id = id,
            .len = size,
            .flags = UVERBS_ATTR_F_MANDATORY,
            .attr_data = {},
            .data = reinterpret_cast<std::uintptr_t>(at)};
  }

  void get_context(bool legacy, bool devx) {
    mlx5_ib_alloc_ucontext_req_v2 request{};
    mlx5_ib_alloc_ucontext_resp answer{};
    request.total_num_bfregs = 16;
    request.num_low_latency_bfregs = 4;
    request.max_cqe_version = 1;
    request.flags = devx ? MLX5_IB_ALLOC_UCTX_DEVX : 0;
    request.lib_caps = legacy ? 0 : MLX5_LIB_CAP_DYN_UAR;
    const ib_uverbs_ioctl_hdr header{.length = sizeof(ib_uverbs_ioctl_hdr) + 2 * sizeof(ib_uverbs_attr),
                                     .object_id = UVERBS_OBJECT_DEVICE,
                                     .method_id = UVERBS_METHOD_GET_CONTEXT,
                                     .num_attrs = 2,
                                     .reserved1 = 0,
                                     .driver_id = 1,
                                     .reserved2 = 0};
    const ib_uverbs_attr attributes[2] = {attribute(UVERBS_ATTR_UHW_IN, &request, sizeof request),
                                          attribute(UVERBS_ATTR_UHW_OUT, &answer, sizeof answer)};
    alignas(8) std::uint8_t call[sizeof header + sizeof attributes];
    std::memcpy(call, &header, sizeof header);
    std::memcpy(call + sizeof header, attributes, sizeof attributes);
    static_cast<void>(file_->ioctl(RDMA_VERBS_IOCTL, call));
  }

 private:
  static void close(int fd, std::shared_ptr<File>& file) {
    FileTable::instance().remove(fd);
    file.reset();
    ::close(fd);
  }

  int fd_ = -1;
  std::shared_ptr<File> file_;
  int cm_fd_ = -1;
  std::shared_ptr<File> cm_;
};

// Makes the envelope fit, so that the handler is reached.
void envelop_write(std::uint8_t* bytes, std::size_t& size) {
  ib_uverbs_cmd_hdr header{};
  if (size < sizeof header) return;
  std::memcpy(&header, bytes, sizeof header);
  header.command &= IB_USER_VERBS_CMD_COMMAND_MASK;
  header.in_words = static_cast<std::uint16_t>(size / 4);
  header.out_words = 64;
  std::memcpy(bytes, &header, sizeof header);
  size &= ~std::size_t{3};
}

void envelop_cm(std::uint8_t* bytes, std::size_t size) {
  rdma_ucm_cmd_hdr header{};
  if (size < sizeof header) return;
  std::memcpy(&header, bytes, sizeof header);
  header.cmd %= RDMA_USER_CM_CMD_JOIN_MCAST + 2;
  header.in = static_cast<std::uint16_t>(size - sizeof header);
  header.out = 512;
  std::memcpy(bytes, &header, sizeof header);
}

void act(Session& session, unsigned what, std::uint8_t* bytes, std::size_t size) {
  switch (what % 6) {
    case 0:
      static_cast<void>(session.file().write(bytes, size));
      return;
    case 1:
      static_cast<void>(session.file().ioctl(RDMA_VERBS_IOCTL, bytes));
      return;
    case 2:
      envelop_write(bytes, size);
      static_cast<void>(session.file().write(bytes, size));
      return;
    case 4:
      envelop_cm(bytes, size);
      [[fallthrough]];
    case 5:
      static_cast<void>(session.cm().write(bytes, size));
      return;
    default: {
      std::uint64_t offset = 0;
      std::memcpy(&offset, bytes, std::min(size, sizeof offset));
      static_cast<void>(session.file().before_mmap(kPage, PROT_WRITE, MAP_SHARED,
                                                   static_cast<off_t>((offset & 0xffffff) * kPage)));
      return;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  setenv("QPAIR_NIC_QUIET", "1", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Arena arena;
  if (size == 0) return 0;
  Session session;
  if ((data[0] & 1) != 0) session.get_context((data[0] & 2) != 0, (data[0] & 4) != 0);
  for (std::size_t at = 1; at + 3 <= size;) {
    const unsigned what = data[at];
    const std::size_t length =
        std::min({std::size_t{data[at + 1]} | std::size_t{data[at + 2]} << 8, size - at - 3, 2 * kPage});
    std::uint8_t* const bytes = arena.end(0) - length;
    std::memcpy(bytes, data + at + 3, length);
    patch_addresses(bytes, length, arena);
    act(session, what, bytes, length);
    at += 3 + length;
  }
  return 0;
}
