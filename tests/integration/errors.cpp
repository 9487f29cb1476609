// Every (status, vendor_err) that a program can get, got: by a program that asks for the wrong thing. The
// completion, the asynchronous event at the other side and the sentence on stderr are those that
// docs/errors.md lists.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <optional>
#include <ostream>

#include "softnic/nic/completion_errors.hpp"
#include "tests/support/by_hand.hpp"

namespace {

using namespace qpair::by_hand;
using qpair::mlx5::Opcode;
using qpair::mlx5::Syndrome;
using qpair::softnic::nic::CompletionError;
using qpair::softnic::nic::CompletionSide;
using testing::HasSubstr;

struct Case {
  const char* name;
  CompletionSide side;
  Syndrome syndrome;
  unsigned vendor_err;
  ibv_wc_status status;
  std::function<ibv_wc()> provoke;
  std::vector<const char*> sentences;  // all of these are said
};
std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.name;
}

constexpr auto kSend = CompletionSide::Send;
constexpr auto kReceive = CompletionSide::Receive;

// The other side's program is told that it refused: asynchronously, since no work request of its own failed.
void expect_event(const HandQp& qp, ibv_event_type type) {
  for (;;) {
    const ibv_async_event event = next_event();
    if (event.event_type == IBV_EVENT_COMM_EST) continue;
    EXPECT_EQ(event.event_type, type) << ibv_event_type_str(event.event_type);
    EXPECT_EQ(event.element.qp, qp.verbs());
    return;
  }
}

ibv_wc post(HandPair& pair, const Wqe& wqe, std::optional<ibv_event_type> event = {}) {
  pair.a.post(wqe);
  if (event) expect_event(pair.b, *event);
  return next(pair.a.send_cq());
}

Wqe remote_of(Opcode opcode, const HandPair& pair, std::uint64_t address, std::uint32_t rkey,
              std::uint32_t length = 8) {
  return Wqe(opcode).remote(address, rkey).data(pair.local.address(), length, pair.local.lkey());
}
Wqe fetch_add(const HandPair& pair, std::uint64_t address) {
  return Wqe(Opcode::AtomicFetchAdd)
      .remote(address, pair.remote.rkey())
      .atomic(1, 0)
      .data(pair.local.address(), 8, pair.local.lkey());
}

// A message of 64 bytes for a receive of the test's own.
ibv_wc receive(const std::function<HandQp::Piece(HandPair&)>& piece) {
  HandPair pair;
  pair.b.receive({piece(pair)});
  pair.a.post(pair.send(64));
  return next(pair.b.receive_cq());
}

// A datagram that is longer than the MTU of any port.
ibv_wc long_datagram() {
  const Registered memory(8192);
  Owned<ibv_cq> cq(ibv_create_cq(Device::get().context, 16, nullptr, nullptr, 0), ibv_destroy_cq);
  ibv_qp_init_attr initial{};
  initial.send_cq = initial.recv_cq = cq.get();
  initial.qp_type = IBV_QPT_UD;
  initial.cap = {4, 4, 1, 1, 0};
  Owned<ibv_qp> qp(ibv_create_qp(Device::get().pd, &initial), ibv_destroy_qp);
  expect(qp != nullptr, "ibv_create_qp");
  ibv_qp_attr attributes{};
  attributes.port_num = 1;
  attributes.qkey = 0x11;
  attributes.qp_state = IBV_QPS_INIT;
  expect(
      ibv_modify_qp(qp.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0,
      "INIT");
  attributes.qp_state = IBV_QPS_RTR;
  expect(ibv_modify_qp(qp.get(), &attributes, IBV_QP_STATE) == 0, "RTR");
  attributes.qp_state = IBV_QPS_RTS;
  expect(ibv_modify_qp(qp.get(), &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "RTS");
  ibv_ah_attr to{};
  to.is_global = 1;
  to.port_num = 1;
  to.grh.dgid = Device::get().gid;
  to.grh.sgid_index = 3;
  Owned<ibv_ah> handle(ibv_create_ah(Device::get().pd, &to), ibv_destroy_ah);
  expect(handle != nullptr, "ibv_create_ah");
  ibv_sge piece{memory.address(), 5000, memory.lkey()};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud = {handle.get(), qp->qp_num, 0x11};
  ibv_send_wr* bad = nullptr;
  expect(ibv_post_send(qp.get(), &request, &bad) == 0, "ibv_post_send");
  return next(cq.get());
}

// A window on a region that was registered without IBV_ACCESS_MW_BIND.
ibv_wc bind_to_what_may_not_be_bound() {
  HandPair pair;
  Owned<ibv_mw> window(ibv_alloc_mw(Device::get().pd, IBV_MW_TYPE_2), ibv_dealloc_mw);
  expect(window != nullptr, "ibv_alloc_mw");
  ibv_mr* const mr = ibv_reg_mr(Device::get().pd, pair.remote.data(), 4096, IBV_ACCESS_LOCAL_WRITE);
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = window.get();
  request.bind_mw.rkey = ibv_inc_rkey(window->rkey);
  request.bind_mw.bind_info = {mr, pair.remote.address(), 4096, IBV_ACCESS_REMOTE_WRITE};
  ibv_send_wr* bad = nullptr;
  expect(ibv_post_send(pair.a.verbs(), &request, &bad) == 0, "ibv_post_send");
  const ibv_wc wc = next(pair.a.send_cq());
  ibv_dereg_mr(mr);
  return wc;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      // ---- Sends --------------------------------------------------------------------------------
      {"datagram_longer_than_the_mtu",
       kSend,
       Syndrome::LocalLength,
       0x00,
       IBV_WC_LOC_LEN_ERR,
       long_datagram,
       {"a datagram of 5000 bytes is longer than the port's MTU, which is 4096"}},
      {"message_longer_than_a_port_sends",
       kSend,
       Syndrome::LocalLength,
       0x68,
       IBV_WC_LOC_LEN_ERR,
       [] {
         HandPair pair;
         return post(pair, pair.write(0));
       },  // a byte count of 0 is 2 GiB
       {"RDMA WRITE of 2147483648 bytes; the port's limit is 1073741824"}},
      {"read_without_max_rd_atomic",
       kSend,
       Syndrome::LocalQpOperation,
       0x00,
       IBV_WC_LOC_QP_OP_ERR,
       [] {
         HandPair pair({.reads = 0});
         return post(pair, remote_of(Opcode::RdmaRead, pair, pair.remote.address(), pair.remote.rkey()));
       },
       {"RDMA READ of 8 bytes failed: max_rd_atomic is 0"}},
      {"malformed_work_request",
       kSend,
       Syndrome::LocalQpOperation,
       0x68,
       IBV_WC_LOC_QP_OP_ERR,
       [] {
         HandPair pair;
         return post(pair, Wqe(static_cast<Opcode>(0x3f)));
       },
       {"send WQE 0: opcode 0x3f (unknown opcode) does not exist"}},
      {"local_key_of_no_region",
       kSend,
       Syndrome::LocalProtection,
       0x51,
       IBV_WC_LOC_PROT_ERR,
       [] {
         HandPair pair;
         const Wqe wqe = pair.write();
         pair.local.deregister();
         return post(pair, wqe);
       },
       {"was deregistered; it covered [0x", "(65536 bytes, registered by integration-errors+0x",
        "the work request names [0x"}},
      {"local_key_of_another_domain",
       kSend,
       Syndrome::LocalProtection,
       0x51,
       IBV_WC_LOC_PROT_ERR,
       [] {
         HandPair pair;
         const Owned<ibv_pd> other(ibv_alloc_pd(Device::get().context), ibv_dealloc_pd);
         const Registered memory(4096, kAllRights, other.get());
         return post(pair, Wqe(Opcode::Send).data(memory.address(), 8, memory.lkey()));
       },
       {"(4096 bytes, registered by ", ") in protection domain ", ", the queue pair is in "}},
      {"local_page_that_is_gone",
       kSend,
       Syndrome::LocalProtection,
       0x52,
       IBV_WC_LOC_PROT_ERR,
       [] {
         HandPair pair;
         pair.local.take_away();
         return post(pair, pair.write());
       },
       {"is registered (lkey 0x", "but the program has unmapped or protected part of it"}},
      {"read_into_memory_without_local_write",
       kSend,
       Syndrome::LocalProtection,
       0x53,
       IBV_WC_LOC_PROT_ERR,
       [] {
         HandPair pair;
         const Registered sealed(4096, 0);
         return post(pair, Wqe(Opcode::RdmaRead)
                               .remote(pair.remote.address(), pair.remote.rkey())
                               .data(sealed.address(), 8, sealed.lkey()));
       },
       {"(4096 bytes, registered by ", "without local write, and data was to be stored there"}},
      {"flushed_send",
       kSend,
       Syndrome::WorkRequestFlushed,
       0xf9,
       IBV_WC_WR_FLUSH_ERR,
       [] {
         HandPair pair;
         pair.a.write(remote_of(Opcode::RdmaWrite, pair, pair.remote.address(), pair.remote.rkey() ^ 1));
         pair.a.write(pair.write());
         pair.a.ring();
         next(pair.a.send_cq());
         return next(pair.a.send_cq());
       },
       {"its low 8 bits differ"}},
      {"window_on_a_region_that_does_not_allow_it",
       kSend,
       Syndrome::MemoryWindowBind,
       0x78,
       IBV_WC_MW_BIND_ERR,
       bind_to_what_may_not_be_bound,
       {" failed: memory region 0x", "was registered without IBV_ACCESS_MW_BIND"}},
      {"read_response_of_another_mtu",
       kSend,
       Syndrome::BadResponse,
       0x00,
       IBV_WC_BAD_RESP_ERR,
       [] {
         HandPair pair({.mtu = IBV_MTU_1024}, {.mtu = IBV_MTU_256});
         return post(pair,
                     remote_of(Opcode::RdmaRead, pair, pair.remote.address(), pair.remote.rkey(), 1000));
       },
       {"a read response of 256 bytes came where 1000 were due"}},
      {"misaligned_atomic",
       kSend,
       Syndrome::RemoteInvalidRequest,
       0x8a,
       IBV_WC_REM_INV_REQ_ERR,
       [] {
         HandPair pair;
         return post(pair, fetch_add(pair, pair.remote.address() + 4), IBV_EVENT_QP_REQ_ERR);
       },
       {"FETCH_ADD of 8 bytes failed: remote side refused: an atomic at 0x", "which is not a multiple of 8"}},
      {"write_in_packets_that_the_peer_does_not_take",
       kSend,
       Syndrome::RemoteInvalidRequest,
       0x8a,
       IBV_WC_REM_INV_REQ_ERR,
       [] {
         HandPair pair({.mtu = IBV_MTU_1024}, {.mtu = IBV_MTU_256});
         return post(pair, pair.write(1000), IBV_EVENT_QP_REQ_ERR);
       },
       {"carries 1000 bytes, but this side's path MTU is 256"}},
      {"more_reads_than_the_peer_has_room_for",
       kSend,
       Syndrome::RemoteInvalidRequest,
       0x8a,
       IBV_WC_REM_INV_REQ_ERR,
       [] {
         HandPair pair({}, {.peer_reads = 0});
         return post(pair, remote_of(Opcode::RdmaRead, pair, pair.remote.address(), pair.remote.rkey()),
                     IBV_EVENT_QP_REQ_ERR);
       },
       {"1 reads and atomics are outstanding and max_dest_rd_atomic is 0"}},
      {"write_past_the_end",
       kSend,
       Syndrome::RemoteAccess,
       0x88,
       IBV_WC_REM_ACCESS_ERR,
       [] {
         HandPair pair;
         return post(pair,
                     remote_of(Opcode::RdmaWrite, pair, pair.remote.address() + 65529, pair.remote.rkey()),
                     IBV_EVENT_QP_ACCESS_ERR);
       },
       {"refused a request of its peer: rkey 0x", "(65536 bytes, registered by integration-errors+0x",
        "RDMA WRITE of 8 bytes failed: remote side refused: rkey 0x", "the peer's RDMA WRITE asked for [0x"}},
      {"write_without_the_regions_right",
       kSend,
       Syndrome::RemoteAccess,
       0x88,
       IBV_WC_REM_ACCESS_ERR,
       [] {
         HandPair pair;
         const Registered sealed(4096, IBV_ACCESS_REMOTE_READ);
         return post(pair, remote_of(Opcode::RdmaWrite, pair, sealed.address(), sealed.rkey()),
                     IBV_EVENT_QP_ACCESS_ERR);
       },
       {"without remote write (it has local read, remote read)"}},
      {"write_without_the_queue_pairs_right",
       kSend,
       Syndrome::RemoteInvalidRequest,
       0x8a,
       IBV_WC_REM_INV_REQ_ERR,
       [] {
         HandPair pair({}, {.access = IBV_ACCESS_REMOTE_READ});
         return post(pair, pair.write(), IBV_EVENT_QP_REQ_ERR);
       },
       {"the queue pair was modified to INIT without remote write (it has local read, remote read)"}},
      {"write_of_a_page_that_is_gone",
       kSend,
       Syndrome::RemoteOperation,
       0x89,
       IBV_WC_REM_OP_ERR,
       [] {
         HandPair pair;
         pair.remote.take_away();
         return post(pair, pair.write(), IBV_EVENT_QP_REQ_ERR);
       },
       {"remote side refused: [0x", "is registered (rkey 0x",
        "but its program has unmapped or protected part of it"}},
      {"peer_that_is_gone",
       kSend,
       Syndrome::TransportRetryExceeded,
       0x81,
       IBV_WC_RETRY_EXC_ERR,
       [] {
         HandPair pair({.timeout = 1, .retries = 1});
         pair.b.destroy();
         return post(pair, pair.write());
       },
       {") did not answer PSN 0x5: 1 retries of "}},
      {"no_receive_posted",
       kSend,
       Syndrome::RnrRetryExceeded,
       0x87,
       IBV_WC_RNR_RETRY_EXC_ERR,
       [] {
         HandPair pair({.rnr_retries = 1});
         return post(pair, pair.send());
       },
       {"the remote side had no receive posted and said so 2 times (rnr_retry 1)"}},
      // ---- Receives -----------------------------------------------------------------------------
      {"receive_that_is_too_short",
       kReceive,
       Syndrome::LocalLength,
       0x69,
       IBV_WC_LOC_LEN_ERR,
       [] {
         return receive([](HandPair& pair) {
           return HandQp::Piece{pair.remote.address(), 8, pair.remote.lkey()};
         });
       },
       {"receive WQE 0 of 8 bytes failed: a message of 64 bytes came for a receive of 8"}},
      {"receive_into_no_region",
       kReceive,
       Syndrome::LocalProtection,
       0x51,
       IBV_WC_LOC_PROT_ERR,
       [] {
         return receive([](HandPair& pair) {
           return HandQp::Piece{pair.remote.address(), 64, pair.remote.lkey() ^ 1};
         });
       },
       {"receive WQE 0 of 64 bytes failed: memory key 0x", "its low 8 bits differ"}},
      {"receive_into_a_page_that_is_gone",
       kReceive,
       Syndrome::LocalProtection,
       0x52,
       IBV_WC_LOC_PROT_ERR,
       [] {
         return receive([](HandPair& pair) {
           pair.remote.take_away();
           return HandQp::Piece{pair.remote.address(), 64, pair.remote.lkey()};
         });
       },
       {"receive WQE 0 of 64 bytes failed: [0x", "but the program has unmapped or protected part of it"}},
      {"receive_past_the_end",
       kReceive,
       Syndrome::LocalProtection,
       0x53,
       IBV_WC_LOC_PROT_ERR,
       [] {
         return receive([](HandPair& pair) {
           return HandQp::Piece{pair.remote.address() + 65530, 64, pair.remote.lkey()};
         });
       },
       {"receive WQE 0 of 64 bytes failed: lkey 0x", "registered by integration-errors+0x"}},
      {"flushed_receive",
       kReceive,
       Syndrome::WorkRequestFlushed,
       0xf9,
       IBV_WC_WR_FLUSH_ERR,
       [] {
         HandPair pair;
         pair.b.receive({{pair.remote.address(), 8, pair.remote.lkey()}});
         pair.a.post(remote_of(Opcode::RdmaWrite, pair, pair.remote.address(), pair.remote.rkey() ^ 1));
         expect_event(pair.b, IBV_EVENT_QP_ACCESS_ERR);
         return next(pair.b.receive_cq());
       },
       {"refused a request of its peer: memory key 0x"}},
      {"invalidation_of_a_key_that_no_peer_may_end",
       kReceive,
       Syndrome::LocalAccess,
       0x88,
       IBV_WC_LOC_ACCESS_ERR,
       [] {
         HandPair pair;
         pair.b.receive({{pair.remote.address(), 8, pair.remote.lkey()}});
         pair.a.post(Wqe(Opcode::SendInvalidate, qpair::mlx5::kCqUpdate, pair.remote.rkey())
                         .data(pair.local.address(), 8, pair.local.lkey()));
         return next(pair.b.receive_cq());
       },
       {"the peer asked to invalidate a key: 0x", "which no peer may invalidate"}},
      {"write_with_immediate_to_a_page_that_is_gone",
       kReceive,
       Syndrome::LocalAccess,
       0x89,
       IBV_WC_LOC_ACCESS_ERR,
       [] {
         HandPair pair;
         pair.b.receive({});
         const Wqe wqe = remote_of(Opcode::RdmaWriteImm, pair, pair.remote.address(), pair.remote.rkey());
         pair.remote.take_away();
         pair.a.post(wqe);
         return next(pair.b.receive_cq());
       },
       {"receive WQE 0 of 0 bytes failed: [0x", "but its program has unmapped or protected part of it"}},
  };
  return all;
}

class Errors : public testing::TestWithParam<Case> {};

TEST_P(Errors, is_told_by_status_vendor_error_event_and_sentence) {
  const Case& expected = GetParam();
  testing::internal::CaptureStderr();
  const ibv_wc wc = expected.provoke();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(wc.status, expected.status) << ibv_wc_status_str(wc.status);
  EXPECT_EQ(wc.vendor_err, expected.vendor_err);
  for (const char* sentence : expected.sentences) EXPECT_THAT(said, HasSubstr(sentence));
}

INSTANTIATE_TEST_SUITE_P(every, Errors, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

const char* name_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::LocalLength:
      return "IBV_WC_LOC_LEN_ERR";
    case Syndrome::LocalQpOperation:
      return "IBV_WC_LOC_QP_OP_ERR";
    case Syndrome::LocalProtection:
      return "IBV_WC_LOC_PROT_ERR";
    case Syndrome::WorkRequestFlushed:
      return "IBV_WC_WR_FLUSH_ERR";
    case Syndrome::MemoryWindowBind:
      return "IBV_WC_MW_BIND_ERR";
    case Syndrome::BadResponse:
      return "IBV_WC_BAD_RESP_ERR";
    case Syndrome::LocalAccess:
      return "IBV_WC_LOC_ACCESS_ERR";
    case Syndrome::RemoteInvalidRequest:
      return "IBV_WC_REM_INV_REQ_ERR";
    case Syndrome::RemoteAccess:
      return "IBV_WC_REM_ACCESS_ERR";
    case Syndrome::RemoteOperation:
      return "IBV_WC_REM_OP_ERR";
    case Syndrome::TransportRetryExceeded:
      return "IBV_WC_RETRY_EXC_ERR";
    case Syndrome::RnrRetryExceeded:
      return "IBV_WC_RNR_RETRY_EXC_ERR";
    case Syndrome::RemoteAborted:
      return "IBV_WC_REM_ABORT_ERR";
  }
  return "?";
}

// What no verbs program can provoke: a peer that breaks the transport's protocol in the middle of a message,
// and a receive WQE that changes while its message arrives. tests/unit has those.
constexpr CompletionError kNotByPrograms[] = {
    {kReceive, Syndrome::LocalQpOperation, 0x00},
    {kReceive, Syndrome::LocalQpOperation, 0x68},
};

TEST(ErrorTable, has_no_pair_that_nothing_provokes) {
  for (const CompletionError& error : qpair::softnic::nic::kCompletionErrors) {
    const bool provoked = std::ranges::any_of(cases(), [&](const Case& one) {
      return error == CompletionError{one.side, one.syndrome, static_cast<std::uint8_t>(one.vendor_err)};
    });
    const bool excused = std::ranges::find(kNotByPrograms, error) != std::end(kNotByPrograms);
    EXPECT_NE(provoked, excused) << "syndrome " << static_cast<int>(error.syndrome) << ", vendor error "
                                 << static_cast<int>(error.vendor_err);
  }
}

// docs/errors.md has a row for each: | send | `IBV_WC_…` | `0x..` | cause | remedy |
TEST(ErrorTable, is_the_table_of_the_page) {
  std::ifstream page(QPAIR_DOCS "/errors.md");
  ASSERT_TRUE(page);
  std::vector<std::string> rows;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| send | ") || line.starts_with("| receive | ")) rows.push_back(line);
  }
  EXPECT_EQ(rows.size(), qpair::softnic::nic::kCompletionErrors.size());
  for (const CompletionError& error : qpair::softnic::nic::kCompletionErrors) {
    const std::string row =
        fmt::format("| {} | `{}` | `{:#04x}` | ", error.side == kSend ? "send" : "receive",
                    name_of(error.syndrome), error.vendor_err);
    const auto described = [&](const std::string& line) { return line.starts_with(row); };
    EXPECT_TRUE(std::ranges::any_of(rows, described)) << row;
  }
}

}  // namespace
