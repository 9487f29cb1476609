#pragma once
// What the handles of one RdmaDomain share.

#include <utility>

#include "src/handles.hpp"

namespace qpair::detail {

class DomainState {
 public:
  DomainState(ContextHandle context, PdHandle pd) : context_(std::move(context)), pd_(std::move(pd)) {}

  [[nodiscard]] ibv_context* context() const { return context_.get(); }
  [[nodiscard]] ibv_pd* pd() const { return pd_.get(); }

 private:
  ContextHandle context_;  // declared first: closed last
  PdHandle pd_;
};

}  // namespace qpair::detail
