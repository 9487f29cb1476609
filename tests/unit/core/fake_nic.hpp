#pragma once
// Rings in plain memory, and the part of the NIC played by the test: it reads what was rung, and writes CQEs.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "qpair/mlx5/cqe.hpp"
#include "src/datapath/mlx5.hpp"
#include "src/datapath/mlx5_many.hpp"

namespace qpair::test {

inline constexpr std::uint32_t kQpn = 0xabcdef;

struct FakeOptions {
  std::uint32_t blocks = 8;
  std::uint32_t receives = 4;
  std::uint32_t receive_stride = 32;
  std::uint32_t cq_entries = 8;
  std::uint32_t cqe_size = 64;
  std::uint32_t blue_flame = 0;
  std::uint32_t max_message = 1U << 30;
  std::uint32_t max_send_sge = 30;
  std::uint32_t max_recv_sge = 2;
  std::uint32_t max_inline = 256;
  detail::StartIndices start{};
  // The send queue's doorbell record lies in the first WQE: ringing destroys it, as somebody does who fills
  // its place anew as soon as the NIC has run it.
  bool record_in_wqe = false;
};

template <typename Path>
class BasicFakeNic {
 public:
  explicit BasicFakeNic(const FakeOptions& options = {})
      : options_(options),
        send_ring_(std::size_t{options.blocks} * mlx5::kBasicBlockSize, std::byte{0xee}),
        receive_ring_(std::size_t{options.receives} * options.receive_stride, std::byte{0xee}),
        send_cqes_(std::size_t{options.cq_entries} * options.cqe_size),
        receive_cqes_(send_cqes_.size()),
        page_(mlx5::kUarPageSize / sizeof(std::uint64_t)),
        path(rings(), limits(), options.start) {
    path.open_receive();
    path.open_send();
  }

  // --- What the program wrote ---
  std::string send_bytes(std::size_t block, std::size_t count) const {
    return hex(send_ring_, block * 64, count);
  }
  std::string receive_bytes(std::size_t offset, std::size_t count) const {
    return hex(receive_ring_, offset, count);
  }
  std::uint32_t send_record() const { return record_[mlx5::kSendRecord]; }
  std::uint32_t receive_record() const { return record_[mlx5::kReceiveRecord]; }
  std::uint32_t send_consumer_index() const { return send_cq_record_[mlx5::kConsumerIndexRecord]; }
  std::uint32_t receive_consumer_index() const { return receive_cq_record_[mlx5::kConsumerIndexRecord]; }
  std::uint32_t arm_record() const { return send_cq_record_[mlx5::kArmRecord]; }
  std::string register_bytes(std::size_t offset, std::size_t count) const {
    return hex(std::as_bytes(std::span(page_)), offset, count);
  }
  std::span<std::byte> send_ring() { return send_ring_; }

  // Where the NIC may run to, as the NIC reads it.
  std::uint32_t rung() const {
    return mlx5::byte_swap(__atomic_load_n(&record_[mlx5::kSendRecord].raw, __ATOMIC_ACQUIRE));
  }

  // --- What the NIC writes ---
  void complete(std::uint16_t wqe_counter, mlx5::Opcode opcode, std::uint32_t bytes = 0) {
    mlx5::Cqe64 cqe{};
    cqe.sop_drop_qpn = static_cast<std::uint32_t>(opcode) << 24 | kQpn;
    cqe.wqe_counter = wqe_counter;
    cqe.byte_cnt = bytes;
    write(send_cqes_, send_produced_, cqe, mlx5::CqeOpcode::Request);
  }
  void fail(std::uint16_t wqe_counter, mlx5::Opcode opcode, mlx5::Syndrome syndrome,
            std::uint8_t vendor_err) {
    write(send_cqes_, send_produced_, error(wqe_counter, opcode, syndrome, vendor_err),
          mlx5::CqeOpcode::RequestError);
  }
  void complete_odd(mlx5::CqeOpcode opcode) { write(send_cqes_, send_produced_, mlx5::Cqe64{}, opcode); }
  void receive(mlx5::CqeOpcode opcode, std::uint32_t bytes, std::uint32_t imm = 0) {
    mlx5::Cqe64 cqe{};
    cqe.byte_cnt = bytes;
    cqe.imm_inval_pkey = imm;
    cqe.flags_rqpn = 0x1234;
    write(receive_cqes_, receive_produced_, cqe, opcode);
  }
  void fail_receive(mlx5::Syndrome syndrome, std::uint8_t vendor_err) {
    write(receive_cqes_, receive_produced_, error(0, mlx5::Opcode::Nop, syndrome, vendor_err),
          mlx5::CqeOpcode::ResponderError);
  }

 private:
  detail::Mlx5Rings rings() {
    // As libmlx5 leaves a new completion queue: opcode invalid.
    for (auto* cqes : {&send_cqes_, &receive_cqes_}) {
      for (std::size_t i = 0; i != options_.cq_entries; ++i) {
        (*cqes)[i * options_.cqe_size + options_.cqe_size - 1] = std::byte{0xf0};
      }
    }
    detail::Mlx5Rings rings;
    rings.qp_num = kQpn;
    rings.send_ring = send_ring_.data();
    rings.send_blocks = options_.blocks;
    rings.receive_ring = receive_ring_.data();
    rings.receive_count = options_.receives;
    rings.receive_stride = options_.receive_stride;
    rings.record = options_.record_in_wqe ? reinterpret_cast<mlx5::be32*>(send_ring_.data()) : record_;
    rings.reg = reinterpret_cast<std::byte*>(page_.data()) + mlx5::kBlueFlameOffset;
    rings.blue_flame = options_.blue_flame;
    auto* uar = reinterpret_cast<std::byte*>(page_.data());
    rings.send_cq = {send_cqes_.data(), options_.cq_entries, options_.cqe_size, send_cq_record_, uar, 0x51};
    rings.receive_cq = {
        receive_cqes_.data(), options_.cq_entries, options_.cqe_size, receive_cq_record_, uar, 0x52};
    return rings;
  }
  detail::WorkLimits limits() const {
    return {options_.max_message, options_.max_send_sge, options_.max_recv_sge, options_.max_inline};
  }

  static mlx5::Cqe64 error(std::uint16_t wqe_counter, mlx5::Opcode opcode, mlx5::Syndrome syndrome,
                           std::uint8_t vendor_err) {
    mlx5::ErrorCqe cqe{};
    cqe.vendor_err = vendor_err;
    cqe.syndrome = syndrome;
    cqe.wqe_opcode_qpn = static_cast<std::uint32_t>(opcode) << 24 | kQpn;
    cqe.wqe_counter = wqe_counter;
    mlx5::Cqe64 plain{};
    std::memcpy(&plain, &cqe, sizeof plain);
    return plain;
  }

  void write(std::vector<std::byte>& cqes, std::uint64_t& produced, mlx5::Cqe64 cqe, mlx5::CqeOpcode opcode) {
    const bool lap = ((produced / options_.cq_entries) & 1) != 0;
    cqe.op_own = static_cast<std::uint8_t>(static_cast<unsigned>(opcode) << 4 | (lap ? 1U : 0U));
    const std::size_t at =
        produced % options_.cq_entries * options_.cqe_size + options_.cqe_size - sizeof cqe;
    // The last byte last, as the program may be looking.
    std::memcpy(cqes.data() + at, &cqe, sizeof cqe - 1);
    __atomic_store_n(reinterpret_cast<std::uint8_t*>(cqes.data()) + at + sizeof cqe - 1, cqe.op_own,
                     __ATOMIC_RELEASE);
    ++produced;
  }

  static std::string hex(std::span<const std::byte> bytes, std::size_t offset, std::size_t count) {
    std::string text;
    for (std::size_t i = offset; i != offset + count; ++i) {
      if (i != offset && (i - offset) % 4 == 0) text += (i - offset) % 16 == 0 ? '\n' : ' ';
      text += fmt::format("{:02x}", static_cast<unsigned>(bytes[i]));
    }
    return text;
  }

  FakeOptions options_;
  std::vector<std::byte> send_ring_;
  std::vector<std::byte> receive_ring_;
  std::vector<std::byte> send_cqes_;
  std::vector<std::byte> receive_cqes_;
  std::vector<std::uint64_t> page_;
  mlx5::be32 record_[2]{};
  mlx5::be32 send_cq_record_[2]{};
  mlx5::be32 receive_cq_record_[2]{};
  std::uint64_t send_produced_ = 0;
  std::uint64_t receive_produced_ = 0;

 public:
  Path path;
};
using FakeNic = BasicFakeNic<detail::Mlx5DataPath>;
using ManyFakeNic = BasicFakeNic<detail::Mlx5ManyDataPath>;

inline constexpr RdmaBuffer kLocal{1, 0x11223344, 0x55667788, 0x00007f0102030405, 0x1000};
inline constexpr RdmaBuffer kRemote{2, 0x99aabbcc, 0xddeeff00, 0x0000700a0b0c0d0e, 0x100000};

inline detail::Work work_of(mlx5::Opcode opcode, std::span<const RdmaBuffer> local, const RdmaBuffer* remote,
                            Signal signal = Signal::Yes) {
  detail::Work work;
  work.opcode = opcode;
  work.local = local;
  work.remote = remote;
  work.signal = signal;
  return work;
}

}  // namespace qpair::test
