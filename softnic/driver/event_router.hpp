#pragma once
// From the NIC's numbers to the program's event descriptors. Called with the NIC's lock held; never calls the
// Nic.

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "softnic/driver/event_queue.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::driver {

struct EventRoute {
  std::uint64_t user_handle = 0;            // what the events name the object by
  std::shared_ptr<EventQueue> completions;  // null: no channel
  std::shared_ptr<EventQueue> async;        // null: nobody listens
  std::shared_ptr<EventCount> completions_read = std::make_shared<EventCount>();
  std::shared_ptr<EventCount> async_read = std::make_shared<EventCount>();
};

class EventRouter final : public nic::EventSink {
 public:
  void completion(nic::Cqn cq) override;
  void cq_event(nic::Cqn cq, ibv_event_type event) override;
  void qp_event(nic::Qpn qp, ibv_event_type event) override;
  void srq_event(nic::Srqn srq, ibv_event_type event) override;

  void add(nic::Cqn cq, EventRoute route);
  void add(nic::Qpn qp, EventRoute route);
  void add(nic::Srqn srq, EventRoute route);

  struct Reported {
    std::uint32_t completions = 0;
    std::uint32_t async = 0;
  };
  // After the NIC has forgotten the object: its unread events go, the number of read ones is the answer.
  Reported remove(nic::Cqn cq);
  // The route of one handle: an XRC target may have several.
  Reported remove(nic::Qpn qp, std::uint64_t user_handle);
  Reported remove(nic::Srqn srq);

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, EventRoute> cqs_;  // guarded by mutex_
  std::unordered_multimap<std::uint32_t, EventRoute> qps_;
  std::unordered_map<std::uint32_t, EventRoute> srqs_;
};

}  // namespace qpair::softnic::driver
