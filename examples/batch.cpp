// Many small puts with one doorbell, and one completion for all of them.
#include <cstdio>
#include <cstdlib>
#include <qpair/qpair.hpp>

template <typename T>
T must(qpair::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

int main() {
  constexpr std::size_t kPuts = 64;
  constexpr std::size_t kBytes = 256;
  auto domain = must(qpair::RdmaDomain::create());
  auto source = must(domain.allocate(kPuts * kBytes));
  auto target = must(domain.allocate(kPuts * kBytes));
  auto left = must(qpair::RdmaQueuePair::create(domain));
  auto right = must(qpair::RdmaQueuePair::create(domain));
  must(left.connect(must(right.get_qp_info())));
  must(right.connect(must(left.get_qp_info())));

  for (std::size_t index = 0; index < kPuts * kBytes; ++index)
    source.data<unsigned char>()[index] = index & 0xff;

  // Written into the send queue, one after the other. The NIC does not see them.
  for (std::size_t put = 0; put < kPuts; ++put) {
    // A queue pair keeps its order: the last one's completion is everybody's.
    const auto signal = put + 1 == kPuts ? qpair::Signal::Yes : qpair::Signal::No;
    must(left.enqueue_put(must(source.slice(put * kBytes, kBytes)), must(target.slice(put * kBytes, kBytes)),
                          signal));
  }
  std::printf("written %llu, visible to the NIC %llu\n", static_cast<unsigned long long>(left.send_wqe_idx()),
              static_cast<unsigned long long>(left.send_db_idx()));

  must(left.ring_doorbell());
  while (!must(left.poll_send_completion())) {
  }
  std::printf("written %llu, completed %llu\n", static_cast<unsigned long long>(left.send_wqe_idx()),
              static_cast<unsigned long long>(left.send_cq_idx()));

  const bool same = std::equal(source.bytes().begin(), source.bytes().end(), target.bytes().begin());
  std::puts(same ? "all bytes are there" : "bytes are missing");
  return same ? 0 : 1;
}
