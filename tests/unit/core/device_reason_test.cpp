#include "src/device_reason.hpp"

#include <gtest/gtest.h>

namespace qpair::detail {
namespace {

constexpr std::string_view kFailures =
    "0x4b queue-pair 21 0x0 now queue pair 0x4b refused a request of its peer: later\n"
    "0x4a send 10 0x88 now queue pair 0x4a, send WQE 7: the second time\n"
    "0x4a send 10 0x88 over queue pair 0x4a, send WQE 0: the first time\n"
    "0x4a receive 1 0x69 over queue pair 0x4a, receive WQE 3 of 4 bytes failed: too long\n";

IbvWc failed(std::uint32_t qp_num, ibv_wc_status status, std::uint32_t vendor_err, ibv_wc_opcode opcode) {
  IbvWc wc;
  wc.qp_num = qp_num;
  wc.status = status;
  wc.vendor_err = vendor_err;
  wc.opcode = opcode;
  return wc;
}

TEST(DeviceReason, is_the_latest_of_the_same_queue_pair_side_status_and_vendor_error) {
  EXPECT_EQ(reason_in(kFailures, failed(0x4a, IBV_WC_REM_ACCESS_ERR, 0x88, IBV_WC_RDMA_WRITE)),
            "queue pair 0x4a, send WQE 7: the second time");
  EXPECT_EQ(reason_in(kFailures, failed(0x4a, IBV_WC_LOC_LEN_ERR, 0x69, IBV_WC_RECV)),
            "queue pair 0x4a, receive WQE 3 of 4 bytes failed: too long");
}

TEST(DeviceReason, of_another_failure_is_not_taken) {
  EXPECT_EQ(reason_in(kFailures, failed(0x4c, IBV_WC_REM_ACCESS_ERR, 0x88, IBV_WC_RDMA_WRITE)), "");
  EXPECT_EQ(reason_in(kFailures, failed(0x4a, IBV_WC_REM_ACCESS_ERR, 0x89, IBV_WC_RDMA_WRITE)), "");
  EXPECT_EQ(reason_in(kFailures, failed(0x4a, IBV_WC_REM_OP_ERR, 0x88, IBV_WC_RDMA_WRITE)), "");
  EXPECT_EQ(reason_in(kFailures, failed(0x4a, IBV_WC_LOC_LEN_ERR, 0x69, IBV_WC_SEND)), "");
}

TEST(DeviceReason, of_what_was_flushed_is_that_of_the_queue_pair_in_its_present_life) {
  EXPECT_EQ(reason_in(kFailures, failed(0x4b, IBV_WC_WR_FLUSH_ERR, 0xf9, IBV_WC_SEND)),
            "queue pair 0x4b refused a request of its peer: later");
  EXPECT_EQ(reason_in("0x4a send 10 0x88 over an earlier life\n",
                      failed(0x4a, IBV_WC_WR_FLUSH_ERR, 0xf9, IBV_WC_SEND)),
            "");
}

TEST(DeviceReason, of_text_that_makes_no_sense_is_empty) {
  for (const char* text : {"", "\n", "\n\n0x4a", "0x send 10 0x88 now x\n", "0x4a send  10 0x88 now x",
                           "74a send 10 0x88 now x", "0x4a send 10"}) {
    EXPECT_EQ(reason_in(text, failed(0x4a, IBV_WC_REM_ACCESS_ERR, 0x88, IBV_WC_RDMA_WRITE)), "") << text;
  }
}

}  // namespace
}  // namespace qpair::detail
