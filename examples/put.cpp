#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <qpair/qpair.hpp>

template <typename T>
T must(qpair::Result<T> result) {  // the value, or the end
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

int main() {
  auto domain = must(qpair::RdmaDomain::create());  // the first RDMA device, real or emulated
  auto memory = must(domain.allocate(8192));        // memory that the NIC may read and write
  auto alice = must(qpair::RdmaQueuePair::create(domain));
  auto bob = must(qpair::RdmaQueuePair::create(domain));

  // Between processes: exchange_qp_info(socket, mine), then exchange_value(socket, buffer).
  must(alice.connect(must(bob.get_qp_info())));
  must(bob.connect(must(alice.get_qp_info())));

  std::strcpy(memory.data<char>(), "written by the NIC");
  must(alice.put(must(memory.slice(0, 64)), must(memory.slice(4096, 64))));  // returns at once

  while (!must(alice.poll_send_completion())) {
  }  // now the bytes are there
  std::puts(memory.data<char>() + 4096);
}
