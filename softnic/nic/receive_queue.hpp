#pragma once
// Where a queue pair's receives come from: a ring of its own (own_receive_queue.hpp), or a queue that it
// shares with others (shared_receive_queue.hpp). A receive is taken when a message needs it and retired when
// its completion has been written.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "softnic/nic/completion_queue.hpp"
#include "softnic/nic/nic.hpp"
#include "softnic/nic/wqe_decode.hpp"
#include "softnic/roce/host.hpp"

namespace qpair::softnic::nic {

class ReceiveQueue {
 public:
  enum class Taken : std::uint8_t { Yes, Nothing, Broken };

  ReceiveQueue() = default;
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;
  virtual ~ReceiveQueue() = default;

  // The next posted receive. Broken: the queue cannot go on, for the reason in `why`; the queue pair that
  // needed the receive cannot either.
  virtual Taken take(roce::ReceiveRequest& out, std::string& why) = 0;
  // The scatter list of one that was taken. Null: it can no longer be read, and `why` says so.
  virtual const ScatterList* list(std::uint16_t index, std::string& why) = 0;
  // One that was taken is over.
  virtual void retire(std::uint16_t index) = 0;
  // The queue pair is in error: gives each posted receive to `each`, in order, and forgets them. What is
  // shared stays, for the others.
  virtual void flush(const std::function<void(std::uint16_t)>& each) = 0;
  // The queue pair was reset.
  virtual void reset() = 0;
  // Whose memory its scatter lists name: a shared queue has a protection domain of its own (IBTA vol. 1
  // 10.2.9.2).
  virtual Pdn pd() const = 0;
  // Where its receives complete, and what the CQEs say as srqn_uidx.
  struct Completes {
    CompletionQueue* on;
    std::uint32_t index;
  };
  // Nothing: as the queue pair says, which is all but XRC.
  virtual std::optional<Completes> completes() const { return std::nullopt; }
};

}  // namespace qpair::softnic::nic
