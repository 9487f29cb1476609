// The data path does not allocate: not when it posts, not when it polls, not when it fails.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/core/fake_nic.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

// Not inlined, so that valgrind sees pairs of new and delete.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace qpair::test {
namespace {

using mlx5::Opcode;

TEST(Allocation, NoneOnTheDataPath) {
  FakeNic nic({.blocks = 16, .cq_entries = 16, .max_message = 0x800});
  const RdmaBuffer small = *kLocal.slice(0, 8);
  const std::byte data[100] = {};
  detail::Work inline_work = work_of(Opcode::RdmaWrite, {}, &kRemote, Signal::No);
  inline_work.is_inline = true;
  inline_work.inline_data = data;
  IbvWc wc;
  bool as_expected = true;

  const std::uint64_t before = allocations.load();
  as_expected &= nic.path.enqueue_put(small, kRemote, Signal::Yes).has_value();   // block 0
  as_expected &= nic.path.enqueue_get(kLocal, kRemote, Signal::Yes).has_value();  // two parts: 1, 2
  as_expected &= nic.path.enqueue(inline_work).has_value();                       // 3, 4, 5
  as_expected &= nic.path.ring_doorbell().has_value();
  as_expected &= nic.path.post_put(small, kRemote, Signal::Yes).has_value();  // 6
  nic.complete(0, Opcode::RdmaWrite);
  nic.complete(2, Opcode::RdmaRead, 0x800);
  nic.fail(6, Opcode::RdmaWrite, mlx5::Syndrome::RemoteAccess, 0x88);
  as_expected &= nic.path.poll_send(wc) == 1 && nic.path.poll_send(wc) == 1;
  as_expected &= nic.path.poll_send(wc) == 1 && !wc.is_valid();
  as_expected &= nic.path.poll_send(wc) == 0;
  const Error failure(wc);
  as_expected &= failure.code() == ErrorCode::remote_access;

  std::uint64_t posted = 0;
  Result<WrId> id = WrId{};
  while ((id = nic.path.post_put(small, kRemote, Signal::Yes)) && posted < 100) ++posted;
  as_expected &= posted == 16 && id.error().code() == ErrorCode::queue_full;
  as_expected &=
      nic.path.post_put(kRemote, kLocal, Signal::Yes).error().code() == ErrorCode::invalid_argument;

  as_expected &= nic.path.receive({&kLocal, 1}).has_value();
  nic.receive(mlx5::CqeOpcode::ResponderSend, 1);
  as_expected &= nic.path.poll_receive(wc) == 1;
  nic.path.reset();
  as_expected &= nic.path.post_put(small, kRemote, Signal::Yes).error().code() == ErrorCode::not_connected;
  as_expected &= nic.path.receive({&kLocal, 1}).error().code() == ErrorCode::not_connected;
  const std::uint64_t after = allocations.load();

  EXPECT_EQ(after, before);
  EXPECT_TRUE(as_expected);
}

}  // namespace
}  // namespace qpair::test
