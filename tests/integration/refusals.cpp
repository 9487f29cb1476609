// Verbs that are refused: the kernel's errno, and a sentence where the errno alone leaves a person wondering.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <ostream>

#include "tests/support/by_hand.hpp"

namespace {

using namespace qpair::by_hand;
using testing::HasSubstr;

struct Refusal {
  const char* name;
  std::function<int()> ask;  // the errno; 0: granted
  int error;
  const char* sentence;  // part of it
};
std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
  return out << refusal.name;
}

// What a call that returns a pointer came to.
template <typename T>
int error_of(T* made) {
  return made == nullptr ? errno : 0;
}

ibv_context* context() {
  return Device::get().context;
}
ibv_pd* domain() {
  return Device::get().pd;
}

int reg_mr(int access, std::size_t length = 4096) {
  static std::byte memory[4096];
  return error_of(ibv_reg_mr(domain(), memory, length, access));
}

int create_qp(const std::function<void(ibv_qp_init_attr_ex&)>& change) {
  const HandQp neighbour;
  ibv_qp_init_attr_ex attributes{};
  attributes.send_cq = attributes.recv_cq = neighbour.send_cq();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {1, 1, 1, 1, 0};
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
  attributes.pd = domain();
  change(attributes);
  return error_of(ibv_create_qp_ex(context(), &attributes));
}

int modify(int mask, const std::function<void(ibv_qp_attr&)>& change) {
  const HandQp qp;
  qp.to_init();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.sgid_index = 3;
  attributes.ah_attr.grh.dgid = Device::get().gid;
  change(attributes);
  constexpr int kToRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return ibv_modify_qp(qp.verbs(), &attributes, mask == 0 ? kToRtr : mask);
}

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all{
      {"remote_write_without_local_write", [] { return reg_mr(IBV_ACCESS_REMOTE_WRITE); }, EINVAL,
       "ibv_reg_mr: access 0x2 lets peers write or do atomics, which needs IBV_ACCESS_LOCAL_WRITE too"},
      {"empty_region", [] { return reg_mr(IBV_ACCESS_LOCAL_WRITE, 0); }, EINVAL,
       "ibv_reg_mr: a memory region of 0 bytes"},
      {"region_that_is_not_mapped",
       [] {
         void* const at = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
         munmap(static_cast<std::byte*>(at) + 4096, 4096);
         const int error = error_of(ibv_reg_mr(domain(), at, 8192, 0));
         munmap(at, 4096);
         return error;
       },
       EFAULT, "is mapped"},
      {"region_with_a_doorbell_page",
       [] {
         const HandQp qp;
         auto* const page = reinterpret_cast<std::byte*>(
             reinterpret_cast<std::uintptr_t>(qp.doorbell_register()) & ~std::uintptr_t{4095});
         return error_of(ibv_reg_mr(domain(), page + 64, 64, IBV_ACCESS_LOCAL_WRITE));
       },
       EFAULT, "ibv_reg_mr: one of the device's doorbell pages lies in "},
      {"empty_region_at_a_doorbell_page",
       [] {
         const HandQp qp;
         return error_of(ibv_reg_mr(domain(), const_cast<void*>(qp.doorbell_register()), 0, 0));
       },
       EINVAL, "ibv_reg_mr: a memory region of 0 bytes"},
      {"region_and_iova_at_different_places",
       [] {
         static std::byte memory[4096];
         return error_of(
             ibv_reg_mr_iova(domain(), memory, 64, reinterpret_cast<std::uint64_t>(memory) + 8, 0));
       },
       EINVAL, "lie at different places of their pages"},
      {"descriptor_that_is_no_dma_buf",
       [] { return error_of(ibv_reg_dmabuf_mr(domain(), 0, 4096, 0, 2, 0)); }, EINVAL,
       "ibv_reg_dmabuf_mr: descriptor 2 is not a dma-buf"},
      {"completion_queue_of_too_many_entries",
       [] {
         ibv_device_attr limits{};
         ibv_query_device(context(), &limits);
         // libmlx5 checks against a limit of its own first, which is larger.
         return error_of(ibv_create_cq(context(), limits.max_cqe + 1, nullptr, nullptr, 0));
       },
       EINVAL, "ibv_create_cq: "},
      {"completion_vector_that_is_not_there",
       [] { return error_of(ibv_create_cq(context(), 16, nullptr, nullptr, 0x7000)); }, EINVAL,
       "ibv_create_cq: completion vector 28672; the device has 0 to "},
      {"raw_packet_queue_pair",
       [] { return create_qp([](ibv_qp_init_attr_ex& asked) { asked.qp_type = IBV_QPT_RAW_PACKET; }); },
       EOPNOTSUPP, "Raw packet queue pairs: not supported by the emulated NIC"},
      {"domain_in_use",
       [] {
         ibv_pd* const pd = ibv_alloc_pd(context());
         int error = 0;
         {
           const Registered memory(4096, 0, pd);
           error = ibv_dealloc_pd(pd);
         }
         ibv_dealloc_pd(pd);
         return error;
       },
       EBUSY, "A protection domain cannot be destroyed: 1 objects that were made with it are still there"},
      {"transition_without_an_attribute", [] { return modify(IBV_QP_STATE, [](ibv_qp_attr&) {}); }, EINVAL,
       ": modify_qp refused: "},
      {"address_without_a_gid", [] { return modify(0, [](ibv_qp_attr& to) { to.ah_attr.is_global = 0; }); },
       EINVAL, "ibv_modify_qp: the address vector needs port 1, is_global = 1 and a sgid_index"},
      {"mtu_that_does_not_exist",
       [] { return modify(0, [](ibv_qp_attr& to) { to.path_mtu = static_cast<ibv_mtu>(7); }); }, EINVAL,
       "ibv_modify_qp: path_mtu is 7; it is not one of enum ibv_mtu"},
      {"port_that_does_not_exist",
       [] {
         const HandQp qp;
         ibv_qp_attr attributes{};
         attributes.qp_state = IBV_QPS_INIT;
         attributes.port_num = 2;
         return ibv_modify_qp(qp.verbs(), &attributes,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
       },
       EINVAL, "port_num is 2; the device has port 1"},
  };
  return all;
}

class Refusals : public testing::TestWithParam<Refusal> {};

TEST_P(Refusals, has_the_kernels_errno_and_a_sentence) {
  Device::get();
  testing::internal::CaptureStderr();
  const int error = GetParam().ask();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(GetParam().sentence));
  EXPECT_EQ(error, GetParam().error) << strerror(error);
}

INSTANTIATE_TEST_SUITE_P(every, Refusals, testing::ValuesIn(refusals()),
                         [](const auto& refusal) { return refusal.param.name; });

}  // namespace
