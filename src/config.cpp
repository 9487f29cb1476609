#include "qpair/config.hpp"

#include <fmt/format.h>

namespace qpair {

namespace {

// "max_send_wr is 40000; this device allows 1 to 32768"
std::optional<Error> out_of_range(std::string_view field, std::uint64_t value, std::uint64_t least,
                                  std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return Error::make(ErrorCode::invalid_argument,
                     fmt::format("{} is {}; this device allows {} to {}", field, value, least, most));
}

std::uint64_t positive(int limit) {
  return limit > 0 ? static_cast<std::uint64_t>(limit) : 0;
}

}  // namespace

Result<void> validate(const IbverbsConfig& config, const DeviceLimits& limits) {
  const ibv_device_attr& device = limits.device;
  const ibv_port_attr& port = limits.port;
  struct Field {
    std::string_view name;
    std::uint64_t value;
    std::uint64_t least;
    std::uint64_t most;
  };
  const Field fields[] = {
      {"port_num", config.port_num, 1, device.phys_port_cnt},
      // 0 is automatic.
      {"cq_entries", config.cq_entries, 0, positive(device.max_cqe)},
      {"max_send_wr", config.max_send_wr, 1, positive(device.max_qp_wr)},
      {"max_recv_wr", config.max_recv_wr, 1, positive(device.max_qp_wr)},
      {"max_send_sge", config.max_send_sge, 1, positive(device.max_sge)},
      {"max_recv_sge", config.max_recv_sge, 1, positive(device.max_sge)},
      {"retry_cnt", config.retry_cnt, 0, 7},
      {"rnr_retry", config.rnr_retry, 0, 7},
      {"qp_timeout", config.qp_timeout, 0, 31},
      {"min_rnr_timer", config.min_rnr_timer, 0, 31},
      {"max_dest_rd_atomic", config.max_dest_rd_atomic.value_or(0), 0, positive(device.max_qp_rd_atom)},
      {"max_rd_atomic", config.max_rd_atomic.value_or(0), 0, positive(device.max_qp_init_rd_atom)},
      {"psn", config.psn.value_or(0), 0, 0xffffff},
      {"pkey_index", config.pkey_index, 0, port.pkey_tbl_len > 0 ? port.pkey_tbl_len - 1U : 0},
  };
  for (const Field& field : fields) {
    if (std::optional<Error> error = out_of_range(field.name, field.value, field.least, field.most)) {
      return tl::unexpected(*error);
    }
  }
  if (config.threads != Threads::One && config.threads != Threads::Many) {
    return tl::unexpected(Error::make(
        ErrorCode::invalid_argument,
        fmt::format("threads is {}; it is One (0) or Many (1)", static_cast<unsigned>(config.threads))));
  }
  if (config.gid_index && *config.gid_index >= positive(port.gid_tbl_len)) {
    return tl::unexpected(Error::make(ErrorCode::invalid_argument,
                                      fmt::format("gid_index is {}; port {} has a table of {} entries",
                                                  *config.gid_index, config.port_num, port.gid_tbl_len)));
  }
  if (config.path_mtu && (*config.path_mtu < IBV_MTU_256 || *config.path_mtu > port.active_mtu)) {
    return tl::unexpected(Error::make(
        ErrorCode::invalid_argument,
        fmt::format("path_mtu is {} (enum ibv_mtu); port {} allows {} ({} bytes) to {} ({} "
                    "bytes)",
                    static_cast<int>(*config.path_mtu), config.port_num, static_cast<int>(IBV_MTU_256),
                    mtu_bytes(IBV_MTU_256), static_cast<int>(port.active_mtu), mtu_bytes(port.active_mtu))));
  }
  return {};
}

std::string to_string(Threads threads) {
  return threads == Threads::Many ? "Many" : "One";
}

std::string to_string(const IbverbsConfig& config) {
  const auto chosen = [](const auto& value) {
    return value ? fmt::format("{}", *value) : std::string("automatic");
  };
  return fmt::format(
      "device {}, port {}, GID index {}, send {} x {} sge, receive {} x {} sge, inline {}, CQ entries {}, "
      "MTU {}, "
      "timeout {}, retries {}, RNR retries {}, RNR timer {}, reads {} out {} in, P_Key index {}, PSN "
      "{}{}{}{}",
      config.device.empty() ? "any" : config.device, config.port_num, chosen(config.gid_index),
      config.max_send_wr, config.max_send_sge, config.max_recv_wr, config.max_recv_sge,
      config.max_inline_data, config.cq_entries == 0 ? "automatic" : fmt::format("{}", config.cq_entries),
      config.path_mtu ? fmt::format("{}", mtu_bytes(*config.path_mtu)) : "automatic", config.qp_timeout,
      config.retry_cnt, config.rnr_retry, config.min_rnr_timer, chosen(config.max_rd_atomic),
      chosen(config.max_dest_rd_atomic), config.pkey_index, chosen(config.psn),
      config.threads == Threads::Many ? ", many threads" : "", config.use_gpu_direct ? ", GPU direct" : "",
      config.completion_events ? ", completion events" : "");
}

}  // namespace qpair
