#pragma once
// The counters of one emulated NIC in shared memory, for whoever of the same user wants to look: `qpair top`.
//
// The memory is a memfd. It has no name that another user could take, nor one that a killed process could
// leave behind: readers find it among the descriptors of the user's processes in /proc (running_nics.hpp),
// and it is gone with its process. Its size is sealed, so that a reader need not fear that it shrinks under
// it; later mappings are read-only where the kernel can see to that.
//
// The writer is one thread, which stores; a reader may see one counter newer than another, never half of one.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "softnic/observe/counters.hpp"
#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::observe {

inline constexpr const char* kCounterPageName = "qpair-nic-counters";
inline constexpr std::uint64_t kCounterPageMagic =
    0x7061'6972'636e'7401;  // the last byte is the layout's version
// So many queue pairs are shown one by one; what there is beyond them is shown in sum.
inline constexpr std::size_t kListedQueuePairs = 256;

using SharedCounters = std::array<std::atomic<std::uint64_t>, kCounters>;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Who a queue pair is, in one word, so that a reader sees it change at once.
struct QueuePairIdentity {
  std::uint32_t qpn = 0;
  std::uint32_t peer_qpn = 0;
  std::uint8_t type = 0;   // enum ibv_qp_type
  std::uint8_t state = 0;  // enum ibv_qp_state

  std::uint64_t packed() const {
    return (std::uint64_t{qpn & 0xffffffU} << 40U) | (std::uint64_t{peer_qpn & 0xffffffU} << 16U) |
           (std::uint64_t{type} << 8U) | (std::uint64_t{state} << 1U) | 1U;  // so that 0 is nobody
  }
  static QueuePairIdentity unpacked(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 40U), static_cast<std::uint32_t>(word >> 16U) & 0xffffffU,
            static_cast<std::uint8_t>(word >> 8U), static_cast<std::uint8_t>((word >> 1U) & 0x7fU)};
  }
  friend bool operator==(const QueuePairIdentity&, const QueuePairIdentity&) = default;
};

struct alignas(64) CounterPageLayout {
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> identity;  // 0: free
    SharedCounters values;
  };
  std::atomic<std::uint64_t> magic;  // stored last
  std::uint64_t size;                // of all this
  std::uint64_t counters;            // kCounters
  std::int64_t pid;                  // of the NIC's process, as that process sees it
  std::uint64_t started;             // ns since 1970
  std::array<std::uint8_t, 16> address;
  std::atomic<std::uint64_t> queue_pairs;  // that exist
  std::atomic<std::uint64_t> unlisted;     // …without a slot
  SharedCounters totals;                   // since the NIC was made, destroyed queue pairs included
  SharedCounters unlisted_values;          // of all that ever were without a slot
  std::array<Slot, kListedQueuePairs> slots;
};

class CounterPage {
 public:
  static constexpr int kNoSlot = -1;

  // Null when there is no shared memory to be had: the NIC works without.
  static std::unique_ptr<CounterPage> create(const wire::Endpoint& local);
  ~CounterPage();
  CounterPage(const CounterPage&) = delete;
  CounterPage& operator=(const CounterPage&) = delete;

  // A queue pair comes and goes. kNoSlot: all are taken, it is counted in sum.
  int enter(const QueuePairIdentity& who);
  void leave(int slot);
  // What it counted since the last call, and who it is now.
  void publish(int slot, const QueuePairIdentity& who, const CounterValues& before, const CounterValues& now);
  // What no queue pair counted.
  void add(const CounterValues& before, const CounterValues& now);

  // In a child of fork(): the page is the parent's.
  void abandon() { file_.abandon(); }

 private:
  CounterPage(wire::Descriptor file, CounterPageLayout* page);

  wire::Descriptor file_;
  CounterPageLayout* page_;
  std::vector<int> free_;
};

}  // namespace qpair::softnic::observe
