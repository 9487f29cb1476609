/* A ring, collective operations and an RMA window. Prints what it computed, so that runs over two transports can be
 * compared. Every result that can be known is checked. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int true_, const char *what)
{
  if (!true_) {
    fprintf(stderr, "mpi_program: %s is wrong\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

static uint64_t checksum(const void *bytes, size_t size)
{
  uint64_t sum = 14695981039346656037ULL; /* FNV-1a */
  for (size_t i = 0; i != size; ++i) sum = (sum ^ ((const unsigned char *)bytes)[i]) * 1099511628211ULL;
  return sum;
}

/* A message of `size` bytes goes once around; every process adds its rank + 1 to each byte. */
static uint64_t ring(int rank, int ranks, size_t size)
{
  unsigned char *bytes = calloc(size, 1);
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  if (rank != 0) MPI_Recv(bytes, (int)size, MPI_BYTE, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (size_t i = 0; i != size; ++i) bytes[i] = (unsigned char)((size_t)bytes[i] + (size_t)rank + 1 + i);
  MPI_Send(bytes, (int)size, MPI_BYTE, next, 7, MPI_COMM_WORLD);
  if (rank == 0) {
    MPI_Recv(bytes, (int)size, MPI_BYTE, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (size_t i = 0; i != size; ++i)
      expect(bytes[i] == (unsigned char)(ranks * (ranks + 1) / 2 + (int)i * ranks), "the ring");
  }
  MPI_Bcast(bytes, (int)size, MPI_BYTE, 0, MPI_COMM_WORLD);
  const uint64_t sum = checksum(bytes, size);
  free(bytes);
  return sum;
}

static uint64_t allreduce(int rank, int ranks, size_t count)
{
  double *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
  for (size_t i = 0; i != count; ++i) in[i] = (double)(rank + 1) * (double)(i + 1);
  MPI_Allreduce(in, out, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (size_t i = 0; i != count; ++i)
    expect(out[i] == (double)(ranks * (ranks + 1) / 2) * (double)(i + 1), "the allreduce");
  const uint64_t sum = checksum(out, count * sizeof *out);
  free(in);
  free(out);
  return sum;
}

/* Everybody puts its rank into everybody's window, adds to a counter of process 0, and gets the neighbour's window. */
static uint64_t window(int rank, int ranks, size_t count)
{
  long *base = NULL;
  MPI_Win win;
  MPI_Win_allocate((MPI_Aint)((count * (size_t)ranks + 1) * sizeof *base), sizeof *base, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &base, &win);
  memset(base, 0, (count * (size_t)ranks + 1) * sizeof *base);
  MPI_Win_fence(0, win);
  long *mine = malloc(count * sizeof *mine);
  for (size_t i = 0; i != count; ++i) mine[i] = rank * 1000000L + (long)i;
  for (int peer = 0; peer != ranks; ++peer)
    MPI_Put(mine, (int)count, MPI_LONG, peer, (MPI_Aint)(count * (size_t)rank), (int)count, MPI_LONG, win);
  MPI_Win_fence(0, win);

  MPI_Win_lock_all(0, win);
  for (int i = 0; i != 100; ++i) {
    const long one = 1;
    long before = -1;
    MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, (MPI_Aint)(count * (size_t)ranks), MPI_SUM, win);
    MPI_Win_flush(0, win);
    expect(before >= 0 && before < 100L * ranks, "a fetch-and-add");
  }
  MPI_Win_unlock_all(win);
  MPI_Win_fence(0, win);
  long total = 0;
  MPI_Get(&total, 1, MPI_LONG, 0, (MPI_Aint)(count * (size_t)ranks), 1, MPI_LONG, win);
  long *theirs = malloc(count * (size_t)ranks * sizeof *theirs);
  MPI_Get(theirs, (int)(count * (size_t)ranks), MPI_LONG, (rank + 1) % ranks, 0, (int)(count * (size_t)ranks), MPI_LONG,
          win);
  MPI_Win_fence(0, win);
  expect(total == 100L * ranks, "the counter");
  for (int peer = 0; peer != ranks; ++peer)
    for (size_t i = 0; i != count; ++i)
      expect(theirs[count * (size_t)peer + i] == peer * 1000000L + (long)i, "the window");
  const uint64_t sum = checksum(theirs, count * (size_t)ranks * sizeof *theirs);
  free(mine);
  free(theirs);
  MPI_Win_free(&win);
  return sum;
}

int main(int argc, char **argv)
{
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  static const size_t sizes[] = {1, 100, 8192, 1 << 20};
  for (size_t i = 0; i != sizeof sizes / sizeof *sizes; ++i) {
    const uint64_t of_ring = ring(rank, ranks, sizes[i]);
    const uint64_t of_allreduce = allreduce(rank, ranks, sizes[i] / 8 + 1);
    const uint64_t of_window = window(rank, ranks, sizes[i] / 64 + 1);
    if (rank == 0)
      printf("%zu: ring %016llx allreduce %016llx window %016llx\n", sizes[i], (unsigned long long)of_ring,
             (unsigned long long)of_allreduce, (unsigned long long)of_window);
  }
  MPI_Finalize();
  return 0;
}
