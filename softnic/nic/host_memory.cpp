#include "softnic/nic/host_memory.hpp"

#include "softnic/nic/memory_key_text.hpp"

namespace qpair::softnic::nic {

HostMemory::HostMemory(wire::SharedMemoryLink& link) : link_(link) {
  link_.set_owner(this);
}

HostMemory::~HostMemory() {
  link_.set_owner(nullptr);
}

// ---- What this NIC shows ------------------------------------------------------------------------

void HostMemory::show(std::uint32_t key, const MrParameters& region) {
  ShownKey& place = key_at(key);
  if (place.number.load(std::memory_order_relaxed) != 0) return;
  place.pd = static_cast<std::uint32_t>(region.pd);
  place.access = static_cast<std::uint32_t>(region.access);
  place.iova = region.iova;
  place.length = region.length;
  place.address = region.address;
  place.file.store(ShownKey::kNotAsked, std::memory_order_relaxed);
  place.number.store(key, std::memory_order_release);
}

void HostMemory::hide_key(std::uint32_t key) {
  ShownKey& place = key_at(key);
  if (place.number.load(std::memory_order_relaxed) != key) return;
  place.number.store(0, std::memory_order_seq_cst);
  link_.wait_for_copies();
  const std::uint64_t file = place.file.load(std::memory_order_relaxed);
  if (file == ShownKey::kNotAsked || file == ShownKey::kNoFile) return;
  if (files_.release(file)) link_.file_gone(file);
}

void HostMemory::show(Qpn qpn, Pdn pd, const ibv_qp_attr& attributes, const wire::Endpoint& peer) {
  const auto number = static_cast<std::uint32_t>(qpn);
  hide_queue_pair(qpn);
  ShownQueuePair& place = queue_pair_at(number);
  if (place.number.load(std::memory_order_relaxed) != 0) return;
  place.pd = static_cast<std::uint32_t>(pd);
  place.access = attributes.qp_access_flags;
  place.peer = attributes.dest_qp_num;
  place.path_mtu = attributes.path_mtu;
  place.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  place.peer_address = peer.address;
  place.number.store(number, std::memory_order_release);
}

void HostMemory::hide_queue_pair(Qpn qpn) {
  const auto number = static_cast<std::uint32_t>(qpn);
  ShownQueuePair& place = queue_pair_at(number);
  if (place.number.load(std::memory_order_relaxed) != number) return;
  place.number.store(0, std::memory_order_seq_cst);
  link_.wait_for_copies();
}

std::optional<wire::SharedFile> HostMemory::file_of(std::uint32_t key) {
  ShownKey& place = key_at(key);
  if (key == 0 || place.number.load(std::memory_order_relaxed) != key) return std::nullopt;
  std::uint64_t file = place.file.load(std::memory_order_relaxed);
  if (file == ShownKey::kNotAsked) {
    const auto found = files_.find(place.address, place.length);
    file = found ? found->file : ShownKey::kNoFile;
    if (found) place.file_offset.store(found->offset, std::memory_order_relaxed);
    place.file.store(file, std::memory_order_release);
  }
  if (file == ShownKey::kNoFile) return std::nullopt;
  return wire::SharedFile{file, files_.descriptor(file), files_.size(file)};
}

// ---- What another one shows ---------------------------------------------------------------------

// Two sides that were connected with different numbers work for some requests and fail for others: the
// packets show for which.
bool HostMemory::agree(const ibv_qp_attr& ours, std::uint32_t path_mtu, std::uint32_t max_dest_rd_atomic) {
  return path_mtu == static_cast<std::uint32_t>(ours.path_mtu) && ours.max_rd_atomic <= max_dest_rd_atomic;
}

std::optional<HostMemory::Access> HostMemory::access(const Request& request) {
  wire::Neighbour* const neighbour = link_.find(request.to);
  if (neighbour == nullptr) return std::nullopt;
  const std::span<const std::byte> shown = neighbour->shown();
  if (shown.size() != kShownBytes) return std::nullopt;
  neighbour->begin();
  Access access(neighbour);

  const auto right = static_cast<std::uint32_t>(right_of(request.access));
  const std::uint32_t to = request.connection.dest_qp_num;
  const ShownQueuePair& qp = shown_queue_pair(shown, to);
  if (qp.number.load(std::memory_order_seq_cst) != to || qp.peer != request.from_qpn ||
      qp.peer_address != link_.local().address || (qp.access & right) == 0 ||
      !agree(request.connection, qp.path_mtu, qp.max_dest_rd_atomic)) {
    return std::nullopt;
  }
  const ShownKey& key = shown_key(shown, request.rkey);
  if (key.number.load(std::memory_order_seq_cst) != request.rkey || request.rkey == 0 || key.pd != qp.pd ||
      (key.access & right) == 0 || request.address < key.iova || request.length > key.length ||
      request.address - key.iova > key.length - request.length) {
    return std::nullopt;
  }
  const std::uint64_t offset = request.address - key.iova;
  const std::uint64_t file = key.file.load(std::memory_order_acquire);
  if (file != ShownKey::kNoFile) {
    const auto mapped = neighbour->file(file);
    if (!mapped) {
      neighbour->want(request.rkey, link_.now());
    } else if (const std::uint64_t at = key.file_offset.load(std::memory_order_relaxed) + offset;
               at <= mapped->size() && request.length <= mapped->size() - at) {
      access.memory = mapped->subspan(at, request.length);
      return access;
    }
  }
  if (request.length < request.smallest_kernel_copy || !neighbour->reachable_by_kernel ||
      neighbour->process() <= 0) {
    return std::nullopt;
  }
  access.process = neighbour->process();
  access.address = key.address + offset;
  return access;
}

}  // namespace qpair::softnic::nic
