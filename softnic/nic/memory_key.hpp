#pragma once
// What one memory key stands for, and the changes that work requests make to it.
//
//   region     bytes of the program (ibv_reg_mr, a dma-buf, device memory)
//   window     a part of one region, with rights of its own, bound and unbound on a send queue
//   indirect   pieces of other keys in a row, laid out on a send queue (mlx5dv_create_mkey)
//   null       nothing: reads give zeros, what is written is dropped (ibv_alloc_null_mr)

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "softnic/nic/nic.hpp"

namespace qpair::softnic::nic {

enum class KeyKind : std::uint8_t { Region, Window1, Window2, Indirect, Null };

inline constexpr std::uint32_t kAnyQp = 0xff'ffff;  // a key that is not tied to one queue pair

// A piece of another key's memory.
struct KeyPart {
  std::uint32_t key = 0;
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint64_t stride = 0;  // interleaved: from one repetition to the next
  std::uint64_t start = 0;   // of this piece within the key, or within one repetition
};

// The parts one after the other, once or `repetitions` times.
struct KeyLayout {
  std::vector<KeyPart> parts;
  std::uint64_t round = 0;  // bytes of all parts
  std::uint32_t repetitions = 1;

  void add(KeyPart part) {
    part.start = round;
    round += part.length;
    parts.push_back(part);
  }
  std::uint64_t size() const { return round * repetitions; }
};

// What only keys that a send queue changes have.
struct ChangeableKey {
  bool free = true;            // not bound: nothing may be reached through it
  std::uint32_t qpn = kAnyQp;  // of a type 2 window that is bound
  bool peer_may_free = false;  // SEND with invalidate
  std::uint32_t capacity = 1;  // parts that a layout may have
  std::uint32_t region = 0;    // that the window is bound to; 0 is no key
  KeyLayout layout;
};

struct MemoryKey {
  std::uint32_t key = 0;
  KeyKind kind = KeyKind::Region;
  MrParameters parameters{};
  std::unique_ptr<ChangeableKey> changeable;
  unsigned windows = 0;  // that are bound to the region

  bool is_window() const { return kind == KeyKind::Window1 || kind == KeyKind::Window2; }
  bool free() const { return changeable && changeable->free; }
};

// One user mode memory registration (UMR), decoded: which fields of the key change, and what they become.
struct KeyUpdate {
  std::uint32_t key = 0;    // its low 8 bits may be any, except where it is to be freed
  bool check_free = false;  // refuse unless the key is free
  bool check_qpn = false;   // refuse unless the key is tied to this queue pair
  bool sets_free = false, sets_variant = false, sets_qpn = false, sets_start = false, sets_length = false;
  int sets_access = 0;  // enum ibv_access_flags: the rights that change
  bool free = false;
  std::uint8_t variant = 0;
  std::uint32_t qpn = kAnyQp;
  std::uint64_t start = 0;
  std::uint64_t length = 0;
  int access = 0;
  bool sets_layout = false;
  KeyLayout layout;
};

}  // namespace qpair::softnic::nic
