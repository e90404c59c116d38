/* An MPI program that compares all data received with what was sent: messages around a ring, messages from
 * all to all, and, unless there is an argument, one-sided operations. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int value(int from, int to, int i) { return from * 1000003 + to * 1009 + i; }

static void fail(const char *what, int rank)
{
	fprintf(stderr, "rank %d: %s is wrong\n", rank, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void one_sided(int rank, int n, int from, int to)
{
	int i;
	enum { words = 1000 };
	long *mem;
	MPI_Win win;
	mem = malloc((words + 1) * sizeof(long));
	MPI_Win_create(mem, (words + 1) * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	for (i = 0; i <= words; i++)
		mem[i] = 0;
	MPI_Win_fence(0, win);
	long out[words];
	for (i = 0; i < words; i++)
		out[i] = value(rank, to, i);
	MPI_Put(out, words, MPI_LONG, to, 0, words, MPI_LONG, win);
	MPI_Win_fence(0, win);
	for (i = 0; i < words; i++)
		if (mem[i] != value(from, rank, i))
			fail("Put", rank);
	MPI_Win_lock_all(0, win);
	for (i = 0; i < 50; i++) {
		long one = 1, old;
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, words, MPI_SUM, win);
		MPI_Win_flush(0, win);
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	long sum = 0;
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
	MPI_Get(&sum, 1, MPI_LONG, 0, words, 1, MPI_LONG, win);
	MPI_Win_unlock(0, win);
	if (sum != 50L * n)
		fail("Fetch-and-op", rank);
	MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
	int rank, n, i, to, from;
	static const int lengths[] = {1, 100, 5000, 200000};

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &n);
	to = (rank + 1) % n;
	from = (rank + n - 1) % n;
	for (unsigned l = 0; l < sizeof lengths / sizeof *lengths; l++) {
		int len = lengths[l];
		int *out = malloc(len * sizeof(int)), *in = malloc(len * sizeof(int));
		for (i = 0; i < len; i++)
			out[i] = value(rank, to, i);
		MPI_Sendrecv(out, len, MPI_INT, to, 1, in, len, MPI_INT, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (i = 0; i < len; i++)
			if (in[i] != value(from, rank, i))
				fail("the ring", rank);
		free(out);
		free(in);
		out = malloc(n * len * sizeof(int));
		in = malloc(n * len * sizeof(int));
		for (i = 0; i < n * len; i++)
			out[i] = value(rank, i / len, i % len);
		MPI_Alltoall(out, len, MPI_INT, in, len, MPI_INT, MPI_COMM_WORLD);
		for (i = 0; i < n * len; i++)
			if (in[i] != value(i / len, rank, i % len))
				fail("all to all", rank);
		free(out);
		free(in);
	}
	if (argc == 1)
		one_sided(rank, n, from, to);
	if (rank == 0)
		printf("all results are right\n");
	MPI_Finalize();
	return 0;
}
