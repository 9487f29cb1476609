#include "top_report.hpp"

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "softnic/wire/address.hpp"
#include "table.hpp"

namespace qpair::tool {
namespace {

using nlohmann::json;
using softnic::observe::Counters;
using softnic::observe::NicReading;
using softnic::observe::QueuePairIdentity;
using softnic::observe::QueuePairReading;

constexpr double kShortestTime = 1e-3;  // s; what is younger shows no million a second

std::string_view type_name(std::uint8_t type) {
  switch (type) {
    case IBV_QPT_RC:
      return "RC";
    case IBV_QPT_UC:
      return "UC";
    case IBV_QPT_UD:
      return "UD";
    case IBV_QPT_RAW_PACKET:
      return "raw packet";
    case IBV_QPT_XRC_SEND:
      return "XRC send";
    case IBV_QPT_XRC_RECV:
      return "XRC receive";
    case IBV_QPT_DRIVER:
      return "DC";
    default:
      return "?";
  }
}

std::string_view state_name(std::uint8_t state) {
  constexpr std::array<std::string_view, 7> kNames{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state < kNames.size() ? kNames[state] : "?";
}

bool has_peer(std::uint8_t type) {
  return type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV;
}

Rates rates_of(const Counters& before, const Counters& now, double seconds) {
  const auto rate = [seconds](std::uint64_t from, std::uint64_t to) {
    return to <= from ? 0 : static_cast<double>(to - from) / seconds;
  };
  return {rate(before.send_wqes, now.send_wqes), rate(before.bytes_sent, now.bytes_sent),
          rate(before.bytes_received, now.bytes_received), rate(before.packets_sent, now.packets_sent),
          rate(before.packets_received, now.packets_received)};
}

const NicReading* same_nic(const NicsReading& reading, const NicReading& nic) {
  for (const NicReading& other : reading.nics) {
    if (other.pid == nic.pid && other.inode == nic.inode) return &other;
  }
  return nullptr;
}

Counters earlier(const NicReading* nic, std::uint32_t qpn) {
  if (nic == nullptr) return {};
  for (const QueuePairReading& other : nic->listed) {
    if (other.who.qpn == qpn) return other.counters;
  }
  return {};
}

std::string who_text(const QueuePairIdentity& who) {
  const std::string peer =
      has_peer(who.type) && who.peer_qpn != 0 ? fmt::format(" → {:#x}", who.peer_qpn) : "";
  return fmt::format("  {} {:#x}{} {}", type_name(who.type), who.qpn, peer, state_name(who.state));
}

void add_row(Table& table, std::string name, std::string queue_pairs, const Rates& rates,
             const Counters& counters) {
  table.add({std::move(name), std::move(queue_pairs), short_number(rates.wqes),
             short_number(rates.bytes_sent), short_number(rates.bytes_received),
             short_number(rates.packets()), std::to_string(counters.retransmitted_packets),
             std::to_string(counters.rnr_nak_retry_err), std::to_string(errors(counters))});
}

// How many queue pairs of each NIC there is room for.
std::size_t room_for_queue_pairs(const std::vector<NicReport>& nics, std::size_t lines) {
  constexpr std::size_t kAround = 2;  // the heading, and what is said of the rest
  const std::size_t taken = kAround + 2 * nics.size();
  return nics.empty() || lines <= taken ? 0 : (lines - taken) / nics.size();
}

void add_nic(Table& table, const NicReport& nic, std::size_t room) {
  add_row(table,
          fmt::format("{} {} {}", nic.reading.pid, nic.reading.process,
                      softnic::wire::to_string(nic.reading.address)),
          std::to_string(nic.reading.queue_pairs), nic.rates, nic.reading.totals);
  const std::size_t shown = std::min(room, nic.queue_pairs.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const QueuePairReport& qp = nic.queue_pairs[i];
    add_row(table, who_text(qp.reading.who), "", qp.rates, qp.reading.counters);
  }
  const std::uint64_t rest =
      nic.reading.queue_pairs - std::min<std::uint64_t>(shown, nic.reading.queue_pairs);
  if (rest != 0 && room != 0) {
    table.add({fmt::format("  and {} more", rest), "", "", "", "", "", "", "", ""});
  }
}

json json_of(const Rates& rates) {
  return {{"wqes_per_second", rates.wqes},
          {"bytes_sent_per_second", rates.bytes_sent},
          {"bytes_received_per_second", rates.bytes_received},
          {"packets_sent_per_second", rates.packets_sent},
          {"packets_received_per_second", rates.packets_received}};
}

json json_of(const Counters& counters) {
  json result{{"packets_sent", counters.packets_sent},
              {"packets_received", counters.packets_received},
              {"bytes_sent", counters.bytes_sent},
              {"bytes_received", counters.bytes_received},
              {"multicast_packets_sent", counters.multicast_packets_sent},
              {"multicast_packets_received", counters.multicast_packets_received},
              {"send_wqes", counters.send_wqes},
              {"receive_wqes", counters.receive_wqes},
              {"retransmitted_packets", counters.retransmitted_packets}};
  for (const auto& file : softnic::observe::kHardwareCounters) {
    if (file.value != nullptr) result[std::string(file.name)] = file.value(counters);
  }
  return result;
}

json json_of(const NicReport& nic) {
  json queue_pairs = json::array();
  for (const QueuePairReport& qp : nic.queue_pairs) {
    const QueuePairIdentity& who = qp.reading.who;
    queue_pairs.push_back({{"qpn", who.qpn},
                           {"type", type_name(who.type)},
                           {"state", state_name(who.state)},
                           {"peer_qpn", has_peer(who.type) ? json(who.peer_qpn) : json(nullptr)},
                           {"rates", json_of(qp.rates)},
                           {"counters", json_of(qp.reading.counters)}});
  }
  return {{"pid", nic.reading.pid},
          {"process", nic.reading.process},
          {"address", softnic::wire::to_string(nic.reading.address)},
          {"started_ns", nic.reading.started},
          {"queue_pairs", nic.reading.queue_pairs},
          {"unlisted_queue_pairs", nic.reading.unlisted_queue_pairs},
          {"rates", json_of(nic.rates)},
          {"counters", json_of(nic.reading.totals)},
          {"unlisted_counters", json_of(nic.reading.unlisted)},
          {"listed", std::move(queue_pairs)}};
}

}  // namespace

NicsReading read_nics(pid_t pid) {
  return {std::chrono::system_clock::now(), softnic::observe::running_nics(pid)};
}

std::vector<NicReport> compare(const NicsReading& before, const NicsReading& now) {
  std::vector<NicReport> reports;
  for (const NicReading& nic : now.nics) {
    const std::chrono::system_clock::time_point made{
        std::chrono::duration_cast<std::chrono::system_clock::duration>(
            std::chrono::nanoseconds(static_cast<std::int64_t>(nic.started)))};
    const std::chrono::duration<double> time = now.when - std::max(before.when, made);
    const double seconds = std::max(time.count(), kShortestTime);
    const NicReading* const old = same_nic(before, nic);
    NicReport report{nic, rates_of(old != nullptr ? old->totals : Counters{}, nic.totals, seconds), {}};
    for (const QueuePairReading& qp : nic.listed) {
      report.queue_pairs.push_back({qp, rates_of(earlier(old, qp.who.qpn), qp.counters, seconds)});
    }
    std::ranges::stable_sort(report.queue_pairs, [](const auto& left, const auto& right) {
      return left.rates.packets() + left.rates.wqes > right.rates.packets() + right.rates.wqes;
    });
    reports.push_back(std::move(report));
  }
  return reports;
}

std::string top_text(const std::vector<NicReport>& nics, std::size_t lines) {
  if (nics.empty()) return "No emulated NIC is running. `qpair run -- PROGRAM` starts one.\n";
  Table table({"PROCESS", "QPs", "WQE/s", "TX B/s", "RX B/s", "PKT/s", "RETX", "RNR", "ERR"});
  const std::size_t room = room_for_queue_pairs(nics, lines);
  const std::size_t shown = std::min(nics.size(), lines > 2 ? lines - 2 : 1);
  for (std::size_t i = 0; i < shown; ++i) add_nic(table, nics[i], room);
  std::string text = table.to_string();
  if (shown < nics.size()) text += fmt::format("and {} more NICs\n", nics.size() - shown);
  return text;
}

json top_json(const std::vector<NicReport>& nics, std::chrono::duration<double> interval) {
  json list = json::array();
  for (const NicReport& nic : nics) list.push_back(json_of(nic));
  return {{"interval_seconds", interval.count()}, {"nics", std::move(list)}};
}

std::string short_number(double value) {
  constexpr std::array kUnits{"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}f}{}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

}  // namespace qpair::tool
