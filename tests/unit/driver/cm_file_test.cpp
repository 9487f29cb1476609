// /dev/infiniband/rdma_cm with commands made by hand, as a program without librdmacm would write them. Both
// ends of a connection are identifiers of this process, on its one NIC.

#include "softnic/driver/cm_file.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "device_harness.hpp"
#include "softnic/driver/cm_address.hpp"
#include "softnic/driver/scratch_directory.hpp"

namespace qpair::softnic::driver {
namespace {

namespace fs = std::filesystem;
using cm::EventType;

sockaddr_in ipv4(const char* text, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, text, &address.sin_addr);
  return address;
}

class CmFileTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = fs::temp_directory_path() / "cm-test-XXXXXX";
    base_ = new std::string(mkdtemp(name.data()));
    scratch_ = new ScratchDirectory(std::move(*ScratchDirectory::create_in(*base_)));
  }
  static void TearDownTestSuite() {
    delete scratch_;
    fs::remove_all(*base_);
    delete base_;
  }

  struct Channel {
    std::shared_ptr<File> file;
    int fd = -1;
    Channel() {
      fd = CmFile::open(scratch_->path(), file);
      EXPECT_GE(fd, 0);
    }
    ~Channel() { close(fd); }
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    template <typename Command>
    ssize_t send(std::uint32_t number, const Command& command, std::size_t room = 0) {
      struct {
        rdma_ucm_cmd_hdr header;
        Command command;
      } bytes{};
      bytes.header = {.cmd = number, .in = sizeof command, .out = static_cast<std::uint16_t>(room)};
      bytes.command = command;
      const std::size_t size = sizeof bytes.header + sizeof command;
      const ssize_t result = file->write(&bytes, size);
      return result == static_cast<ssize_t>(size) ? 0 : result;
    }

    std::uint32_t create(std::uint16_t space = RDMA_PS_TCP, std::uint64_t uid = 7) {
      rdma_ucm_create_id_resp answer{};
      rdma_ucm_create_id command{};
      command.uid = uid;
      command.response = test::address_of(&answer);
      command.ps = space;
      EXPECT_EQ(send(RDMA_USER_CM_CMD_CREATE_ID, command, sizeof answer), 0);
      return answer.id;
    }
    ssize_t destroy(std::uint32_t id, std::uint32_t* events = nullptr) {
      rdma_ucm_destroy_id_resp answer{};
      rdma_ucm_destroy_id command{};
      command.response = test::address_of(&answer);
      command.id = id;
      const ssize_t result = send(RDMA_USER_CM_CMD_DESTROY_ID, command, sizeof answer);
      if (events != nullptr) *events = answer.events_reported;
      return result;
    }
    ssize_t bind(std::uint32_t id, const sockaddr_in& address) {
      rdma_ucm_bind command{};
      command.id = id;
      command.addr_size = sizeof address;
      std::memcpy(&command.addr, &address, sizeof address);
      return send(RDMA_USER_CM_CMD_BIND, command);
    }
    ssize_t listen(std::uint32_t id, std::uint32_t backlog = 8) {
      return send(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{.id = id, .backlog = backlog});
    }
    ssize_t resolve(std::uint32_t id, const sockaddr_in& address) {
      rdma_ucm_resolve_addr command{};
      command.id = id;
      command.dst_size = sizeof address;
      std::memcpy(&command.dst_addr, &address, sizeof address);
      return send(RDMA_USER_CM_CMD_RESOLVE_ADDR, command);
    }
    rdma_ucm_query_addr_resp addresses(std::uint32_t id) {
      rdma_ucm_query_addr_resp answer{};
      rdma_ucm_query command{};
      command.response = test::address_of(&answer);
      command.id = id;
      command.option = RDMA_USER_CM_QUERY_ADDR;
      EXPECT_EQ(send(RDMA_USER_CM_CMD_QUERY, command, sizeof answer), 0);
      return answer;
    }
    std::uint16_t port(std::uint32_t id) {
      sockaddr_in address{};
      const auto answer = addresses(id);
      std::memcpy(&address, &answer.src_addr, sizeof address);
      return ntohs(address.sin_port);
    }
    // Waits: whoever asks knows that an event is to come.
    rdma_ucm_event_resp event() {
      rdma_ucm_event_resp answer{};
      const rdma_ucm_get_event command{.response = test::address_of(&answer)};
      EXPECT_EQ(send(RDMA_USER_CM_CMD_GET_EVENT, command, sizeof answer), 0);
      return answer;
    }
    ssize_t try_event(std::uint64_t where) {
      return send(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{.response = where},
                  sizeof(rdma_ucm_event_resp));
    }
    bool readable() const {
      pollfd poll_fd{.fd = fd, .events = POLLIN, .revents = 0};
      return poll(&poll_fd, 1, 0) == 1;
    }
    void never_wait() const { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }
  };

  // A listener at any free port of this NIC, which it says.
  std::uint32_t listener(Channel& channel, std::uint16_t& port) {
    const std::uint32_t id = channel.create();
    EXPECT_EQ(channel.bind(id, ipv4("0.0.0.0", 0)), 0);
    EXPECT_EQ(channel.listen(id), 0);
    port = channel.port(id);
    return id;
  }

  std::uint32_t connecting(Channel& channel, std::uint16_t port) {
    const std::uint32_t id = channel.create(RDMA_PS_TCP, 9);
    EXPECT_EQ(channel.resolve(id, ipv4("127.0.0.1", port)), 0);
    EXPECT_EQ(channel.event().event, static_cast<unsigned>(EventType::AddrResolved));
    EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{.id = id, .timeout_ms = 1}),
              0);
    EXPECT_EQ(channel.event().event, static_cast<unsigned>(EventType::RouteResolved));
    rdma_ucm_connect command{};
    command.id = id;
    command.conn_param.valid = 1;
    command.conn_param.qp_num = 0x111;
    EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_CONNECT, command), 0);
    return id;
  }

  static std::string* base_;
  static ScratchDirectory* scratch_;
};

std::string* CmFileTest::base_ = nullptr;
ScratchDirectory* CmFileTest::scratch_ = nullptr;

TEST_F(CmFileTest, commands_are_checked_as_the_kernel_checks_them) {
  Channel channel;
  const std::uint32_t none = 12345;
  EXPECT_EQ(channel.file->write(&none, sizeof none), -EINVAL) << "shorter than a header";
  rdma_ucm_cmd_hdr header{.cmd = RDMA_USER_CM_CMD_CREATE_ID, .in = 4, .out = 0};
  EXPECT_EQ(channel.file->write(&header, sizeof header), -EINVAL) << "less than it says";
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_JOIN_MCAST + 1, none), -EINVAL);
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_GET_OPTION, none), -ENOSYS);
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_CREATE_ID, rdma_ucm_create_id{}, 0), -ENOSPC);
  rdma_ucm_create_id strange{};
  strange.ps = 5;
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_CREATE_ID, strange, 4), -EINVAL) << "no such port space";
  EXPECT_EQ(channel.file->write(reinterpret_cast<const void*>(8), sizeof header), -EFAULT);
}

TEST_F(CmFileTest, an_answer_that_cannot_be_written_is_a_fault) {
  Channel channel;
  rdma_ucm_create_id command{};
  command.ps = RDMA_PS_TCP;
  command.response = 8;
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_CREATE_ID, command, sizeof(rdma_ucm_create_id_resp)), -EFAULT);
}

TEST_F(CmFileTest, identifiers_belong_to_their_channel) {
  Channel one;
  Channel other;
  const std::uint32_t id = one.create();
  EXPECT_EQ(other.destroy(id), -EINVAL);
  EXPECT_EQ(one.destroy(id), 0);
  EXPECT_EQ(one.destroy(id), -ENOENT);
}

TEST_F(CmFileTest, what_has_no_device_yet_cannot_connect) {
  Channel channel;
  const std::uint32_t id = channel.create();
  rdma_ucm_connect command{};
  command.id = id;
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_CONNECT, command), -EINVAL);
  command.conn_param.valid = 1;
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_CONNECT, command), -EINVAL);
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{.id = id, .timeout_ms = 1}),
            -EINVAL);
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{.id = id}), -EINVAL);
  EXPECT_EQ(channel.addresses(id).node_guid, 0U);
}

TEST_F(CmFileTest, addresses_are_bound_once_and_to_one_owner) {
  Channel channel;
  const std::uint32_t id = channel.create();
  EXPECT_EQ(channel.bind(id, ipv4("127.0.0.1", 0)), 0);
  EXPECT_NE(channel.port(id), 0);
  EXPECT_NE(channel.addresses(id).node_guid, 0U) << "an address is on a device";
  EXPECT_EQ(channel.bind(id, ipv4("127.0.0.1", 0)), -EINVAL);
  const std::uint32_t other = channel.create();
  EXPECT_EQ(channel.bind(other, ipv4("127.0.0.1", channel.port(id))), -EADDRINUSE);
  EXPECT_EQ(channel.bind(other, ipv4("192.0.2.1", 0)), -EADDRNOTAVAIL) << "no address of this machine";
  EXPECT_EQ(channel.bind(other, ipv4("127.71.255.254", 0)), -ENODEV) << "another emulated NIC's";
  EXPECT_EQ(channel.destroy(id), 0);
}

TEST_F(CmFileTest, an_address_of_infiniband_is_taken_when_it_is_any) {
  Channel channel;
  const std::uint32_t id = channel.create(RDMA_PS_IB);
  rdma_ucm_bind command{};
  command.id = id;
  command.addr = to_ib_address({}, 0x0106'0000);
  command.addr_size = address_size(AF_IB);
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_BIND, command), 0) << "librdmacm asks whether it is known at all";
}

TEST_F(CmFileTest, events_are_waited_for_as_the_descriptor_says) {
  Channel channel;
  channel.never_wait();
  rdma_ucm_event_resp answer{};
  EXPECT_FALSE(channel.readable());
  EXPECT_EQ(channel.try_event(test::address_of(&answer)), -EAGAIN);
  const std::uint32_t id = channel.create();
  ASSERT_EQ(channel.resolve(id, ipv4("127.0.0.1", 9)), 0);
  EXPECT_TRUE(channel.readable());
  EXPECT_EQ(channel.try_event(8), -EFAULT);
  EXPECT_TRUE(channel.readable()) << "it is still there";
  EXPECT_EQ(channel.try_event(test::address_of(&answer)), 0);
  EXPECT_EQ(answer.event, static_cast<unsigned>(EventType::AddrResolved));
  EXPECT_EQ(answer.uid, 7U);
  EXPECT_EQ(answer.id, id);
  EXPECT_FALSE(channel.readable());
}

TEST_F(CmFileTest, destroying_drops_the_events_that_wait_and_counts_the_others) {
  Channel channel;
  channel.never_wait();
  const std::uint32_t id = channel.create();
  ASSERT_EQ(channel.resolve(id, ipv4("127.0.0.1", 9)), 0);
  channel.event();
  ASSERT_EQ(channel.send(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{.id = id, .timeout_ms = 1}),
            0);
  std::uint32_t reported = 0;
  EXPECT_EQ(channel.destroy(id, &reported), 0);
  EXPECT_EQ(reported, 1U);
  EXPECT_FALSE(channel.readable());
}

TEST_F(CmFileTest, other_machines_are_out_of_reach_of_a_loopback_nic) {
  Channel channel;
  const std::uint32_t id = channel.create();
  ASSERT_EQ(channel.resolve(id, ipv4("192.0.2.1", 9)), 0);
  const auto answer = channel.event();
  EXPECT_EQ(answer.event, static_cast<unsigned>(EventType::AddrError));
  EXPECT_EQ(static_cast<int>(answer.status), -ENODEV);
}

TEST_F(CmFileTest, where_nobody_listens_a_connection_is_rejected) {
  Channel channel;
  connecting(channel, 9);
  const auto answer = channel.event();
  EXPECT_EQ(answer.event, static_cast<unsigned>(EventType::Rejected));
  EXPECT_EQ(answer.status, 8U);
}

TEST_F(CmFileTest, two_identifiers_connect_and_part) {
  Channel server;
  Channel client;
  std::uint16_t port = 0;
  const std::uint32_t listening = listener(server, port);
  const std::uint32_t active = connecting(client, port);

  const auto asked = server.event();
  ASSERT_EQ(asked.event, static_cast<unsigned>(EventType::ConnectRequest));
  EXPECT_NE(asked.id, listening);
  EXPECT_EQ(asked.uid, 7U) << "the listener's";
  EXPECT_EQ(asked.param.conn.qp_num, 0x111U);
  rdma_ucm_accept accept{};
  accept.id = asked.id;
  accept.uid = 8;
  accept.conn_param.valid = 1;
  accept.conn_param.qp_num = 0x222;
  ASSERT_EQ(server.send(RDMA_USER_CM_CMD_ACCEPT, accept), 0);

  const auto answered = client.event();
  ASSERT_EQ(answered.event, static_cast<unsigned>(EventType::ConnectResponse));
  EXPECT_EQ(answered.uid, 9U);
  EXPECT_EQ(answered.param.conn.qp_num, 0x222U);
  ib_uverbs_qp_attr attributes{};
  rdma_ucm_init_qp_attr init{
      .response = test::address_of(&attributes), .id = active, .qp_state = IBV_QPS_RTR};
  ASSERT_EQ(client.send(RDMA_USER_CM_CMD_INIT_QP_ATTR, init, sizeof attributes), 0);
  EXPECT_EQ(attributes.dest_qp_num, 0x222U);
  rdma_ucm_accept establish{};
  establish.id = active;
  ASSERT_EQ(client.send(RDMA_USER_CM_CMD_ACCEPT, establish), 0);
  const auto established = server.event();
  EXPECT_EQ(established.event, static_cast<unsigned>(EventType::Established));
  EXPECT_EQ(established.uid, 8U) << "the program's name for it since it accepted";

  ASSERT_EQ(client.send(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{.id = active}), 0);
  EXPECT_EQ(server.event().event, static_cast<unsigned>(EventType::Disconnected));
  ASSERT_EQ(server.send(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{.id = asked.id}), 0);
  EXPECT_EQ(client.event().event, static_cast<unsigned>(EventType::Disconnected));
}

TEST_F(CmFileTest, an_identifier_moves_to_another_channel_with_its_events) {
  Channel first;
  Channel second;
  first.never_wait();
  FileTable::instance().install(first.fd, first.file);
  const std::uint32_t id = first.create();
  ASSERT_EQ(first.resolve(id, ipv4("127.0.0.1", 9)), 0);
  rdma_ucm_migrate_resp answer{};
  rdma_ucm_migrate_id command{
      .response = test::address_of(&answer), .id = id, .fd = static_cast<std::uint32_t>(first.fd)};
  ASSERT_EQ(second.send(RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), 0);
  EXPECT_EQ(answer.events_reported, 0U);
  EXPECT_FALSE(first.readable());
  EXPECT_EQ(second.event().event, static_cast<unsigned>(EventType::AddrResolved));
  EXPECT_EQ(first.destroy(id), -EINVAL);
  EXPECT_EQ(second.destroy(id), 0);
  command.fd = 0xffff;
  EXPECT_EQ(second.send(RDMA_USER_CM_CMD_MIGRATE_ID, command, sizeof answer), -ENOENT);
  FileTable::instance().remove(first.fd);
}

TEST_F(CmFileTest, a_channel_that_closes_ends_its_connections) {
  Channel server;
  std::uint16_t port = 0;
  listener(server, port);
  std::optional<Channel> client(std::in_place);
  connecting(*client, port);
  const auto asked = server.event();
  rdma_ucm_accept accept{};
  accept.id = asked.id;
  accept.uid = 8;
  accept.conn_param.valid = 1;
  ASSERT_EQ(server.send(RDMA_USER_CM_CMD_ACCEPT, accept), 0);
  client->event();
  client.reset();
  EXPECT_EQ(server.event().event, static_cast<unsigned>(EventType::Rejected)) << "before the last word";
}

TEST_F(CmFileTest, a_group_has_a_number_and_events_of_its_own) {
  Channel channel;
  channel.never_wait();
  const std::uint32_t id = channel.create(RDMA_PS_UDP);
  ASSERT_EQ(channel.bind(id, ipv4("127.0.0.1", 0)), 0);
  rdma_ucm_create_id_resp answer{};
  rdma_ucm_join_mcast join{};
  const sockaddr_in group = ipv4("230.0.0.1", 0);
  join.response = test::address_of(&answer);
  join.uid = 77;
  join.id = id;
  join.addr_size = sizeof group;
  std::memcpy(&join.addr, &group, sizeof group);
  join.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_JOIN_MCAST, join, sizeof answer), -EINVAL);
  join.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
  ASSERT_EQ(channel.send(RDMA_USER_CM_CMD_JOIN_MCAST, join, sizeof answer), 0);
  const auto joined = channel.event();
  EXPECT_EQ(joined.event, static_cast<unsigned>(EventType::MulticastJoin));
  EXPECT_EQ(joined.uid, 77U);
  EXPECT_EQ(joined.id, answer.id);
  EXPECT_EQ(joined.param.ud.qp_num, 0xff'ffffU);

  ASSERT_EQ(channel.send(RDMA_USER_CM_CMD_JOIN_MCAST, join, sizeof answer), 0);
  EXPECT_NE(answer.id, joined.id);
  const auto leave = [&](std::uint32_t number) {
    rdma_ucm_destroy_id_resp left{};
    rdma_ucm_destroy_id command{};
    command.response = test::address_of(&left);
    command.id = number;
    const ssize_t error = channel.send(RDMA_USER_CM_CMD_LEAVE_MCAST, command, sizeof left);
    return error != 0 ? error : static_cast<ssize_t>(left.events_reported);
  };
  EXPECT_EQ(leave(answer.id), 0) << "its event was not read, and never will be";
  EXPECT_FALSE(channel.readable());
  EXPECT_EQ(leave(joined.id), 1);
  EXPECT_EQ(leave(joined.id), -ENOENT);
}

// Under the NIC's lock nobody may store to a doorbell page that the NIC has closed: only the NIC opens it.
TEST_F(CmFileTest, a_doorbell_page_is_no_place_for_answers) {
  const int memory = memfd_create("doorbells", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(memory, 4096), 0);
  const auto map = [memory] { return mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0); };
  void* const registers = map();
  void* const page = map();
  close(memory);
  const auto nic = share_nic();
  const auto uar = nic->add_uar(static_cast<std::byte*>(registers));
  ASSERT_TRUE(uar);
  nic->uar_mapped(*uar, page);
  Channel channel;
  const std::uint32_t id = channel.create(RDMA_PS_UDP);
  usleep(50'000);  // the NIC sleeps

  rdma_ucm_create_id create{};
  create.response = test::address_of(page);
  create.ps = RDMA_PS_TCP;
  EXPECT_EQ(channel.send(RDMA_USER_CM_CMD_CREATE_ID, create, sizeof(rdma_ucm_create_id_resp)), -EFAULT);
  EXPECT_EQ(channel.resolve(id, ipv4("127.0.0.1", 4000)), 0);
  EXPECT_TRUE(channel.readable());
  EXPECT_EQ(channel.try_event(test::address_of(page)), -EFAULT);
  EXPECT_TRUE(channel.readable()) << "the event waits still";
  EXPECT_EQ(channel.event().event, static_cast<unsigned>(EventType::AddrResolved));
  EXPECT_FALSE(channel.readable());

  nic->remove_uar(*uar);
  munmap(page, 4096);
  munmap(registers, 4096);
}

TEST_F(CmFileTest, options_are_those_of_the_kernel) {
  Channel channel;
  const std::uint32_t id = channel.create();
  const auto set = [&](std::uint32_t level, std::uint32_t option, std::uint32_t size) {
    static const int kValue = 20;
    rdma_ucm_set_option command{};
    command.optval = test::address_of(&kValue);
    command.id = id;
    command.level = level;
    command.optname = option;
    command.optlen = size;
    return channel.send(RDMA_USER_CM_CMD_SET_OPTION, command);
  };
  EXPECT_EQ(set(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 1), 0);
  EXPECT_EQ(set(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 1), 0);
  EXPECT_EQ(set(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 4), 0);
  EXPECT_EQ(set(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 4), 0);
  EXPECT_EQ(set(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 1), -EINVAL);
  EXPECT_EQ(set(RDMA_OPTION_ID, 77, 4), -ENOSYS);
  EXPECT_EQ(set(77, 0, 4), -ENOSYS);
  EXPECT_EQ(set(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, 3), -EINVAL);
}

}  // namespace
}  // namespace qpair::softnic::driver
