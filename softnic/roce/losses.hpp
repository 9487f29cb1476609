#pragma once
// What an unreliable service loses on purpose. Nobody is told by the protocol, so a person is, but only the
// first time of each kind: a program may well live with it.

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "softnic/roce/host.hpp"

namespace qpair::softnic::roce {

enum class Loss : std::uint8_t { NoReceive, ReceiveTooShort, WrongQkey, NoAccess, BadLength, Count };

class Losses {
 public:
  explicit Losses(Host& host) : host_(host) {}

  // `sentence` is called for the first one.
  template <typename Sentence>
  void note(Loss loss, Sentence&& sentence) {
    const auto bit = static_cast<std::size_t>(loss);
    if (said_[bit]) return;
    said_[bit] = true;
    host_.dropped(sentence());
  }
  void reset() { said_.reset(); }

 private:
  Host& host_;
  std::bitset<static_cast<std::size_t>(Loss::Count)> said_;
};

}  // namespace qpair::softnic::roce
