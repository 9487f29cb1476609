#pragma once
// The latest failures and their reasons, kept for a program that asks later: its error completion has no room
// for a sentence. They outlive their queue pairs. Engine lock held.

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "qpair/mlx5/cqe.hpp"
#include "softnic/explain/explain.hpp"
#include "softnic/nic/nic.hpp"

namespace qpair::softnic::nic {

class Failures {
 public:
  enum class Side : std::uint8_t { Send, Receive };

  // A work request's, which completes with this syndrome and vendor error. Said, and remembered.
  void add(Qpn qp, Side side, mlx5::Syndrome syndrome, std::uint8_t vendor_err, std::string sentence,
           explain::Kind kind = explain::Kind::Failure);
  // The queue pair's own: an asynchronous event tells of it, and everything posted is flushed.
  void add(Qpn qp, std::string sentence);
  // The queue pair was reset or destroyed: what is flushed from now on has other reasons.
  void over(Qpn qp);

  // One line for each, the latest first:
  //   QPN  "send" | "receive" | "queue-pair"  ibv_wc_status  vendor_err  "now" | "over"  sentence
  // as `0x4a send 10 0x88 now queue pair 0x4a, send WQE 0: …`. The numbers are those of the completion.
  std::string text() const;

 private:
  struct Entry {
    std::uint32_t qpn = 0;
    const char* side = nullptr;  // null: nothing here yet
    ibv_wc_status status = IBV_WC_SUCCESS;
    std::uint8_t vendor_err = 0;
    bool over = false;
    std::string sentence;
  };
  void keep(Entry entry, explain::Kind kind);

  std::array<Entry, 64> entries_;
  std::size_t next_ = 0;
};

}  // namespace qpair::softnic::nic
