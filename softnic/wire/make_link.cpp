#include "softnic/wire/make_link.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "softnic/explain/explain.hpp"
#include "softnic/wire/address.hpp"
#include "softnic/wire/capture.hpp"
#include "softnic/wire/fault_injector.hpp"
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

Faults faults_of(const NicConfig& config) {
  return {
      .drop = config.loss,
      .duplicate = config.duplicate,
      .reorder = config.reorder,
      .corrupt = config.corrupt,
      .delay = config.delay,
      .seed = config.seed,
  };
}

std::uint64_t seed_from_clock() {
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) % 1'000'000;
}

// Says what the network does, and with which seed, so that the run can be repeated.
std::unique_ptr<Link> with_faults(std::unique_ptr<Link> inner, const NicConfig& config) {
  Faults faults = faults_of(config);
  if (!faults.any()) {
    return inner;
  }
  if (faults.seed == 0) {
    faults.seed = seed_from_clock();
  }
  explain::say(
      explain::Kind::Notice,
      fmt::format("packets from {} are lost {:g}%, duplicated {:g}%, reordered {:g}%, corrupted {:g}%, "
                  "delayed {:g} us; "
                  "seed {} repeats this",
                  to_string(inner->local()), 100 * faults.drop, 100 * faults.duplicate, 100 * faults.reorder,
                  100 * faults.corrupt, static_cast<double>(faults.delay.count()) / 1000, faults.seed));
  return std::make_unique<FaultInjector>(std::move(inner), faults);
}

// A capture that cannot be made is worth a sentence, not the program's failure.
std::unique_ptr<Link> with_capture(std::unique_ptr<Link> inner, const NicConfig& config) {
  if (config.capture.empty()) {
    return inner;
  }
  auto file = CaptureFile::open(config.capture, inner->local());
  if (!file) {
    explain::say(explain::Kind::Notice, file.error());
    return inner;
  }
  return std::make_unique<Capture>(std::move(inner), *std::move(file));
}

}  // namespace

tl::expected<MadeLink, std::string> make_link(const NicConfig& config, std::size_t shown) {
  auto udp = open_udp(config);
  if (!udp) {
    return tl::unexpected(std::move(udp.error()));
  }
  auto loopback = std::make_unique<LoopbackLink>((*udp)->local());
  std::unique_ptr<SharedMemoryLink> host;
  if (config.wire != NicConfig::Wire::Udp) {
    host = SharedMemoryLink::open((*udp)->local(), shown);
  }
  MadeLink made;
  if (config.wire == NicConfig::Wire::Auto && config.capture.empty() && config.trace.empty() &&
      !faults_of(config).any()) {
    made.host = host.get();
  }
  made.link = std::make_unique<RoutingLink>(std::move(loopback), std::move(host), std::move(*udp));
  // The capture is nearer to the network: it shows what was really sent.
  made.link = with_faults(with_capture(std::move(made.link), config), config);
  return made;
}

}  // namespace qpair::softnic::wire
