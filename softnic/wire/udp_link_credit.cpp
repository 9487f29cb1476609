// Flow control of a UdpLink: has_room(), and the packets of credit.hpp that it takes.

#include "softnic/wire/credit.hpp"
#include "softnic/wire/udp_link.hpp"

namespace qpair::softnic::wire {

bool UdpLink::has_room(const Endpoint& destination, std::size_t size) {
  if (!fd_) return true;
  if (retry_at_ && arena_used_ + kRunAlignment + size > kSendArena) return false;
  const std::uint16_t index = destination_index(destination);
  if (!destinations_[index].on_this_host) return true;
  if (runs_.empty()) now_ = std::chrono::steady_clock::now();
  SendCredit& credit = destinations_[index].credit;
  const std::int64_t charge = charge_alone(size);
  const bool covered = credit.covers(charge, now_);
  if (covered && (credit.is_asking() || !credit.is_low())) return true;
  now_ = std::chrono::steady_clock::now();
  if (!credit.is_asking()) request_credit(index, now_);
  if (covered) return true;
  if (!credit.is_starved()) {
    credit.starve(now_);
    watch_credits();
  }
  return false;
}

void UdpLink::send_credit(std::uint16_t index, const CreditPacket& packet) {
  const Endpoint to = destinations_[index].endpoint;
  const std::span<std::byte> room = reserve(to, packet.size());
  packet.write(room);
  set_icrc({local_, to, room});
  commit();
}

void UdpLink::request_credit(std::uint16_t index, TimePoint now) {
  send_credit(index, {kCreditRequestOpcode, ++credit_requests_, 0});
  destinations_[index].credit.request(credit_requests_, now);
}

bool UdpLink::take_credit(const Frame& frame, TimePoint now) {
  const auto packet = CreditPacket::parse(frame.bytes);
  if (!packet || receive_.numbered || !check_icrc(frame)) return false;
  if (packet->opcode == kCreditRequestOpcode) {
    send_credit(destination_index(frame.source),
                {kCreditGrantOpcode, packet->number, credit_pool_.grant(frame.source, now)});
    credit_answered_ = true;
    return true;
  }
  for (std::size_t i = 0; i < destination_count_; ++i) {
    if (destinations_[i].endpoint == frame.source) {
      destinations_[i].credit.grant(packet->number, packet->bytes, now);
    }
  }
  watch_credits();
  return true;
}

void UdpLink::watch_credits() {
  credit_deadline_.reset();
  for (std::size_t i = 0; i < destination_count_; ++i) {
    const SendCredit& credit = destinations_[i].credit;
    if (!credit.is_starved()) continue;
    credit_deadline_ = std::min(credit_deadline_.value_or(TimePoint::max()), credit.deadline());
  }
}

void UdpLink::look_at_credits(TimePoint now) {
  for (std::size_t i = 0; i < destination_count_; ++i) {
    if (destinations_[i].credit.expire(now)) request_credit(static_cast<std::uint16_t>(i), now);
  }
  watch_credits();
  flush();
}

}  // namespace qpair::softnic::wire
