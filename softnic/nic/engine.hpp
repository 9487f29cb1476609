#pragma once
// The thread that the chip runs on, and the lock that control calls take it away with.
//
// Busy: round after round under the lock, which is given up between rounds when somebody waits for it. No
// work: it keeps looking for a short time, then takes short naps that a packet ends. Still none: it protects
// the doorbell pages, looks once more, and sleeps in poll() until a doorbell is stored, a packet arrives, a
// control call wants it, or a timer is due.

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "softnic/nic/chip.hpp"
#include "softnic/nic/patience.hpp"
#include "softnic/nic/tunables.hpp"

namespace qpair::softnic::nic {

class Engine {
 public:
  explicit Engine(Chip& chip) : chip_(chip) {}
  // Stops and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes the chip from the engine for one control call.
  class Control {
   public:
    explicit Control(Engine& engine);
    ~Control();
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

   private:
    Engine& engine_;
  };

  // Starts the thread if it does not run; 0 or an errno. Inside a Control.
  int start();
  // Around fork(), so that the child gets what the engine has between two rounds and not in the middle of
  // one.
  void hold();
  void release();
  // After fork(), in the child, before release(): closes what only the parent may use. The thread does not
  // exist here.
  void abandon();

 private:
  static void* entry(void* self);
  void run();
  void turn(std::unique_lock<std::mutex>& lock, Patience& patience);
  void look_out() const;
  void rest(std::unique_lock<std::mutex>& lock, const Patience& patience);
  void give_way(std::unique_lock<std::mutex>& lock);
  void wait(wire::TimePoint until, std::chrono::nanoseconds slack, std::unique_lock<std::mutex>& lock);
  void kick();

  Chip& chip_;
  std::mutex mutex_;
  std::atomic<int> waiting_{0};  // control calls that want the lock
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  bool started_ = false;
  pthread_t thread_{};
  int kick_fd_ = -1;
  std::chrono::nanoseconds nap_{kShortestNap};
  std::chrono::nanoseconds slack_{0};  // timer slack that the kernel was told; 0: its default
};

}  // namespace qpair::softnic::nic
