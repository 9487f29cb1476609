#include "softnic/wire/credit.hpp"

#include <algorithm>

#include "softnic/wire/bytes.hpp"

namespace qpair::softnic::wire {
namespace {

constexpr std::byte kMigrated{0x40};  // as in every other packet (IBTA vol. 1 17.2.8)
constexpr std::uint16_t kDefaultPartition = 0xffff;
constexpr std::uint32_t kNumberMask = 0xff'ffff;

}  // namespace

// ---- The packets --------------------------------------------------------------------------------

void CreditPacket::write(std::span<std::byte> room) const {
  std::ranges::fill(room, std::byte{0});  // also the queue pair: it is for none
  room[0] = static_cast<std::byte>(opcode);
  room[1] = kMigrated;
  store_be(&room[2], kDefaultPartition);
  store_be(&room[8], number & kNumberMask);
  if (opcode == kCreditGrantOpcode) store_be(&room[kBthSize], bytes);
}

std::optional<CreditPacket> CreditPacket::parse(std::span<const std::byte> packet) {
  if (packet.size() != kRequestSize && packet.size() != kGrantSize) return std::nullopt;
  CreditPacket found;
  found.opcode = static_cast<std::uint8_t>(packet[0]);
  if (found.opcode != kCreditRequestOpcode && found.opcode != kCreditGrantOpcode) return std::nullopt;
  if (packet.size() != found.size()) return std::nullopt;
  found.number = load_be<std::uint32_t>(&packet[8]) & kNumberMask;
  if (found.opcode == kCreditGrantOpcode) found.bytes = load_be<std::uint32_t>(&packet[kBthSize]);
  return found;
}

// ---- The sender's side --------------------------------------------------------------------------

void SendCredit::request(std::uint32_t number, TimePoint now) {
  number_ = number & kNumberMask;
  awaiting_ = true;
  requested_ = now;
  since_request_ = 0;
}

bool SendCredit::grant(std::uint32_t number, std::uint32_t bytes, TimePoint now) {
  if (!awaiting_ || number != number_) return false;
  awaiting_ = false;
  answers_ = true;
  starved_since_ = now;
  starved_ = starved_ && bytes == 0;
  grant_ = bytes;
  left_ = grant_ - since_request_;
  valid_until_ = requested_ + kValid;
  return true;
}

void SendCredit::starve(TimePoint now) {
  if (starved_) return;
  starved_ = true;
  starved_since_ = now;
}

TimePoint SendCredit::deadline() const {
  return std::min(requested_ + (awaiting_ ? kAskAgain : kRefused),
                  starved_since_ + (answers_ ? kLongSilence : kSilence));
}

bool SendCredit::expire(TimePoint now) {
  if (!starved_ || now < deadline()) return false;
  if (now < starved_since_ + (answers_ ? kLongSilence : kSilence)) return true;
  awaiting_ = starved_ = answers_ = false;
  left_ = grant_ = kAssumed;
  valid_until_ = now + kValid;
  return false;
}

// ---- The receiver's side ------------------------------------------------------------------------

std::uint32_t CreditPool::grant(const Endpoint& sender, TimePoint now) {
  std::int64_t held = 0;  // by others
  Holder* place = nullptr;
  for (Holder& holder : holders_) {
    if (holder.sender == sender) {
      place = &holder;
    } else if (holder.until > now) {
      held += holder.bytes;
    }
  }
  if (place == nullptr) {
    place = std::ranges::min_element(holders_, {}, &Holder::until);
    if (place->until > now) held -= place->bytes;
    *place = {sender, 0, 0, {}};
  }
  if (place->until <= now) place->granted = 0;
  std::int64_t bytes = std::min({kLargest, 2 * place->granted, (capacity_ - held) / 2});
  if (bytes < kSmallest) bytes = held + 2 * kSmallest <= capacity_ || held <= 0 ? kSmallest : 0;
  // Of the grant before, half may have been left when it asked, and be used until this answer comes.
  place->bytes = std::max(bytes, place->granted / 2);
  place->granted = bytes;
  place->until = now + kHeld;
  return static_cast<std::uint32_t>(bytes);
}

}  // namespace qpair::softnic::wire
