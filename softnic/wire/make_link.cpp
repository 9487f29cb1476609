#include "softnic/wire/make_link.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "softnic/wire/address.hpp"
#include "softnic/wire/loopback_link.hpp"
#include "softnic/wire/routing_link.hpp"
#include "softnic/wire/udp_link.hpp"

namespace qpair::softnic::wire {
namespace {

tl::expected<std::unique_ptr<UdpLink>, std::string> open_udp(const NicConfig& config) {
  if (!config.interface.empty()) {
    const auto local = address_of_interface(config.interface);
    if (!local) {
      return tl::unexpected(local.error());
    }
    return UdpLink::open({.local = *local});
  }
  if (!config.address.empty()) {
    const auto endpoint = parse_address(config.address);
    const auto local = endpoint ? find_local(*endpoint) : std::nullopt;
    if (!local) {
      return tl::unexpected(fmt::format("'{}' is no address of this machine", config.address));
    }
    return UdpLink::open({.local = *local});
  }
  return UdpLink::open_anywhere(static_cast<std::uint64_t>(::getpid()));
}

}  // namespace

tl::expected<std::unique_ptr<Link>, std::string> make_link(const NicConfig& config) {
  auto udp = open_udp(config);
  if (!udp) {
    return tl::unexpected(std::move(udp.error()));
  }
  auto loopback = std::make_unique<LoopbackLink>((*udp)->local());
  return std::make_unique<RoutingLink>(std::move(loopback), std::move(*udp));
}

}  // namespace qpair::softnic::wire
