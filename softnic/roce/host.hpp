#pragma once
// What the transport asks of the NIC that it runs in. The NIC implements Host for each queue pair; tests
// implement it with a few arrays. Called on the engine thread only. Nothing throws.

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>

#include "qpair/mlx5/cqe.hpp"
#include "softnic/roce/address_vector.hpp"

namespace qpair::softnic::roce {

inline constexpr std::uint64_t kMaxMessage = 1ULL << 31;  // IBTA vol. 1 9.4.1

enum class Operation : std::uint8_t {
  Send,
  SendImm,
  SendInvalidate,
  Write,
  WriteImm,
  Read,
  CompareSwap,
  FetchAdd,
};

// One send work request, decoded from its WQE.
struct SendRequest {
  Operation operation{};
  bool fence : 1 = false;  // start only when earlier reads and atomics are complete
  bool solicited : 1 = false;
  std::uint16_t wqe_index = 0;  // index of its first basic block, as the program counts (16 bits)
  std::uint32_t xrc_srqn = 0;   // XRC: the shared receive queue at the target
  std::uint32_t immediate =
      0;  // as 4 network-order bytes read natively, or the rkey to invalidate (host order)
  std::uint32_t rkey = 0;
  std::uint64_t remote_address = 0;
  std::uint64_t length = 0;    // bytes of the scatter/gather list or inline data; 8 for atomics
  std::uint64_t compare = 0;   // CompareSwap
  std::uint64_t swap_add = 0;  // CompareSwap: value to store; FetchAdd: value to add
};

// One receive work request, taken from a receive queue (or, later, a shared one).
struct ReceiveRequest {
  std::uint16_t wqe_index = 0;
  std::uint64_t length = 0;  // capacity of its scatter list
};

// Why something was refused: what the error CQE says, and the sentence for people.
struct Refusal {
  mlx5::Syndrome syndrome{};
  std::uint8_t vendor_err = 0;
  std::string reason;
};
using Check = tl::expected<void, Refusal>;

// What arrived with a receive completion.
struct Received {
  mlx5::CqeOpcode opcode{};  // ResponderWriteImm, ResponderSend, ResponderSendImm, ResponderSendInvalidate
  std::uint64_t byte_count = 0;  // message length, for datagrams that of the GRH in front of it included
  std::uint32_t immediate = 0;   // as in SendRequest
  std::uint32_t source_qpn = 0;
  bool solicited = false;
  wire::Endpoint source{};                                             // of a datagram
  enum class Grh : std::uint8_t { None, Ipv6, Ipv4 } grh = Grh::None;  // what lies in front of the message
};

enum class RemoteAccess : std::uint8_t { Write, Read, Atomic };

class Host {
 public:
  virtual ~Host() = default;

  // ---- Requester --------------------------------------------------------------------------------
  // Takes the next WQE between the consumer and the doorbell record. False: none. A WQE that is malformed or
  // breaks a limit is completed in error by the host itself (it then calls the transport's set_state(ERR))
  // and false is returned.
  virtual bool next_send(SendRequest& out) = 0;
  // Where a request of a datagram service goes. It may be asked for again as long as the request is not
  // complete.
  virtual tl::expected<AddressVector, Refusal> address(const SendRequest& request);
  // The request packets that leave from now on are of this one. For those who watch.
  virtual void transmitting(const SendRequest& /*request*/) {}
  // Whether copy() of the first `limit` bytes of a WRITE or READ would succeed now.
  virtual bool can_copy(const SendRequest& request, std::uint64_t limit) {
    static_cast<void>(request), static_cast<void>(limit);
    return false;
  }
  // Carries out a WRITE or READ without packets, where the host can: bytes from `offset` on, `limit` at most;
  // how many. Nothing: it has to go by packets. Asked only when no earlier request is outstanding.
  virtual std::optional<std::uint64_t> copy(const SendRequest& request, std::uint64_t offset,
                                            std::uint64_t limit) {
    static_cast<void>(request), static_cast<void>(offset), static_cast<void>(limit);
    return std::nullopt;
  }
  // Copies bytes [offset, offset + to.size()) of the request's local data. Also used for retransmission.
  virtual Check gather(const SendRequest& request, std::uint64_t offset, std::span<std::byte> to) = 0;
  // Stores bytes of a read response, or an atomic's original value (8 bytes, host order of the program).
  virtual Check scatter(const SendRequest& request, std::uint64_t offset,
                        std::span<const std::byte> from) = 0;
  // The request is complete, in order; the host writes a CQE if it is signaled, and retires the WQE.
  virtual void send_done(const SendRequest& request) = 0;
  // The request failed: the host writes the error CQE, moves the queue pair to ERR and flushes both queues.
  // It may call back the transport's set_state(IBV_QPS_ERR) before returning.
  virtual void send_failed(const SendRequest& request, const Refusal& why) = 0;

  // ---- Responder --------------------------------------------------------------------------------
  // XRC: the request that is carried out next names this shared receive queue: receives and the keys of
  // remote memory are its, until another is selected. Refused when there is none in this queue pair's domain.
  virtual Check select_srq(std::uint32_t srqn);
  // Takes the next posted receive. False: none, the transport answers RNR. One that was taken and neither
  // done nor failed when the queue pair goes to ERR is flushed by the host like those that were not taken.
  virtual bool next_receive(ReceiveRequest& out) = 0;
  virtual Check scatter_receive(const ReceiveRequest& request, std::uint64_t offset,
                                std::span<const std::byte> from) = 0;
  virtual void receive_done(const ReceiveRequest& request, const Received& what) = 0;
  // The receive in progress failed (length, protection): error CQE, queue pair to ERR, both queues flushed.
  virtual void receive_failed(const ReceiveRequest& request, const Refusal& why) = 0;

  // The same for a DC target, which goes on: only the receive is over.
  virtual void receive_lost(const ReceiveRequest& request, const Refusal& why) {
    receive_failed(request, why);
  }

  // Checks key, protection domain, rights of the key and of the queue pair, and bounds of a whole remote
  // access. A zero-length access checks nothing (IBTA vol. 1 9.4.3, C9-8).
  virtual Check check_remote(RemoteAccess access, std::uint32_t rkey, std::uint64_t address,
                             std::uint64_t length) = 0;
  virtual Check write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> from) = 0;
  virtual Check read(std::uint32_t rkey, std::uint64_t address, std::span<std::byte> to) = 0;
  // Atomic on 8 bytes; `original` is what was there.
  virtual Check compare_swap(std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                             std::uint64_t swap, std::uint64_t& original) = 0;
  virtual Check fetch_add(std::uint32_t rkey, std::uint64_t address, std::uint64_t add,
                          std::uint64_t& original) = 0;
  virtual Check invalidate(std::uint32_t rkey) = 0;
  // The responder refused the peer's request for good (a NAK other than sequence or RNR went out):
  // asynchronous event (IBV_EVENT_QP_REQ_ERR or IBV_EVENT_QP_ACCESS_ERR), queue pair to ERR, both queues
  // flushed.
  virtual void responder_failed(ibv_event_type event, const Refusal& why) = 0;

  // ---- Both -------------------------------------------------------------------------------------
  virtual void raise(ibv_event_type event) = 0;  // IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED
  // A message of an unreliable service was lost, and why: a sentence for people. Nothing completes.
  virtual void dropped(const std::string& sentence) { static_cast<void>(sentence); }
};

inline tl::expected<AddressVector, Refusal> Host::address(const SendRequest&) {
  return tl::unexpected(
      Refusal{mlx5::Syndrome::LocalQpOperation, 0, "its work request has no address vector"});
}

inline Check Host::select_srq(std::uint32_t) {
  return tl::unexpected(Refusal{mlx5::Syndrome::RemoteInvalidRequest, 0, "this queue pair is no XRC target"});
}

}  // namespace qpair::softnic::roce
