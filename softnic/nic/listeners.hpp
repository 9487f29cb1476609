#pragma once
// Whom the events of one queue pair go to. One for most; an XRC target that several programs' handles share
// has each of them (IBTA vol. 1 annex A14; the kernel's __ib_shared_qp_event_handler()).

#include <algorithm>
#include <vector>

#include "softnic/nic/nic.hpp"

namespace qpair::softnic::nic {

class Listeners {
 public:
  explicit Listeners(EventSink* first) : sinks_{{first, 1}} {}

  // More than one handle.
  bool shared() const { return sinks_.size() > 1 || sinks_.front().handles > 1; }

  void add(EventSink* sink) {
    const auto at = find(sink);
    if (at != sinks_.end()) {
      ++at->handles;
    } else {
      sinks_.push_back({sink, 1});
    }
  }
  void remove(EventSink* sink) {
    const auto at = find(sink);
    if (at != sinks_.end() && --at->handles == 0) sinks_.erase(at);
  }
  // Each sink once, however many handles it stands for.
  void event(Qpn qp, ibv_event_type event) const {
    for (const Entry& entry : sinks_) entry.sink->qp_event(qp, event);
  }

 private:
  struct Entry {
    EventSink* sink;
    unsigned handles;
  };
  std::vector<Entry>::iterator find(EventSink* sink) { return std::ranges::find(sinks_, sink, &Entry::sink); }

  std::vector<Entry> sinks_;
};

}  // namespace qpair::softnic::nic
