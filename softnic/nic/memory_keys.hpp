#pragma once
// The memory translation and protection table: which bytes of the program a key gives access to, and every
// check before the NIC touches them (IBTA vol. 1 10.6.3). A key is a 24-bit index and an 8-bit variant, as in
// mlx5; it serves as lkey and as rkey.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "softnic/nic/id_table.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/roce/host.hpp"

namespace qpair::softnic::nic {

class MemoryKeys {
 public:
  using Address = tl::expected<std::byte*, roce::Refusal>;
  enum class LocalAccess : std::uint8_t { Read, Write };

  explicit MemoryKeys(std::uint32_t seed);

  Expected<Mkey> create(const MrParameters& parameters);
  Errno change(Mkey key, const MrParameters& parameters, int flags);  // flags: IBV_REREG_MR_CHANGE_*
  // The region that goes; nothing when there is none.
  tl::expected<MrParameters, Errno> destroy(Mkey key);
  const MrParameters* find(Mkey key) const;
  std::size_t size() const { return regions_.size(); }

  // Where the bytes [address, address + length) that a local segment names lie in the program.
  Address local(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
                LocalAccess access) const;
  // The same for the peer's request, which also needs the queue pair's consent (`qp_access`:
  // ibv_access_flags).
  Address remote(Pdn pd, int qp_access, roce::RemoteAccess access, std::uint32_t rkey, std::uint64_t address,
                 std::uint64_t length) const;

 private:
  struct Region {
    std::uint32_t key;
    MrParameters parameters;
  };
  struct Gone {
    std::uint32_t key = 0;
    std::uint64_t iova = 0;
    std::uint64_t length = 0;
  };

  const Region* lookup(std::uint32_t key) const;
  std::string unknown_key(std::uint32_t key) const;
  roce::Refusal refuse_local(Pdn pd, std::uint32_t lkey, std::uint64_t address, std::uint64_t length,
                             LocalAccess access) const;
  roce::Refusal refuse_remote(Pdn pd, int qp_access, roce::RemoteAccess access, std::uint32_t rkey,
                              std::uint64_t address, std::uint64_t length) const;

  IdTable<Region> regions_;
  std::uint32_t variant_;
  std::array<Gone, 64> gone_{};  // the latest destroyed, for the sentence "was deregistered"
  std::size_t gone_next_ = 0;
};

}  // namespace qpair::softnic::nic
