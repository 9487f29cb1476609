// Two processes, each with its own NIC: what they tell each other over a socket, and a put with a
// notification.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <qpair/qpair.hpp>

template <typename T>
T must(qpair::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

struct Endpoint {
  qpair::RdmaDomain domain = must(qpair::RdmaDomain::create());
  qpair::MemoryRegion memory = must(domain.allocate(4096));
  qpair::RdmaQueuePair queue_pair = must(qpair::RdmaQueuePair::create(domain));

  void connect(int socket) {
    must(queue_pair.connect(must(qpair::exchange_qp_info(socket, must(queue_pair.get_qp_info())))));
  }
  // The peer's memory. Whoever has it knows that the peer is ready.
  qpair::RdmaBuffer exchange_memory(int socket) {
    return must(qpair::exchange_value(socket, memory.buffer()));
  }
};

int receiver(int socket) {
  Endpoint self;
  self.connect(socket);
  must(self.queue_pair.recv(qpair::RdmaBuffer{}));  // for the notification; the data goes straight to memory
  self.exchange_memory(socket);
  for (;;) {
    if (const auto notice = must(self.queue_pair.poll_recv_completion())) {
      std::printf("notice %u: %s\n", notice->imm_data, self.memory.data<char>());
      return 0;
    }
  }
}

int sender(int socket) {
  Endpoint self;
  self.connect(socket);
  const qpair::RdmaBuffer theirs = self.exchange_memory(socket);
  std::strcpy(self.memory.data<char>(), "hello from the other process");
  must(self.queue_pair.put_with_recv(self.memory.buffer(), theirs, 42));
  while (!must(self.queue_pair.poll_send_completion())) {
  }
  return 0;
}

int main() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  const pid_t child = fork();  // before any device is opened
  if (child == 0) {
    close(sockets[0]);
    return receiver(sockets[1]);
  }
  close(sockets[1]);
  const int sent = sender(sockets[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return sent != 0 || status != 0 ? 1 : 0;
}
