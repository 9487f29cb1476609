#include "tests/simulation/operation.hpp"

#include <algorithm>
#include <cstring>

namespace qpair::simulation {
namespace {

constexpr std::uint32_t kMaxInline = 200;

std::uint64_t load(std::span<std::byte> memory, std::uint32_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, memory.data() + offset, sizeof value);
  return value;
}

void store(std::span<std::byte> memory, std::uint32_t offset, std::uint64_t value) {
  std::memcpy(memory.data() + offset, &value, sizeof value);
}

// Deals out memory from front to back, with gaps that nobody may touch.
class Room {
 public:
  Room(std::uint32_t begin, std::uint32_t size, Random& random)
      : at_(begin), end_(begin + size), random_(random) {}
  std::uint32_t left() const { return end_ - at_; }
  Piece take(std::uint32_t length, std::uint32_t alignment = 1) {
    at_ += random_.between(0U, 40U);
    at_ = (at_ + alignment - 1) / alignment * alignment;
    const Piece piece{at_, length};
    at_ += length;
    return piece;
  }

 private:
  std::uint32_t at_;
  std::uint32_t end_;
  Random& random_;
};

class Planner {
 public:
  Planner(const ConnectionPlan& connection, double mistakes, const Bytes& peer_source, Machine& peer,
          Random& random)
      : connection_(connection),
        mistakes_(mistakes),
        peer_source_(peer_source),
        peer_(peer),
        random_(random),
        counter_(pattern_word()),
        cell_(counter_),
        local_(layout::kLocal, layout::kLocalSize, random),
        slots_(layout::kSlots, layout::kTarget + layout::kTargetSize - layout::kSlots, random),
        receives_(layout::kReceive, layout::kReceiveSize, random) {}

  Plan make() {
    for (unsigned i = 0; i < connection_.operations; ++i) plan_.operations.push_back(next());
    // Nothing after it would say that it is done.
    plan_.operations.back().signaled = true;
    for (Operation& operation : plan_.operations) {
      if (operation.takes_receive()) plan_.receives.push_back(receive_for(operation));
    }
    return std::move(plan_);
  }

 private:
  static std::uint64_t pattern_word() {
    std::uint64_t word = 0;
    std::memset(&word, static_cast<int>(layout::kUntouched), sizeof word);
    return word;
  }

  std::uint32_t some_length(std::uint32_t most) {
    const std::uint32_t mtu = 128U << connection_.mtu;
    std::uint32_t length = 0;
    switch (random_.below(8)) {
      case 0:
        length = 0;
        break;
      case 1:
        length = mtu * random_.between(1U, 4U);
        break;
      case 2:
        length = mtu * random_.between(1U, 3U) + random_.pick({-1, 1}) * 1U;
        break;
      case 3:
        length = random_.between(1U, 5 * mtu);
        break;
      default:
        length = random_.between(1U, 300U);
        break;
    }
    return std::min(length, most);
  }

  Operation next() {
    Operation operation;
    operation.kind = static_cast<Kind>(random_.below(7));
    operation.fence = random_.chance(0.1);
    operation.signaled = random_.chance(0.7);
    operation.solicited = random_.chance(0.2);
    operation.immediate = static_cast<std::uint32_t>(random_.next());
    switch (operation.kind) {
      case Kind::Send:
      case Kind::SendImm:
        give_data(operation, some_length(most()));
        break;
      case Kind::Write:
      case Kind::WriteImm:
        plan_write(operation);
        break;
      case Kind::Read:
        plan_read(operation);
        break;
      case Kind::FetchAdd:
        plan_fetch_add(operation);
        break;
      case Kind::CompareSwap:
        plan_compare_swap(operation);
        break;
    }
    if (random_.chance(mistakes_)) make_mistake(operation);
    return operation;
  }

  std::uint32_t most() const {
    constexpr std::uint32_t kGaps = 1500;
    const std::uint32_t left = std::min({local_.left(), slots_.left(), receives_left_});
    return left < kGaps ? 0 : left - kGaps;
  }

  void give_data(Operation& operation, std::uint32_t length) {
    operation.length = length;
    operation.data = make_data(length, random_.next());
    operation.inlined = length != 0 && length <= kMaxInline && random_.chance(0.3);
    if (!operation.inlined) split(operation);
    if (operation.is_send()) receives_left_ -= length + 100;
  }

  // One to three pieces, which together have its length.
  void split(Operation& operation) {
    std::uint32_t left = operation.length;
    for (unsigned more = random_.between(0U, 2U); more > 0 && left > 1; --more) {
      const std::uint32_t part = random_.between(1U, left - 1);
      operation.pieces.push_back(local_.take(part));
      left -= part;
    }
    if (left != 0) operation.pieces.push_back(local_.take(left));
  }

  void plan_write(Operation& operation) {
    operation.hot = random_.chance(0.3);
    give_data(operation, some_length(operation.hot ? std::min(layout::kHotSize, most()) : most()));
    operation.remote = operation.hot ? layout::kHot : slots_.take(operation.length).offset;
  }

  void plan_read(Operation& operation) {
    const auto back = std::ranges::find_if(plan_.operations, [&](const Operation& earlier) {
      return earlier.is_write() && !earlier.hot && earlier.length != 0 && earlier.length <= most();
    });
    if (random_.chance(0.3)) {
      operation.hot = true;
      operation.remote = layout::kHot;
      operation.length = some_length(std::min(layout::kHotSize, most()));
    } else if (back != plan_.operations.end() && random_.chance(0.4)) {
      operation.read_back = true;
      operation.remote = back->remote;
      operation.length = back->length;
      operation.data = back->data;
    } else {
      operation.length = some_length(std::min(layout::kSourceSize / 2, most()));
      const auto at = static_cast<std::uint32_t>(random_.below(layout::kSourceSize / 2));
      operation.remote = layout::kSource + at;
      operation.data.assign(peer_source_.begin() + at, peer_source_.begin() + at + operation.length);
    }
    split(operation);
  }

  void plan_fetch_add(Operation& operation) {
    operation.length = 8;
    operation.pieces.push_back(local_.take(8));
    if (peer_.ballot().given < Ballot::kBits && random_.chance(0.5)) {
      operation.ballot = &peer_.ballot();
      operation.bit = operation.ballot->given++;
      operation.swap_add = std::uint64_t{1} << operation.bit;
      return;
    }
    operation.remote = layout::kCounter;
    operation.swap_add = random_.next();
    operation.original = counter_;
    counter_ += operation.swap_add;
  }

  void plan_compare_swap(Operation& operation) {
    operation.length = 8;
    operation.pieces.push_back(local_.take(8));
    operation.remote = layout::kCell;
    operation.swap_add = random_.next();
    operation.original = cell_;
    operation.compare = random_.chance(0.7) ? cell_ : ~cell_;
    if (operation.compare == cell_) cell_ = operation.swap_add;
  }

  void make_mistake(Operation& operation) {
    if (operation.length == 0) return;
    const auto mistake = random_.pick({Mistake::WrongRkey, Mistake::BeyondRegion, Mistake::WrongLkey,
                                       Mistake::ReceiveTooShort, Mistake::ReceiveWrongLkey});
    const bool about_remote = mistake == Mistake::WrongRkey || mistake == Mistake::BeyondRegion;
    const bool about_receive = mistake == Mistake::ReceiveTooShort || mistake == Mistake::ReceiveWrongLkey;
    if (about_remote && (operation.is_send() || operation.ballot != nullptr)) return;
    if (about_receive && !operation.is_send()) return;
    if (mistake == Mistake::WrongLkey && operation.inlined) return;
    operation.mistake = mistake;
  }

  Receive receive_for(const Operation& operation) {
    Receive receive;
    std::uint32_t size = operation.is_send() ? operation.length + random_.pick({0U, 0U, 7U, 40U}) : 0;
    if (operation.mistake == Mistake::ReceiveTooShort) {
      size = static_cast<std::uint32_t>(random_.below(operation.length));
    }
    receive.buffer = receives_.take(size);
    receive.wrong_lkey = operation.mistake == Mistake::ReceiveWrongLkey;
    return receive;
  }

  const ConnectionPlan& connection_;
  double mistakes_;
  const Bytes& peer_source_;
  Machine& peer_;
  Random& random_;
  std::uint64_t counter_;
  std::uint64_t cell_;
  Room local_;
  Room slots_;
  Room receives_;
  std::uint32_t receives_left_ = layout::kReceiveSize - 1000;
  Plan plan_;
};

}  // namespace

std::string_view name(Kind kind) {
  constexpr std::string_view kNames[] = {"SEND", "SEND_IMM",  "WRITE",       "WRITE_IMM",
                                         "READ", "FETCH_ADD", "COMPARE_SWAP"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name(Mistake mistake) {
  constexpr std::string_view kNames[] = {"",
                                         ", wrong rkey",
                                         ", beyond the region",
                                         ", wrong lkey",
                                         ", receive too short",
                                         ", receive with a wrong lkey"};
  return kNames[static_cast<std::size_t>(mistake)];
}

void Operation::apply(std::span<std::byte> memory, std::uint32_t size) const {
  if (is_write()) {
    std::copy_n(data.data(), size, memory.data() + remote);
  } else if (kind == Kind::FetchAdd && ballot == nullptr && size == length) {
    store(memory, remote, load(memory, remote) + swap_add);
  } else if (kind == Kind::CompareSwap && size == length && load(memory, remote) == compare) {
    store(memory, remote, swap_add);
  }
}

Plan make_plan(const ConnectionPlan& connection, double mistakes, const Bytes& peer_source, Machine& peer,
               Random& random) {
  return Planner(connection, mistakes, peer_source, peer, random).make();
}

Bytes make_data(std::uint32_t size, std::uint64_t seed) {
  Bytes data((size + 7) / 8 * 8);
  Random random(seed);
  for (std::size_t at = 0; at < data.size(); at += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(data.data() + at, &word, sizeof word);
  }
  data.resize(size);
  return data;
}

}  // namespace qpair::simulation
