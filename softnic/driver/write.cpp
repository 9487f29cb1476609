#include "softnic/driver/write.hpp"

#include <rdma/ib_user_verbs.h>

#include <cerrno>

#include "softnic/driver/write_commands.hpp"

// ib_uverbs_write() and verify_hdr() in the kernel's drivers/infiniband/core/uverbs_main.c.
namespace qpair::softnic::driver {
namespace {

int verify_plain(ib_uverbs_cmd_hdr& header, std::size_t size, const WriteMethod& method) {
  if (std::size_t{header.in_words} * 4 != size) return -EINVAL;
  if (size < method.request_size + sizeof header) {
    // rdma-core 18 and 19 send a DESTROY_CQ that is 8 bytes short.
    if (header.command == IB_USER_VERBS_CMD_DESTROY_CQ && size == 16) {
      header.in_words = 6;
      return 0;
    }
    return -ENOSPC;
  }
  return std::size_t{header.out_words} * 4 < method.response_size ? -ENOSPC : 0;
}

int verify_extended(const ib_uverbs_cmd_hdr& header, const ib_uverbs_ex_cmd_hdr& extension,
                    std::size_t payload, const WriteMethod& method) {
  if ((std::size_t{header.in_words} + extension.provider_in_words) * 8 != payload) return -EINVAL;
  if (std::size_t{header.in_words} * 8 < method.request_size) return -ENOSPC;
  if (extension.cmd_hdr_reserved != 0) return -EINVAL;
  const bool wants_answer = header.out_words != 0 || extension.provider_out_words != 0;
  if ((extension.response != 0) != wants_answer) return -EINVAL;
  if (wants_answer && std::size_t{header.out_words} * 8 < method.response_size) return -ENOSPC;
  return 0;
}

int open_plain(const ib_uverbs_cmd_hdr& header, std::uint64_t payload, const WriteMethod& method,
               WriteCall& call) {
  const std::size_t in_size = std::size_t{header.in_words} * 4 - sizeof header;
  const std::size_t out_size = std::size_t{header.out_words} * 4;
  call.in = {.address = payload, .size = in_size};
  if (method.has_driver_data && in_size >= method.request_size) {
    call.in.size = method.request_size;
    call.driver.in = {.address = payload + method.request_size, .size = in_size - method.request_size};
  }
  if (!method.has_response) return 0;
  std::uint64_t response = 0;
  if (!copy_from_user(&response, payload, sizeof response)) return -EFAULT;
  call.out = {.address = response, .size = out_size};
  if (method.has_driver_data) {
    call.out.size = method.response_size;
    call.driver.out = {.address = response + method.response_size, .size = out_size - method.response_size};
  }
  return 0;
}

void open_extended(const ib_uverbs_cmd_hdr& header, const ib_uverbs_ex_cmd_hdr& extension,
                   std::uint64_t payload, WriteCall& call) {
  call.in = {.address = payload, .size = std::size_t{header.in_words} * 8};
  call.out = {.address = extension.response, .size = std::size_t{header.out_words} * 8};
  call.driver.in = {.address = payload + call.in.size, .size = std::size_t{extension.provider_in_words} * 8};
  call.driver.out = {.address = extension.response + call.out.size,
                     .size = std::size_t{extension.provider_out_words} * 8};
}

}  // namespace

ssize_t write_command(Context& context, const void* bytes, std::size_t size) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(bytes);
  ib_uverbs_cmd_hdr header{};
  if (size < sizeof header) return -EINVAL;
  if (!copy_from_user(&header, address, sizeof header)) return -EFAULT;
  int failure = 0;
  const WriteMethod* const method = find_write_method(header.command, failure);
  if (method == nullptr) return failure;

  WriteCall call;
  if (method->extended) {
    ib_uverbs_ex_cmd_hdr extension{};
    if (size < sizeof header + sizeof extension) return -EINVAL;
    if (!copy_from_user(&extension, address + sizeof header, sizeof extension)) return -EFAULT;
    const std::size_t envelope = sizeof header + sizeof extension;
    failure = verify_extended(header, extension, size - envelope, *method);
    if (failure != 0) return failure;
    open_extended(header, extension, address + envelope, call);
  } else {
    failure = verify_plain(header, size, *method);
    if (failure == 0) failure = open_plain(header, address + sizeof header, *method, call);
    if (failure != 0) return failure;
  }
  failure = run(*method, context, call);
  return failure != 0 ? failure : static_cast<ssize_t>(size);
}

}  // namespace qpair::softnic::driver
