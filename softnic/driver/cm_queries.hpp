#pragma once
// What rdma_cm says of an identifier (kernel, drivers/infiniband/core/ucma.c, ucma_query_*()).

#include <infiniband/verbs.h>
#include <rdma/rdma_user_cm.h>

#include <cstddef>

#include "softnic/cm/id.hpp"
#include "softnic/cm/manager.hpp"

namespace qpair::softnic::driver {

rdma_ucm_query_addr_resp addresses_of(const cm::Id& id, const cm::Port& port);
rdma_ucm_query_addr_resp gids_of(const cm::Id& id, const cm::Port& port);
// The older form of all three.
rdma_ucm_query_route_resp route_of(const cm::Id& id, const cm::Port& port);

// struct rdma_ucm_query_path_resp with the one path that there can be.
struct PathAnswer {
  std::uint32_t num_paths = 0;
  std::uint32_t reserved = 0;
  ib_path_rec_data path{};
  std::size_t size() const { return offsetof(PathAnswer, path) + num_paths * sizeof path; }
};
PathAnswer path_of(const cm::Id& id, const cm::Port& port);

}  // namespace qpair::softnic::driver
