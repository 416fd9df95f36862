/*
 * Times MPI_Allreduce of float32 sums, out of place, for one size.
 *
 *     mpirun -n 2 --bind-to core mpi_all_reduce BYTES ITERATIONS WARMUP [THREADS]
 *
 * A rank has THREADS threads (1 if left out) beside those of the MPI; all but one sleep. The sleeping
 * threads stand for those of an application: in a process with several threads, the kernel counts the
 * users of a file in each system call, and the C library takes its locks with atomic instructions.
 *
 * Times are taken as ferroccl's perf programs take them: calls of less than 4096 bytes in batches of
 * 16, each of which is one sample, its mean. Each percentile is the largest over the ranks. Rank 0
 * prints one line of JSON.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void fail(const char *message)
{
    fprintf(stderr, "mpi_all_reduce: %s\n", message);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory)
        fail("out of memory");
    return memory;
}

static void *idle(void *unused)
{
    for (;;)
        pause();
    return unused;
}

/* Nearest rank: the smallest value that at least `percent` of all values do not exceed. */
static double percentile(const double *sorted, int count, int percent)
{
    int rank = (int)(((long)count * percent + 99) / 100);
    return sorted[rank > 0 ? rank - 1 : 0];
}

/* The largest value over all ranks, on rank 0. */
static double slowest(double mine)
{
    double all = 0;
    MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4 && argc != 5)
        fail("usage: mpi_all_reduce BYTES ITERATIONS WARMUP [THREADS]");
    long bytes = atol(argv[1]);
    int iterations = atoi(argv[2]), warmup = atoi(argv[3]), threads = argc == 5 ? atoi(argv[4]) : 1;
    long count = bytes / (long)sizeof(float);
    if (count < 1 || count > 2147483647L || iterations < 1 || warmup < 0 || threads < 1)
        fail("BYTES must be 4 or more, ITERATIONS and THREADS 1 or more, WARMUP 0 or more");
    for (; threads > 1; threads--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, idle, NULL))
            fail("no thread can be started");
    }

    float *input = allocate((size_t)count * sizeof(float));
    float *output = allocate((size_t)count * sizeof(float));
    int batch = bytes < 4096 ? 16 : 1, samples = (iterations + batch - 1) / batch;
    double *times = allocate((size_t)samples * sizeof(double));
    for (long i = 0; i < count; i++) {
        input[i] = (float)(rank + 1 + i % 7);
        output[i] = -1.0f;
    }

    for (int i = 0; i < warmup; i++)
        MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double before = MPI_Wtime();
    for (int i = 0; i < samples; i++) {
        int calls = iterations - i * batch < batch ? iterations - i * batch : batch;
        for (int j = 0; j < calls; j++)
            MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double after = MPI_Wtime();
        times[i] = (after - before) / calls;
        before = after;
    }

    for (long i = 0; i < count; i++) {
        float expected = (float)ranks * (ranks + 1) / 2 + (float)(i % 7) * ranks;
        if (output[i] != expected)
            fail("wrong result");
    }
    qsort(times, (size_t)samples, sizeof(double), ascending);
    double median = slowest(percentile(times, samples, 50));
    double p99 = slowest(percentile(times, samples, 99));
    if (rank == 0)
        printf("{\"bytes\":%ld,\"median_us\":%.4f,\"p99_us\":%.4f}\n", bytes, median * 1e6, p99 * 1e6);
    free(input);
    free(output);
    free(times);
    MPI_Finalize();
    return 0;
}
