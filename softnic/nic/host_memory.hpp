#pragma once
// This NIC and the others of its host: what it shows them, and what they show it (shown_objects.hpp). Engine
// lock held throughout.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "softnic/nic/nic.hpp"
#include "softnic/nic/shared_files.hpp"
#include "softnic/nic/shown_objects.hpp"
#include "softnic/roce/host.hpp"
#include "softnic/wire/shared_memory_link.hpp"

namespace qpair::softnic::nic {

class HostMemory final : public wire::MemoryOwner {
 public:
  // The link outlives it.
  explicit HostMemory(wire::SharedMemoryLink& link);
  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // ---- What this NIC shows. After hide…() nobody touches what was shown.
  void show(std::uint32_t key, const MrParameters& region);
  void hide_key(std::uint32_t key);
  // `attributes`: of modify_qp.
  void show(Qpn qpn, Pdn pd, const ibv_qp_attr& attributes, const wire::Endpoint& peer);
  void hide_queue_pair(Qpn qpn);

  // ---- What another one shows.
  struct Request {
    wire::Endpoint to;
    std::uint32_t from_qpn = 0;
    const ibv_qp_attr& connection;  // of that queue pair
    roce::RemoteAccess access{};
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;
    std::uint64_t length = 0;  // of the whole request; not zero
    // What is shorter is not copied by the kernel.
    std::uint64_t smallest_kernel_copy = 0;
  };
  // As long as one exists, the memory stays what it is.
  class Access {
   public:
    explicit Access(wire::Neighbour* neighbour) : neighbour_(neighbour) {}
    Access(Access&& other) noexcept
        : memory(other.memory),
          process(other.process),
          address(other.address),
          neighbour_(std::exchange(other.neighbour_, nullptr)) {}
    Access& operator=(Access&&) = delete;
    ~Access() {
      if (neighbour_ != nullptr) neighbour_->end();
    }
    wire::Neighbour& neighbour() const { return *neighbour_; }

    std::span<std::byte> memory;  // all of the request's, mapped; or empty, then
    pid_t process = 0;            // it is at `address` of this process
    std::uint64_t address = 0;

   private:
    wire::Neighbour* neighbour_;
  };
  // Empty: it has to go by packets. Either the other NIC cannot be reached so, or it would refuse the
  // request, which it then says itself.
  std::optional<Access> access(const Request& request);

  wire::Copies copies() const { return link_.copies(); }
  void abandon() { files_.abandon(); }

  // ---- wire::MemoryOwner
  std::optional<wire::SharedFile> file_of(std::uint32_t key) override;

  // Whether a peer that was connected with these is one for a queue pair that was connected with `ours`.
  static bool agree(const ibv_qp_attr& ours, std::uint32_t path_mtu, std::uint32_t max_dest_rd_atomic);

 private:
  ShownKey& key_at(std::uint32_t key) const { return const_cast<ShownKey&>(shown_key(link_.shown(), key)); }
  ShownQueuePair& queue_pair_at(std::uint32_t qpn) const {
    return const_cast<ShownQueuePair&>(shown_queue_pair(link_.shown(), qpn));
  }

  wire::SharedMemoryLink& link_;
  SharedFiles files_;
};

}  // namespace qpair::softnic::nic
