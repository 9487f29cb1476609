// A GPU writes work queue entries and rings the doorbell with the same headers as the processor does. The
// rings are host memory that the GPU reaches, as they are next to a NIC. Exit status 77: no GPU here,
// skipped.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "qpair/mlx5/cqe.hpp"
#include "qpair/mlx5/doorbell.hpp"
#include "qpair/mlx5/wqe.hpp"

namespace {

using namespace qpair::mlx5;

constexpr std::uint32_t kBlocks = 64;
constexpr std::uint32_t kQpn = 0x1234;

struct Wqe {
  ControlSegment control;
  RemoteAddressSegment remote;
  DataSegment data;
  std::uint64_t pad[2];
};
static_assert(sizeof(Wqe) == kBasicBlockSize, "an RDMA WRITE of one piece is one basic block");

struct Rings {  // what a queue pair has in memory
  Wqe wqes[kBlocks];
  be32 record[2];
  alignas(4096) std::byte uar[kUarPageSize];
};

QPAIR_HOST_DEVICE void write_wqe(Rings& rings, std::uint32_t index) {
  Wqe& wqe = rings.wqes[index % kBlocks];
  wqe.control = ControlSegment{};
  wqe.control.opmod_idx_opcode = opmod_idx_opcode(static_cast<std::uint16_t>(index), Opcode::RdmaWrite);
  wqe.control.qpn_ds = qpn_ds(kQpn, 3);
  wqe.control.fm_ce_se = kCqUpdate;
  wqe.remote.address = 0x7f0000000000ULL + index * 4096ULL;
  wqe.remote.rkey = 0xabcdefU;
  wqe.remote.reserved = 0U;
  wqe.data.byte_count = 4096U;
  wqe.data.lkey = 0x123456U;
  wqe.data.address = 0x550000000000ULL + index * 4096ULL;
  wqe.pad[0] = wqe.pad[1] = 0;
}

__global__ void post(Rings* rings, std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) write_wqe(*rings, first + i);
  __syncthreads();
  if (threadIdx.x == 0) {
    qpair::DoorBell doorbell;
    doorbell.src_ptr = &rings->wqes[(first + count - 1) % kBlocks];
    doorbell.dst_ptr = rings->uar + kBlueFlameOffset;
    doorbell.size = 8;
    doorbell.record_ptr = &rings->record[kSendRecord];
    doorbell.ring();
  }
}

void check(bool ok, const char* what) {
  if (ok) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

void check(cudaError_t error) {
  check(error == cudaSuccess, cudaGetErrorString(error));
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  Rings* rings = nullptr;
  check(cudaHostAlloc(&rings, sizeof(Rings), cudaHostAllocMapped));
  std::memset(static_cast<void*>(rings), 0, sizeof(Rings));
  auto* expected = static_cast<Rings*>(std::calloc(1, sizeof(Rings)));

  // 16 entries at a time, starting where the ring and soon the 16-bit index wrap.
  std::uint32_t index = 0x10000 - 40;
  rings->record[kSendRecord] = index & kIndexMask;
  for (int round = 0; round != 8; ++round) {
    post<<<1, 32>>>(rings, index, 16);
    check(cudaDeviceSynchronize());
    for (std::uint32_t i = 0; i != 16; ++i) write_wqe(*expected, index + i);
    index += 16;
    check(std::memcmp(rings->wqes, expected->wqes, sizeof rings->wqes) == 0,
          "the GPU's WQEs are the processor's");
    check(load_record(&rings->record[kSendRecord]) == (index & kIndexMask),
          "the doorbell record is the next index");
    check(std::memcmp(rings->uar + kBlueFlameOffset, &rings->wqes[(index - 1) % kBlocks], 8) == 0,
          "the register holds the last WQE's first bytes");
  }
  // A doorbell that was rung already does nothing.
  const std::uint32_t before = load_record(&rings->record[kSendRecord]);
  qpair::DoorBell stale{&rings->wqes[(index - 8) % kBlocks], rings->uar + kBlueFlameOffset, 8,
                        &rings->record[kSendRecord]};
  stale.ring();
  check(load_record(&rings->record[kSendRecord]) == before, "a stale doorbell leaves the record alone");
  std::printf("a GPU posted 128 WQEs and rang 8 doorbells\n");
  std::free(expected);
  check(cudaFreeHost(rings));
  return 0;
}
