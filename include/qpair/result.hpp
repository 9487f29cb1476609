#pragma once
// How a function of qpair says that it could not do what was asked: by value, never by exception.

#include <tl/expected.hpp>

#include "qpair/error.hpp"

namespace qpair {

// Either a value or the Error that says why there is none.
//
//   Result<RdmaDomain> domain = RdmaDomain::create(device);
//   if (!domain) return fail(domain.error().message());
//   domain->pd();
template <typename T>
using Result = tl::expected<T, Error>;

}  // namespace qpair
