#pragma once
// The counters of the whole device: what its queue pairs counted, those that are gone included. Shown to
// other processes when there is a page to show them on. Engine lock held.

#include <memory>

#include "softnic/observe/counter_page.hpp"
#include "softnic/observe/counters.hpp"
#include "softnic/wire/shared_memory_link.hpp"

namespace qpair::softnic::nic {

class QueuePair;

// Counts what copies stand for, as the side does whose memory it is, and as the side that copies does.
inline void count_as_owner(observe::Counters& counters, const wire::Copies& copies) {
  counters.rx_write_requests += copies.writes;
  counters.rx_read_requests += copies.reads;
  counters.packets_sent += copies.packets_sent;
  counters.packets_received += copies.packets_received;
  counters.bytes_sent += copies.bytes_sent;
  counters.bytes_received += copies.bytes_received;
}
inline void count_as_initiator(observe::Counters& counters, const wire::Copies& copies) {
  counters.packets_sent += copies.packets_received;
  counters.packets_received += copies.packets_sent;
  counters.bytes_sent += copies.bytes_received;
  counters.bytes_received += copies.bytes_sent;
}

class CounterBoard {
 public:
  // Before there are queue pairs.
  void show_on(std::unique_ptr<observe::CounterPage> page) { page_ = std::move(page); }

  void enter(QueuePair& qp);
  void leave(QueuePair& qp);
  // Takes over what the queue pair counted since the last time.
  void count(QueuePair& qp);
  // Takes over what other NICs of this host have moved without packets.
  void count(const wire::Copies& copies);
  // A packet whose CRC is wrong is of no queue pair.
  void count_bad_crc();

  const observe::Counters& totals() const { return totals_; }

  void abandon() {
    if (page_) page_->abandon();
  }

 private:
  void add_to_totals(const observe::CounterValues& before, const observe::CounterValues& now);

  std::unique_ptr<observe::CounterPage> page_;
  observe::Counters totals_;
  observe::Counters copied_;  // as last taken over
};

}  // namespace qpair::softnic::nic
