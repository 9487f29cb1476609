// The model: the peer has carried out some first part of the list, packet by packet, and nothing else.

#include <algorithm>
#include <cstring>

#include "tests/simulation/connection.hpp"

namespace qpair::simulation {
namespace {

class Direction {
 public:
  Direction(const End& from, const End& to, std::uint32_t mtu)
      : from_(from), to_(to), mtu_(mtu), operations_(from.operations()) {}

  void check() {
    find_bounds();
    check_receives();
    check_target();
    check_local();
    if (!std::ranges::equal(part(to_.memory(), layout::kSource, layout::kSourceSize), to_.source())) {
      violated("memory that was only read has changed");
    }
  }

 private:
  static std::span<const std::byte> part(std::span<const std::byte> memory, std::uint32_t offset,
                                         std::uint32_t size) {
    return memory.subspan(offset, size);
  }
  [[noreturn]] void violated(const std::string& what) const {
    throw Violation(fmt::format("what {} did to {}: {}", from_.name(), to_.name(), what));
  }

  // The peer has carried out at least least_ operations and at most most_.
  void find_bounds() {
    most_ = from_.posted();
    std::size_t messages = 0;
    for (std::size_t i = 0; i < from_.posted(); ++i) {
      const Operation& operation = operations_[i];
      if (operation.outcome == Outcome::Done) least_ = i + 1;
      // A message that was received, or not.
      if (operation.takes_receive()) {
        if (messages++ < to_.received()) {
          least_ = i + 1;
        } else {
          most_ = std::min(most_, i);
        }
      }
      const bool is_refused =
          operation.mistake != Mistake::None && !(operation.mistake == Mistake::WrongLkey &&
                                                  (operation.kind == Kind::Read || operation.is_atomic()));
      if (is_refused) most_ = std::min(most_, i);
    }
    if (messages < to_.received()) violated("more messages were received than were sent");
    if (least_ > most_) {
      violated(fmt::format("operation #{} has its effect although #{} has not", least_ - 1, most_));
    }
  }

  // Messages lie in their buffers whole, or, the next one, from its beginning up to some packet.
  void check_receives() {
    Bytes expected(layout::kReceiveSize, layout::kUntouched);
    const auto actual = part(to_.memory(), layout::kReceive, layout::kReceiveSize);
    std::size_t message = 0;
    for (std::size_t i = 0; i < operations_.size() && message <= to_.received(); ++i) {
      const Operation& operation = operations_[i];
      if (!operation.takes_receive()) continue;
      const Piece& buffer = to_.receives()[message].buffer;
      const auto at = expected.begin() + (buffer.offset - layout::kReceive);
      if (message++ < to_.received()) {
        if (operation.is_send()) std::ranges::copy(operation.data, at);
      } else if (operation.is_send() && i < from_.posted()) {
        for (std::uint32_t packets = 0; packets < operation.packets(mtu_); ++packets) {
          if (std::ranges::equal(expected, actual)) return;
          const std::uint32_t size = operation.bytes_of(packets + 1, mtu_);
          if (size > buffer.length) break;
          std::copy_n(operation.data.begin(), size, at);
          least_ = std::max(least_, i);  // everything before it was carried out
        }
      }
    }
    if (!std::ranges::equal(expected, actual)) {
      violated(fmt::format("receive buffers hold what no message brought, from byte {} on",
                           first_difference(expected, actual)));
    }
  }

  static std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
    return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }

  bool ballots_agree(std::size_t carried_out) const {
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const Operation& operation = operations_[i];
      if (operation.ballot == nullptr) continue;
      if (((operation.ballot->word & operation.swap_add) != 0) != (i < carried_out)) return false;
    }
    return true;
  }

  void check_target() {
    Bytes model = to_.before();
    const auto target = [](std::span<const std::byte> memory) {
      return part(memory, layout::kTarget, layout::kTargetSize);
    };
    const auto matches = [&] { return std::ranges::equal(target(model), target(to_.memory())); };
    std::size_t nearest = 0;
    for (std::size_t i = 0; i <= most_; ++i) {
      if (i != 0) operations_[i - 1].apply(model, operations_[i - 1].length);
      if (i < least_) continue;
      if (!ballots_agree(i)) continue;
      if (matches()) return;
      nearest = first_difference(target(model), target(to_.memory()));
      if (i == from_.posted() || !operations_[i].is_write()) continue;
      for (std::uint32_t packets = 1; packets < operations_[i].packets(mtu_); ++packets) {
        Bytes partly = model;
        operations_[i].apply(partly, operations_[i].bytes_of(packets, mtu_));
        if (std::ranges::equal(target(partly), target(to_.memory()))) return;
      }
    }
    violated(fmt::format("the target is not as after any {} to {} of {} operations (byte {} differs)", least_,
                         most_, operations_.size(), nearest));
  }

  // This end's own memory: sources as they were, sinks filled by what completed and by nothing else.
  void check_local() const {
    Bytes expected(layout::kLocalSize, layout::kUntouched);
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const Operation& operation = operations_[i];
      const bool fetches = operation.kind == Kind::Read || operation.is_atomic();
      const Bytes content = fetches ? from_.collect(operation.pieces) : operation.data;
      if (fetches) check_sink(i, content);
      std::size_t done = 0;
      for (const Piece& piece : operation.pieces) {
        std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(done), piece.length,
                    expected.begin() + piece.offset);
        done += piece.length;
      }
    }
    const auto actual = part(from_.memory(), layout::kLocal, layout::kLocalSize);
    if (!std::ranges::equal(expected, actual)) {
      violated(fmt::format("local memory has changed at byte {}", first_difference(expected, actual)));
    }
  }

  void check_sink(std::size_t i, const Bytes& content) const {
    const Operation& operation = operations_[i];
    const bool untouched =
        std::ranges::all_of(content, [](std::byte byte) { return byte == layout::kUntouched; });
    if (untouched && (operation.outcome != Outcome::Done || content.empty())) return;
    if (i >= from_.posted()) violated(fmt::format("the result of #{} is there before it was posted", i));
    if (operation.is_atomic()) {
      std::uint64_t found = 0;
      std::memcpy(&found, content.data(), sizeof found);
      const bool right =
          operation.ballot != nullptr ? (found & operation.swap_add) == 0 : found == operation.original;
      if (!right) violated(fmt::format("atomic #{} found {:#x}, not {:#x}", i, found, operation.original));
    } else if (operation.hot) {
      check_hot_read(i, content);
    } else {
      check_read(i, content);
    }
  }

  void check_read(std::size_t i, const Bytes& content) const {
    const Operation& read = operations_[i];
    const std::uint32_t whole = read.packets(mtu_);
    for (std::uint32_t packets = read.outcome == Outcome::Done ? whole : 1; packets <= whole; ++packets) {
      Bytes expected(read.length, layout::kUntouched);
      std::copy_n(read.data.begin(), read.bytes_of(packets, mtu_), expected.begin());
      if (expected == content) return;
    }
    // The packet that meets the wrong lkey fills the pieces before it.
    if (read.mistake == Mistake::WrongLkey) {
      Bytes expected(read.length, layout::kUntouched);
      std::copy_n(read.data.begin(), read.length - read.pieces.back().length, expected.begin());
      if (expected == content) return;
    }
    violated(fmt::format("read #{} fetched what was not there", i));
  }

  // A read may be carried out again, after later writes: each packet of it shows some state since then.
  void check_hot_read(std::size_t i, const Bytes& content) const {
    std::vector<Bytes> states;
    Bytes model = to_.before();
    for (std::size_t j = 0; j <= from_.posted(); ++j) {
      if (j != 0) operations_[j - 1].apply(model, operations_[j - 1].length);
      if (j < i) continue;
      const auto hot = part(model, layout::kHot, layout::kHotSize);
      states.emplace_back(hot.begin(), hot.end());
    }
    const bool done = operations_[i].outcome == Outcome::Done;
    for (std::uint32_t at = 0; at < content.size(); at += mtu_) {
      const std::uint32_t size = std::min(mtu_, static_cast<std::uint32_t>(content.size()) - at);
      const auto packet = std::span(content).subspan(at, size);
      const bool was_there = std::ranges::any_of(states, [&](const Bytes& state) {
        return std::ranges::equal(packet, std::span(state).subspan(at, size));
      });
      if (was_there) continue;
      const bool untouched =
          std::ranges::all_of(packet, [](std::byte byte) { return byte == layout::kUntouched; });
      const bool cut_short = operations_[i].mistake == Mistake::WrongLkey;
      if (done || !(untouched || cut_short))
        violated(fmt::format("read #{} fetched what was never there, at byte {}", i, at));
    }
  }

  const End& from_;
  const End& to_;
  std::uint32_t mtu_;
  const std::vector<Operation>& operations_;
  std::size_t least_ = 0;
  std::size_t most_ = 0;
};

}  // namespace

void check_direction(const End& from, const End& to, std::uint32_t mtu) {
  Direction(from, to, mtu).check();
}

}  // namespace qpair::simulation
