#pragma once
// The doorbell (UAR) pages: where programs store to tell the NIC about work. Engine lock held.
//
// A page has a CQ doorbell at 0x20 and blue flame registers from 0x800 on, each of two halves that programs
// use in turn (rdma-core providers/mlx5/mlx5.c, bfs[].offset). The NIC takes a register's value by exchanging
// it with 0. Two stores between two scans leave only the second: so a doorbell is a hint that its page was
// used, and doorbell records are what counts (`touched`).
//
// To sleep without missing a doorbell, the program's mapping of every page is write-protected through
// userfaultfd: the next store blocks its thread until the engine has woken up and lifted the protection. A
// page stays protected until it is stored to, so pages that are not used cost nothing.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "softnic/nic/nic.hpp"
#include "softnic/nic/user_faults.hpp"
#include "softnic/wire/link.hpp"

namespace qpair::softnic::nic {

struct SendDoorbell {
  std::uint32_t qpn;
  std::uint32_t opmod_idx_opcode;  // the first word of the last WQE
};

class DoorbellPages {
 public:
  UarId add(std::byte* page);
  void mapped(UarId uar, void* address);
  bool remove(UarId uar);
  bool empty() const { return pages_.empty(); }
  // One of them lies in these bytes of the program. The NIC must not store there: it is who opens closed
  // pages.
  bool lie_in(std::uint64_t address, std::uint64_t length);

  // Takes every doorbell that was rung since the last scan. True: there was one.
  template <typename OnSend, typename OnArm>
  bool scan(OnSend&& on_send, OnArm&& on_arm) {
    bool any = false;
    for (Page& page : pages_) {
      bool rung = false;
      for (const std::size_t offset : kRegisters) {
        const std::uint64_t value = take(page, offset);
        if (value == 0) continue;
        rung = true;
        on_send(decode(value));
      }
      if (take(page, kArmRegister) != 0) {
        rung = true;
        on_arm();
      }
      if (!rung) continue;
      any = true;
      page.open_until = wire::TimePoint::min();
    }
    return any;
  }

  // scan() would find one.
  bool is_rung() const {
    for (const Page& page : pages_) {
      for (const std::size_t offset : kRegisters) {
        if (is_rung(page, offset)) return true;
      }
      if (is_rung(page, kArmRegister)) return true;
    }
    return false;
  }

  // Protects every page that is not protected yet. False: some page is open still, so a store to it will not
  // wake anybody.
  bool protect(wire::TimePoint now);
  // Lifts the protection of every page: no store waits for the NIC until the next protect().
  void open_all();
  // What poll() may wait on; -1 when there is none.
  int descriptor() const { return faults_.descriptor(); }
  // After fork(), in the child.
  void abandon() { faults_.abandon(); }
  // How many mappings are open: each that is closed has to be opened again by a fault of its own.
  std::size_t open() const;
  // No page is open: nothing has to be done to be woken by a doorbell.
  bool are_closed() const;
  // Lets stores go on that are blocked at a closed page, and calls on_store(uar) for each page: its doorbell
  // records have been stored already, the doorbell itself comes when its thread runs again. True: there was
  // one.
  template <typename OnStore>
  bool admit(wire::TimePoint now, OnStore&& on_store) {
    if (closed_ == 0 || now < asked_ + kAskAgain) return false;
    asked_ = now;
    bool any = false;
    while (const auto address = faults_.next()) {
      any = true;
      if (const auto uar = faulted(*address, now)) on_store(*uar);
    }
    return any;
  }

 private:
  // Looks for mappings of pages that nobody told, which were made behind the hooks' back.
  void search(wire::TimePoint now);
  // Lifts the protection of the page that was stored to, and leaves it open until the store is seen, at most
  // for a moment.
  std::optional<UarId> faulted(std::uint64_t address, wire::TimePoint now);

  // Whether the page is mapped there still, and the program has not put something else in its place.
  bool is_there(std::uint64_t address) const;
  void forget(std::uint64_t address);

  struct Mapping {
    std::uint64_t address;
    bool protectable;
    bool is_protected;
  };
  struct Page {
    UarId id;
    std::byte* registers;
    std::vector<Mapping> mappings;
    wire::TimePoint open_until = wire::TimePoint::min();  // not to be protected before
  };

  // Asking is a system call. Whoever waits has lost more than that already.
  static constexpr std::chrono::microseconds kAskAgain{5};
  static constexpr std::size_t kArmRegister = 0x20;
  static constexpr std::size_t kRegisters[] = {0x800, 0x900, 0xa00, 0xb00};

  static bool is_rung(const Page& page, std::size_t offset) {
    return __atomic_load_n(reinterpret_cast<std::uint64_t*>(page.registers + offset), __ATOMIC_ACQUIRE) != 0;
  }
  static std::uint64_t take(Page& page, std::size_t offset) {
    auto* const at = reinterpret_cast<std::uint64_t*>(page.registers + offset);
    if (!is_rung(page, offset)) return 0;
    return __atomic_exchange_n(at, std::uint64_t{0}, __ATOMIC_ACQ_REL);
  }
  static SendDoorbell decode(std::uint64_t value);

  std::vector<Page> pages_;
  std::set<std::uint64_t> addresses_;                     // of all mappings
  wire::TimePoint search_from_ = wire::TimePoint::min();  // when to search next
  wire::TimePoint::duration search_pause_{};
  unsigned closed_ = 0;      // mappings that are protected
  wire::TimePoint asked_{};  // when it was last looked whether somebody waits at a closed page
  std::uint32_t next_id_ = 1;
  UserFaults faults_;
};

}  // namespace qpair::softnic::nic
