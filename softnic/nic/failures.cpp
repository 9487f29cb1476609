#include "softnic/nic/failures.hpp"

#include <fmt/format.h>

#include <utility>

#include "qpair/mlx5/status.hpp"

namespace qpair::softnic::nic {

void Failures::add(Qpn qp, Side side, mlx5::Syndrome syndrome, std::uint8_t vendor_err, std::string sentence,
                   explain::Kind kind) {
  keep({.qpn = static_cast<std::uint32_t>(qp),
        .side = side == Side::Send ? "send" : "receive",
        .status = status_of(syndrome),
        .vendor_err = vendor_err,
        .over = false,
        .sentence = std::move(sentence)},
       kind);
}

void Failures::add(Qpn qp, std::string sentence) {
  keep({.qpn = static_cast<std::uint32_t>(qp),
        .side = "queue-pair",
        .status = IBV_WC_FATAL_ERR,
        .vendor_err = 0,
        .over = false,
        .sentence = std::move(sentence)},
       explain::Kind::Failure);
}

void Failures::keep(Entry entry, explain::Kind kind) {
  explain::say(kind, entry.sentence);
  entries_.at(next_) = std::move(entry);
  next_ = (next_ + 1) % entries_.size();
}

void Failures::over(Qpn qp) {
  for (Entry& entry : entries_) {
    if (entry.qpn == static_cast<std::uint32_t>(qp)) entry.over = true;
  }
}

std::string Failures::text() const {
  std::string text;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_.at((next_ + entries_.size() - 1 - i) % entries_.size());
    if (entry.side == nullptr) break;
    text +=
        fmt::format("{:#x} {} {} {:#x} {} {}\n", entry.qpn, entry.side, static_cast<unsigned>(entry.status),
                    entry.vendor_err, entry.over ? "over" : "now", entry.sentence);
  }
  return text;
}

}  // namespace qpair::softnic::nic
