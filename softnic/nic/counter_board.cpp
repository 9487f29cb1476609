#include "softnic/nic/counter_board.hpp"

#include "softnic/nic/queue_pair.hpp"

namespace qpair::softnic::nic {
namespace {

observe::QueuePairIdentity identity_of(const QueuePair& qp) {
  return {static_cast<std::uint32_t>(qp.number()), qp.peer(), static_cast<std::uint8_t>(qp.parameters().type),
          static_cast<std::uint8_t>(qp.state())};
}

}  // namespace

void CounterBoard::enter(QueuePair& qp) {
  if (page_) qp.counter_slot = page_->enter(identity_of(qp));
}

void CounterBoard::leave(QueuePair& qp) {
  count(qp);
  if (page_) page_->leave(qp.counter_slot);
}

void CounterBoard::add_to_totals(const observe::CounterValues& before, const observe::CounterValues& now) {
  observe::CounterValues totals = values_of(totals_);
  for (std::size_t i = 0; i < observe::kCounters; ++i) totals[i] += now[i] - before[i];
  totals_ = observe::counters_of(totals);
}

void CounterBoard::count(QueuePair& qp) {
  const observe::CounterValues now = values_of(qp.counters());
  const observe::CounterValues before = values_of(qp.counted);
  add_to_totals(before, now);
  if (page_) page_->publish(qp.counter_slot, identity_of(qp), before, now);
  qp.counted = observe::counters_of(now);
}

void CounterBoard::count(const wire::Copies& copies) {
  observe::Counters now;
  count_as_owner(now, copies);
  if (now == copied_) return;
  add_to_totals(values_of(copied_), values_of(now));
  if (page_) page_->add(values_of(copied_), values_of(now));
  copied_ = now;
}

void CounterBoard::count_bad_crc() {
  const observe::CounterValues before = values_of(totals_);
  ++totals_.rx_icrc_encapsulated;
  if (page_) page_->add(before, values_of(totals_));
}

}  // namespace qpair::softnic::nic
