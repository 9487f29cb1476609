#pragma once
// All of qpair.
//
//   auto domain = qpair::RdmaDomain::create();                       // the first RDMA device
//   auto memory = domain->allocate(1 << 20);                         // registered memory
//   auto qp     = qpair::RdmaQueuePair::create(*domain, {});         // RESET
//   auto peer   = qpair::exchange_qp_info(socket, *qp->get_qp_info());
//   qp->connect(*peer);                                              // RTS
//   auto theirs = qpair::exchange_value(socket, memory->buffer());   // keys and address of the peer's memory
//   qp->put(memory->buffer(), *theirs);                              // write into it
//   while (auto wc = qp->poll_send_completion()) if (*wc) break;     // …and know that it is there

#include "qpair/completion.hpp"
#include "qpair/config.hpp"
#include "qpair/device.hpp"
#include "qpair/domain.hpp"
#include "qpair/error.hpp"
#include "qpair/exchange.hpp"
#include "qpair/memory.hpp"
#include "qpair/named.hpp"
#include "qpair/print.hpp"
#include "qpair/queue_pair.hpp"
#include "qpair/result.hpp"
#include "qpair/serialize.hpp"
