#pragma once
// Owners for the objects of libibverbs. What fails to be destroyed at the end of its life stays with the
// kernel, which frees it when the context is closed: there is no one to tell.

#include <infiniband/verbs.h>

#include <memory>

namespace qpair::detail {

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const noexcept {
    static_cast<void>(destroy(handle));
  }
};

using ContextHandle = std::unique_ptr<ibv_context, Destroy<ibv_close_device>>;
using PdHandle = std::unique_ptr<ibv_pd, Destroy<ibv_dealloc_pd>>;
using CqHandle = std::unique_ptr<ibv_cq, Destroy<ibv_destroy_cq>>;
using QpHandle = std::unique_ptr<ibv_qp, Destroy<ibv_destroy_qp>>;
using ChannelHandle = std::unique_ptr<ibv_comp_channel, Destroy<ibv_destroy_comp_channel>>;

struct DestroyThreadDomain {  // an inline function of verbs.h cannot be a template argument under every
                              // compiler
  void operator()(ibv_td* td) const noexcept { static_cast<void>(ibv_dealloc_td(td)); }
};
using ThreadDomainHandle = std::unique_ptr<ibv_td, DestroyThreadDomain>;

}  // namespace qpair::detail
