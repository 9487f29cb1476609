#pragma once
// The memory translation and protection table: which bytes of the program a key gives access to, and every
// check before the NIC touches them (IBTA vol. 1 10.6.3). A key is a 24-bit index and an 8-bit variant, as in
// mlx5; it serves as lkey and as rkey.
//
// A key may be made of pieces, so what an access gets is one run of bytes that lie together, and it asks
// again for the rest.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "softnic/nic/id_table.hpp"
#include "softnic/nic/memory_key.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/roce/host.hpp"

namespace qpair::softnic::nic {

class DoorbellPages;
class HostMemory;

// Bytes of the program that lie together. Without an address there is no memory behind them.
struct MemoryRun {
  std::byte* at = nullptr;
  std::uint64_t size = 0;
};

class MemoryKeys {
 public:
  using Run = tl::expected<MemoryRun, roce::Refusal>;
  enum class LocalAccess : std::uint8_t { Read, Write };

  // On whose behalf a key is used.
  struct User {
    Pdn pd{};
    Qpn qp{};
    int access = 0;  // what the queue pair allows its peer: ibv_access_flags
  };

  // On `pages` this NIC stores nothing, whatever the keys allow: regions that are on demand, or older than
  // the page, may have one in them.
  MemoryKeys(std::uint32_t seed, DoorbellPages& pages);
  // Other NICs of this host, from the next key on.
  void show_to(HostMemory* host) { host_ = host; }

  Expected<Mkey> create(const MrParameters& parameters);
  Expected<Mkey> create_window(const MwParameters& parameters);
  Expected<Mkey> create_indirect(const MkeyParameters& parameters);
  Errno change(Mkey key, const MrParameters& parameters, int flags);  // flags: IBV_REREG_MR_CHANGE_*
  // The protection domain that it was in. EBUSY: windows are bound to it.
  tl::expected<Pdn, Errno> destroy(Mkey key);
  const MrParameters* find(Mkey key) const;
  std::size_t size() const { return keys_.size(); }

  // Where the first of the bytes [address, address + length) that a local segment names lie in the program.
  // All of them are within the key.
  Run local(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
            LocalAccess access) const;
  // The same for the peer's request, which also needs the queue pair's consent.
  Run remote(const User& user, roce::RemoteAccess access, std::uint32_t rkey, std::uint64_t address,
             std::uint64_t length) const;

  // ---- On a send queue (memory_keys_update.cpp)
  // Bind, local invalidate, or a new layout.
  roce::Check update(const User& user, const KeyUpdate& update);
  // SEND with invalidate arrived.
  roce::Check invalidate(const User& user, std::uint32_t rkey);

 private:
  enum class End : std::uint8_t { Deregistered, Invalidated, Rebound };
  struct Gone {
    std::uint32_t key = 0;
    End end{};
    MrParameters region{};
  };
  // A run, or a sentence about the piece that could not be reached.
  using Piece = tl::expected<MemoryRun, std::string>;

  Expected<Mkey> add(KeyKind kind, const MrParameters& parameters, std::unique_ptr<ChangeableKey> changeable);
  const MemoryKey* lookup(std::uint32_t key) const;
  MemoryKey* at_index(std::uint32_t key) const { return keys_.find(key >> 8); }
  Piece run(const MemoryKey& key, std::uint64_t address, std::uint64_t length, LocalAccess access,
            unsigned depth) const;
  Piece piece(const MemoryKey& outer, const KeyPart& part, std::uint64_t repetition, std::uint64_t offset,
              std::uint64_t length, LocalAccess access, unsigned depth) const;
  void remember(const MemoryKey& key, End end);
  std::string unknown_key(std::uint32_t key) const;
  roce::Refusal refuse_local(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
                             LocalAccess access) const;
  roce::Refusal refuse_remote(const User& user, roce::RemoteAccess access, std::uint32_t rkey,
                              std::uint64_t address, std::uint64_t length) const;

  std::string check_bind(const User& user, const MemoryKey& window, const KeyUpdate& update) const;
  std::string check_layout(const MemoryKey& key, const KeyUpdate& update) const;
  std::string check_unbind(const User& user, const MemoryKey& key, const KeyUpdate& update) const;
  void bind(MemoryKey& window, const KeyUpdate& update);
  void lay_out(MemoryKey& key, const KeyUpdate& update);
  void unbind(MemoryKey& key);
  static void assign(MemoryKey& key, const KeyUpdate& update);

  IdTable<MemoryKey> keys_;
  DoorbellPages& pages_;
  HostMemory* host_ = nullptr;
  std::uint32_t variant_;
  std::array<Gone, 64> gone_{};  // the latest that ended, for the sentence "was deregistered"
  std::size_t gone_next_ = 0;
};

}  // namespace qpair::softnic::nic
