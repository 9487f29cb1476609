#pragma once
// Which state changes a queue pair may make, and which attributes each needs and allows: IBTA vol. 1 10.3 and
// table "QP state transition properties"; the kernel's version is qp_state_table in
// drivers/infiniband/core/verbs.c.

#include <infiniband/verbs.h>

#include <string>

namespace qpair::softnic::nic {

// "IBV_QPS_RTR" without the prefix.
const char* state_name(ibv_qp_state state);

// Empty: allowed. Otherwise a sentence that names the change and the attributes that are missing or out of
// place.
std::string check_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

}  // namespace qpair::softnic::nic
