// Moves and checks data with UCP: tagged messages, put, get, active messages and atomics between two
// processes.
//
//   ucx_transfer -p PORT            the side that is written to
//   ucx_transfer -p PORT HOST       the side that drives
//
// Worker addresses go over a TCP connection, as in UCX's own examples; which transport carries the rest is
// said by UCX_TLS, as usual.

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kSizes[] = {0, 1, 8, 100, 4096, 65536, (1U << 20) + 3};
constexpr std::size_t kWindow = 4U << 20;  // bytes that the peer puts to and gets from
constexpr unsigned kMessage = 1;           // active message
constexpr int kAdditions = 200;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "ucx_transfer: %s\n", what.c_str());
  std::_Exit(1);
}

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) fail(std::string(what) + ": " + ucs_status_string(status));
}

using Bytes = std::vector<std::uint8_t>;

Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  std::uint32_t state = seed * 2654435761U + 12345U;
  for (auto& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return bytes;
}

// ---- The TCP connection ---------------------------------------------------------------------------

void send_all(int fd, const void* from, std::size_t size) {
  const auto* at = static_cast<const char*>(from);
  while (size != 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent <= 0) fail("the TCP connection broke");
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
}

void receive_all(int fd, void* to, std::size_t size) {
  auto* at = static_cast<char*>(to);
  while (size != 0) {
    const ssize_t got = recv(fd, at, size, 0);
    if (got <= 0) fail("the TCP connection broke");
    at += got;
    size -= static_cast<std::size_t>(got);
  }
}

void send_blob(int fd, const void* from, std::size_t size) {
  const auto length = static_cast<std::uint64_t>(size);
  send_all(fd, &length, sizeof length);
  send_all(fd, from, size);
}

Bytes receive_blob(int fd) {
  std::uint64_t length = 0;
  receive_all(fd, &length, sizeof length);
  Bytes bytes(length);
  receive_all(fd, bytes.data(), bytes.size());
  return bytes;
}

int connect_to(const char* host, const char* port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host, port, &hints, &found) != 0) fail("no such host");
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) fail("cannot connect");
  freeaddrinfo(found);
  return fd;
}

int accept_on(const char* port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 1) != 0) {
    fail("cannot listen");
  }
  const int fd = accept(listener, nullptr, nullptr);
  close(listener);
  return fd;
}

// ---- UCP ------------------------------------------------------------------------------------------

struct Side {
  int tcp = -1;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_ep_h ep = nullptr;
  Bytes window = Bytes(kWindow);
  ucp_mem_h memory = nullptr;
  std::uint64_t remote = 0;  // address of the peer's window
  ucp_rkey_h key = nullptr;

  Bytes message;  // the latest active message
  bool arrived = false;
  bool arriving = false;
  void* pending = nullptr;
};

void wait(Side& side, ucs_status_ptr_t request, const char* what) {
  if (request == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), what);
  ucs_status_t status = UCS_INPROGRESS;
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(side.worker);
  ucp_request_free(request);
  check(status, what);
}

ucp_request_param_t plain() {
  ucp_request_param_t param{};
  return param;
}

void flush(Side& side) {
  const auto param = plain();
  wait(side, ucp_ep_flush_nbx(side.ep, &param), "flush");
}

void send_tagged(Side& side, const Bytes& bytes, std::uint64_t tag) {
  const auto param = plain();
  wait(side, ucp_tag_send_nbx(side.ep, bytes.data(), bytes.size(), tag, &param), "tag send");
}

Bytes receive_tagged(Side& side, std::size_t size, std::uint64_t tag) {
  Bytes bytes(size);
  const auto param = plain();
  wait(side, ucp_tag_recv_nbx(side.worker, bytes.data(), size, tag, ~std::uint64_t{0}, &param),
       "tag receive");
  return bytes;
}

// "I have done my part", either way; a tagged message without bytes.
void tell(Side& side) {
  send_tagged(side, {}, 999);
}
void await(Side& side) {
  receive_tagged(side, 0, 999);
}

ucs_status_t on_message(void* argument, const void*, std::size_t, void* data, std::size_t length,
                        const ucp_am_recv_param_t* param) {
  auto& side = *static_cast<Side*>(argument);
  side.message.resize(length);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    side.pending = data;  // fetched outside of the callback
    side.arriving = true;
    return UCS_INPROGRESS;
  }
  std::memcpy(side.message.data(), data, length);
  side.arrived = true;
  return UCS_OK;
}

Bytes receive_message(Side& side) {
  while (!side.arrived && !side.arriving) ucp_worker_progress(side.worker);
  if (side.arriving) {
    const auto param = plain();
    wait(side,
         ucp_am_recv_data_nbx(side.worker, side.pending, side.message.data(), side.message.size(), &param),
         "active message data");
  }
  side.arrived = side.arriving = false;
  return std::move(side.message);
}

void send_message(Side& side, const Bytes& bytes) {
  auto param = plain();
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  wait(side, ucp_am_send_nbx(side.ep, kMessage, nullptr, 0, bytes.data(), bytes.size(), &param),
       "active message");
}

void open(Side& side) {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_AMO64;
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
  check(ucp_init(&params, config, &side.context), "ucp_init");
  ucp_config_release(config);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  check(ucp_worker_create(side.context, &worker, &side.worker), "ucp_worker_create");

  ucp_am_handler_param_t handler{};
  handler.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessage;
  handler.cb = on_message;
  handler.arg = &side;
  check(ucp_worker_set_am_recv_handler(side.worker, &handler), "ucp_worker_set_am_recv_handler");

  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  map.address = side.window.data();
  map.length = side.window.size();
  check(ucp_mem_map(side.context, &map, &side.memory), "ucp_mem_map");
}

void join(Side& side) {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check(ucp_worker_get_address(side.worker, &address, &length), "ucp_worker_get_address");
  void* key = nullptr;
  std::size_t key_length = 0;
  check(ucp_rkey_pack(side.context, side.memory, &key, &key_length), "ucp_rkey_pack");
  const auto window = reinterpret_cast<std::uint64_t>(side.window.data());
  send_blob(side.tcp, address, length);
  send_blob(side.tcp, key, key_length);
  send_blob(side.tcp, &window, sizeof window);
  ucp_worker_release_address(side.worker, address);
  ucp_rkey_buffer_release(key);

  const Bytes peer = receive_blob(side.tcp);
  const Bytes peer_key = receive_blob(side.tcp);
  const Bytes peer_window = receive_blob(side.tcp);
  std::memcpy(&side.remote, peer_window.data(), sizeof side.remote);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
  check(ucp_ep_create(side.worker, &params, &side.ep), "ucp_ep_create");
  check(ucp_ep_rkey_unpack(side.ep, peer_key.data(), &side.key), "ucp_ep_rkey_unpack");
}

void leave(Side& side) {
  ucp_rkey_destroy(side.key);
  auto param = plain();
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = 0;
  // Both sides close at once; the other may be gone before the last acknowledgment comes.
  const ucs_status_ptr_t request = ucp_ep_close_nbx(side.ep, &param);
  if (UCS_PTR_IS_PTR(request)) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(side.worker);
    ucp_request_free(request);
  }
  char byte = 0;
  send_all(side.tcp, &byte, 1);
  receive_all(side.tcp, &byte, 1);
  ucp_mem_unmap(side.context, side.memory);
  ucp_worker_destroy(side.worker);
  ucp_cleanup(side.context);
  close(side.tcp);
}

// ---- What is moved --------------------------------------------------------------------------------

void expect(bool equal, const char* what, std::size_t size) {
  if (!equal)
    fail(std::string(what) + " of " + std::to_string(size) + " bytes: the data is not what was sent");
}

void drive(Side& side) {
  const auto param = plain();
  for (const std::size_t size : kSizes) {
    const Bytes sent = pattern(size, 1);
    send_tagged(side, sent, size);
    expect(receive_tagged(side, size, size + 1) == pattern(size, 2), "a tagged message", size);

    const Bytes put = pattern(size, 3);
    if (size != 0) {
      wait(side, ucp_put_nbx(side.ep, put.data(), size, side.remote, side.key, &param), "put");
      flush(side);
    }
    tell(side);
    await(side);

    Bytes got(size);
    if (size != 0)
      wait(side, ucp_get_nbx(side.ep, got.data(), size, side.remote + kWindow / 2, side.key, &param), "get");
    expect(got == pattern(size, 4), "a get", size);

    send_message(side, pattern(size, 5));
    expect(receive_message(side) == pattern(size, 6), "an active message", size);
    std::printf("%zu bytes: tag, put, get and active message checked\n", size);
  }
  auto atomic = plain();
  std::uint64_t before = 0;
  atomic.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
  atomic.datatype = ucp_dt_make_contig(8);
  atomic.reply_buffer = &before;
  for (std::uint64_t i = 0; i != kAdditions; ++i) {
    const std::uint64_t add = 3;
    wait(side, ucp_atomic_op_nbx(side.ep, UCP_ATOMIC_OP_ADD, &add, 1, side.remote, side.key, &atomic),
         "fetch-and-add");
    expect(before == i * 3, "a fetch-and-add", 8);
  }
  std::printf("%d fetch-and-adds checked\n", kAdditions);
  tell(side);
}

void serve(Side& side) {
  for (const std::size_t size : kSizes) {
    expect(receive_tagged(side, size, size) == pattern(size, 1), "a tagged message", size);
    const Bytes there = pattern(size, 4);
    std::memcpy(side.window.data() + kWindow / 2, there.data(), size);
    send_tagged(side, pattern(size, 2), size + 1);
    await(side);
    expect(Bytes(side.window.begin(), side.window.begin() + static_cast<std::ptrdiff_t>(size)) ==
               pattern(size, 3),
           "a put", size);
    std::memset(side.window.data(), 0, 8);  // where the atomics will be
    tell(side);
    expect(receive_message(side) == pattern(size, 5), "an active message", size);
    send_message(side, pattern(size, 6));
  }
  await(side);
  std::uint64_t sum = 0;
  std::memcpy(&sum, side.window.data(), sizeof sum);
  expect(sum == std::uint64_t{3} * kAdditions, "the sum of the fetch-and-adds", sizeof sum);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || std::strcmp(argv[1], "-p") != 0) fail("usage: ucx_transfer -p PORT [HOST]");
  Side side;
  const bool drives = argc > 3;
  side.tcp = drives ? connect_to(argv[3], argv[2]) : accept_on(argv[2]);
  open(side);
  join(side);
  if (drives) {
    drive(side);
  } else {
    serve(side);
  }
  leave(side);
  return 0;
}
