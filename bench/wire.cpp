// What the UDP wire costs: one thread sends packets of a 4096-byte path MTU from memory and receives them
// into memory, as two NICs do, and for comparison the same bytes through a TCP connection on the loopback
// interface, as iperf3 does. Processor time is what counts: nothing here waits.
//
//   build/bin/bench-wire
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "softnic/roce/packet.hpp"
#include "softnic/wire/udp_link.hpp"

namespace {

using qpair::softnic::roce::Opcode;
using qpair::softnic::roce::PacketHeader;
using qpair::softnic::roce::PacketWriter;
using qpair::softnic::roce::Psn;
using namespace qpair::softnic::wire;

constexpr std::size_t kMessage = std::size_t{1} << 20;
constexpr std::size_t kMtu = 4096;
constexpr std::size_t kWindow = 64;  // packets that one transmit() sends

std::unique_ptr<UdpLink> open_link(benchmark::State& state) {
  static std::uint64_t serial = 0;
  auto link = UdpLink::open_anywhere(static_cast<std::uint64_t>(::getpid()) * 16 + ++serial);
  if (!link) state.SkipWithError(link.error().c_str());
  return link ? *std::move(link) : nullptr;
}

void udp(benchmark::State& state) {
  const auto from = open_link(state);
  const auto to = open_link(state);
  if (!from || !to) return;
  const Endpoint peer = to->local();
  Icrc icrc(from->local(), peer);
  std::vector<std::byte> source(kMessage, std::byte{1});
  std::vector<std::byte> target(kMessage);
  std::size_t offset = 0;
  std::size_t received = 0;
  const Link::Receiver receiver = [&](const Frame& frame) {
    if (!check_icrc(frame)) return;
    std::memcpy(target.data() + received % kMessage, frame.bytes.data() + kBthSize, kMtu);
    received += kMtu;
  };
  for (auto _ : state) {
    for (std::size_t i = 0; i < kWindow; ++i, offset = (offset + kMtu) % kMessage) {
      PacketHeader header;
      header.opcode = Opcode::WriteMiddle;
      header.psn = Psn(static_cast<std::uint32_t>(i));
      const auto room = from->reserve(peer, PacketWriter::size(header.opcode, kMtu));
      const PacketWriter writer(room, header, kMtu);
      std::memcpy(writer.payload().data(), source.data() + offset, kMtu);
      icrc.seal(room);
      from->commit();
    }
    from->flush();
    to->poll(receiver, 256, {});
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(received));
}
BENCHMARK(udp);

void tcp(benchmark::State& state) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), length);
  ::listen(listener, 1);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const int from = ::socket(AF_INET, SOCK_STREAM, 0);
  ::connect(from, reinterpret_cast<sockaddr*>(&address), length);
  const int to = ::accept(listener, nullptr, nullptr);
  constexpr std::size_t kPiece = 128 << 10;  // as iperf3
  std::vector<std::byte> source(kPiece, std::byte{1});
  std::vector<std::byte> target(kPiece);
  std::int64_t received = 0;
  for (auto _ : state) {
    const ssize_t sent = ::send(from, source.data(), kPiece, MSG_DONTWAIT);
    for (ssize_t got = 0; got < sent;) {
      const ssize_t now = ::recv(to, target.data(), kPiece, 0);
      if (now <= 0) return state.SkipWithError("the connection broke");
      got += now;
      received += now;
    }
  }
  state.SetBytesProcessed(received);
  for (const int fd : {from, to, listener}) ::close(fd);
}
BENCHMARK(tcp);

}  // namespace

BENCHMARK_MAIN();
