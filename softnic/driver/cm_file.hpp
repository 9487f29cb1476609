#pragma once
// /dev/infiniband/rdma_cm: what librdmacm opens for every event channel (kernel,
// drivers/infiniband/core/ucma.c; ABI: rdma/rdma_user_cm.h, version 4).
//
// A command is a write(); its answer goes to where the command says, and so do events (GET_EVENT). The
// descriptor is a real eventfd whose count is the length of the event queue, so that poll, epoll and
// O_NONBLOCK are the kernel's own. Identifiers and the queue are under the NIC's lock, since the engine
// reports through them; nothing here waits while it is held.

#include <rdma/rdma_user_cm.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "softnic/cm/id.hpp"
#include "softnic/cm/manager.hpp"
#include "softnic/driver/file.hpp"
#include "softnic/driver/port_registry.hpp"
#include "softnic/driver/private_fd.hpp"
#include "softnic/driver/runtime.hpp"
#include "softnic/driver/user_memory.hpp"

namespace qpair::softnic::driver {

class CmFile;

// What a program knows by a number (struct ucma_context).
class CmContext final : public cm::Consumer {
 public:
  CmContext(CmFile& file, std::uint32_t number) : file_(&file), number_(number) {}

  void happened(cm::Event event) override;
  void happened_to_group(std::uint32_t group, cm::Event event);
  bool has_room() override { return backlog > 0; }

  std::uint32_t number() const { return number_; }
  void move_to(CmFile& file) { file_ = &file; }

  std::unique_ptr<cm::Id> id;
  std::uint64_t uid = 0;       // the program's; 0: nobody wants to hear of it yet
  std::uint32_t reported = 0;  // events that the program has been given
  int backlog = 0;
  // What it joined, by number (struct ucma_multicast).
  struct Group {
    std::uint64_t uid = 0;
    std::uint32_t reported = 0;
  };
  std::map<std::uint32_t, Group> groups;

 private:
  void queue(cm::Event event, std::uint64_t as, std::uint32_t number, std::optional<std::uint32_t> group);

  CmFile* file_;
  const std::uint32_t number_;
};

class CmFile final : public File, public Closable {
 public:
  // `scratch`: the process's scratch directory. The new descriptor, or a negative errno.
  static int open(const std::string& scratch, std::shared_ptr<File>& file);

  CmFile(std::shared_ptr<nic::Nic> nic, std::shared_ptr<PortRegistry> ports, int fd);
  ~CmFile() override;

  ssize_t write(const void* bytes, std::size_t size) override;
  dev_t device_number() const override;
  // Every identifier says goodbye; every later call answers EIO.
  void shut_down() override;

  // For the commands. `use(Manager&, TimePoint now)` answers 0 or a negative errno and runs under the NIC's
  // lock. `stores`: the program's bytes that it stores to.
  template <typename Use>
  int locked(nic::Nic::Bytes stores, const Use& use) {
    int result = -EIO;
    const auto nic = share();
    if (!nic) return result;
    const int error = nic->with_agent([&](nic::MadSender& sender) { return make_manager(*nic, sender); },
                                      [&](nic::ManagementAgent& agent, wire::TimePoint now) {
                                        result = use(static_cast<cm::Manager&>(agent), now);
                                      },
                                      stores)
                          .value;
    return error != 0 ? -error : result;
  }
  template <typename Use>
  int locked(const Use& use) {
    return locked({}, use);
  }
  // …of an identifier that this file has.
  template <typename Use>
  int with_id(std::uint32_t number, const Use& use) {
    return locked([&](cm::Manager& manager, wire::TimePoint now) {
      CmContext* const context = find(number);
      if (context == nullptr) return manager.numbers().has(number) ? -EINVAL : -ENOENT;
      return use(*context, now);
    });
  }

  PortRegistry& ports() { return *ports_; }
  wire::Endpoint own_address() const { return own_; }
  int wait_for_event();  // takes one token; -EAGAIN, -EINTR
  void put_back_token() { signal(); }

  // Under the NIC's lock.
  CmContext* find(std::uint32_t number);
  CmContext& add(std::uint32_t number, std::uint64_t uid);
  std::unique_ptr<CmContext> remove(std::uint32_t number);
  struct Waiting {
    CmContext* context;
    rdma_ucm_event_resp response;
    std::unique_ptr<cm::Id> request;
    std::optional<std::uint32_t> group;  // that it is about
  };
  void push(Waiting event);
  void push_back_first(Waiting event);  // it could not be handed over
  bool pop(Waiting& event);
  void drop_events(const CmContext& context);
  CmContext* find_group(std::uint32_t group);
  void drop_group_events(std::uint32_t group);
  void take_over(CmFile& from, std::uint32_t number);

 private:
  bool inherited() const { return generation_ != fork_generation(); }
  std::shared_ptr<nic::Nic> share();
  static std::unique_ptr<nic::ManagementAgent> make_manager(const nic::Nic& nic, nic::MadSender& sender);
  void signal();
  void take_token();
  void close_all();
  template <typename Of>
  void drop(const Of& of);

  std::mutex mutex_;
  std::shared_ptr<nic::Nic> nic_;  // guarded by mutex_; null once shut down
  const std::shared_ptr<PortRegistry> ports_;
  const wire::Endpoint own_;
  PrivateFd signal_;
  const unsigned generation_;
  std::map<std::uint32_t, std::unique_ptr<CmContext>> contexts_;
  std::deque<Waiting> events_;
};

// One command, `size` bytes of it behind its header, `room` for the answer. 0 or a negative errno.
int cm_command(CmFile& file, std::uint32_t command, const UserBuffer& in, std::size_t room);

}  // namespace qpair::softnic::driver
