#pragma once
// Changing and asking for a queue pair's attributes: between the uapi structures and libibverbs' ibv_qp_attr,
// which is what the NIC takes.

#include <rdma/ib_user_verbs.h>

#include "softnic/driver/context.hpp"

namespace qpair::softnic::driver {

inline constexpr std::uint32_t kStandardAttributes = (1U << 21) - 1;  // IB_QP_ATTR_STANDARD_BITS
inline constexpr std::uint32_t kRateLimitAttribute = 1U << 25;        // IB_QP_RATE_LIMIT

ibv_ah_attr address_of(const ib_uverbs_ah_attr& attributes);

int modify_qp(Context& context, const QpObject& qp, const ib_uverbs_ex_modify_qp& command);
int modify_qp_driver(const QpObject& qp, const DriverData& driver);
int query_qp(Context& context, const QpObject& qp, ib_uverbs_query_qp_resp& answer);

}  // namespace qpair::softnic::driver
