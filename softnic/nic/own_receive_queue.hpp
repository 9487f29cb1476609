#pragma once
// The receive ring of one queue pair: WQEs in the order of their indices, of which 16 bits are visible.
//   retired_ ≤ taken_ ≤ doorbell record; at most one is taken and not retired.

#include "softnic/nic/decode_cache.hpp"
#include "softnic/nic/receive_queue.hpp"

namespace qpair::softnic::nic {

class OwnReceiveQueue final : public ReceiveQueue {
 public:
  // `parameters` and `decoded` outlive it.
  OwnReceiveQueue(Qpn owner, const QpParameters& parameters, DecodeCache& decoded)
      : qpn_(static_cast<std::uint32_t>(owner)), parameters_(parameters), decoded_(decoded) {}

  Taken take(roce::ReceiveRequest& out, std::string& why) override;
  const ScatterList* list(std::uint16_t index, std::string& why) override;
  void retire(std::uint16_t index) override { retired_ = static_cast<std::uint16_t>(index + 1); }
  void flush(const std::function<void(std::uint16_t)>& each) override;
  void reset() override { taken_ = retired_ = 0; }
  Pdn pd() const override { return parameters_.pd; }

 private:
  ReceiveRing ring() const {
    return {parameters_.buffer, parameters_.rq_wqe_count, parameters_.rq_wqe_shift, parameters_.wq_signature};
  }
  bool read_record(std::uint16_t& value) const;

  std::uint32_t qpn_;
  const QpParameters& parameters_;
  DecodeCache& decoded_;
  std::uint16_t taken_ = 0;
  std::uint16_t retired_ = 0;
};

}  // namespace qpair::softnic::nic
