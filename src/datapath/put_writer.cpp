// Runs of one-block WQEs, as fast as the processor can write them: about one store of 16 bytes and one of 32
// for each where it has AVX2, six of 8 bytes elsewhere.
#include <cstddef>

#include "src/datapath/mlx5_wqe.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qpair::detail {

namespace {

// Zero bytes take the general path.
bool is_plain(const Put& put, std::uint64_t max_message) {
  return put.l.size - 1 < max_message && put.l.size <= put.r.size;
}

}  // namespace

bool write_puts_portable(const PutRun& run, std::span<const Put> puts) {
  auto* wqe = reinterpret_cast<std::uint64_t*>(run.at);
  std::uint64_t position = run.position;
  for (const Put& put : puts) {
    if (!is_plain(put, run.max_message)) [[unlikely]]
      return false;
    wqe[0] = run.word | (mlx5::byte_swap(position << 48) << 8);
    wqe[1] = run.flags;
    wqe[2] = mlx5::byte_swap(put.r.addr);
    wqe[3] = mlx5::byte_swap(put.r.rkey);
    wqe[4] = mlx5::byte_swap((put.l.size << 32) | put.l.lkey);
    wqe[5] = mlx5::byte_swap(put.l.addr);
    wqe += mlx5::kBasicBlockSize / sizeof *wqe;
    ++position;
  }
  return true;
}

#if defined(__x86_64__)

namespace {

// A Put is as long as a WQE, and everything in a WQE is some byte of it, of the position, or constant. So a
// WQE is two shuffles: one of the control segment, whose index is counted up little-endian in its last two
// bytes, and one of both other segments.
static_assert(sizeof(Put) == mlx5::kBasicBlockSize && offsetof(RdmaBuffer, lkey) == 8 &&
              offsetof(RdmaBuffer, rkey) == 12 && offsetof(RdmaBuffer, addr) == 16 &&
              offsetof(RdmaBuffer, size) == 24);

[[gnu::target("avx2")]] bool write_avx2(const PutRun& run, std::span<const Put> puts) {
  __m128i control = _mm_set_epi64x(static_cast<long long>(run.flags | (run.position << 48)),
                                   static_cast<long long>(run.word));
  const __m128i next = _mm_set_epi16(1, 0, 0, 0, 0, 0, 0, 0);
  const __m128i index_to_its_place = _mm_setr_epi8(0, 15, 14, 3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1, -1, -1);
  // Of l, as 32-bit words, into the upper half: addr, lkey, size; bytes are turned around afterwards.
  const __m256i words_of_l = _mm256_setr_epi32(0, 0, 0, 0, 4, 5, 2, 6);
  // Lower half, from r.lkey on: address, rkey, 0. Upper half: size, lkey, address.
  const __m256i turned = _mm256_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, -1, -1, -1, -1,  //
                                          15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  std::byte* wqe = run.at;
  for (const Put& put : puts) {
    if (!is_plain(put, run.max_message)) [[unlikely]]
      return false;
    const __m256i local =
        _mm256_permutevar8x32_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(&put.l)), words_of_l);
    const __m128i remote = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&put.r.lkey));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(wqe), _mm_shuffle_epi8(control, index_to_its_place));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(wqe + 16),
                        _mm256_shuffle_epi8(_mm256_inserti128_si256(local, remote, 0), turned));
    control = _mm_add_epi16(control, next);
    wqe += mlx5::kBasicBlockSize;
  }
  return true;
}

}  // namespace

#endif

PutWriter put_writer() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return write_avx2;
#endif
  return write_puts_portable;
}

}  // namespace qpair::detail
