/*
 * Times MPI_Allreduce of float32 sums, out of place, for one size.
 *
 *     mpirun -n 2 --bind-to core mpi_all_reduce BYTES ITERATIONS WARMUP
 *
 * An iteration counts as long as it took the slowest rank. Rank 0 prints one line of JSON.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

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

/* Nearest rank: the smallest value that at least `percent` of all values do not exceed. */
static double percentile(const double *sorted, int count, int percent)
{
    int rank = (int)(((long)count * percent + 99) / 100);
    return sorted[rank > 0 ? rank - 1 : 0];
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4)
        fail("usage: mpi_all_reduce BYTES ITERATIONS WARMUP");
    long bytes = atol(argv[1]);
    int iterations = atoi(argv[2]), warmup = atoi(argv[3]);
    long count = bytes / (long)sizeof(float);
    if (count < 1 || count > 2147483647L || iterations < 1 || warmup < 0)
        fail("BYTES must be 4 or more, ITERATIONS 1 or more, WARMUP 0 or more");

    float *input = allocate((size_t)count * sizeof(float));
    float *output = allocate((size_t)count * sizeof(float));
    double *mine = allocate((size_t)iterations * sizeof(double));
    double *slowest = allocate((size_t)iterations * sizeof(double));
    for (long i = 0; i < count; i++) {
        input[i] = (float)(rank + 1 + i % 7);
        output[i] = -1.0f;
    }

    for (int i = 0; i < warmup; i++)
        MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    /* One look at the clock per iteration: at 8 bytes a second one would show. */
    double before = MPI_Wtime();
    for (int i = 0; i < iterations; i++) {
        MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double after = MPI_Wtime();
        mine[i] = after - before;
        before = after;
    }

    for (long i = 0; i < count; i++) {
        float expected = (float)ranks * (ranks + 1) / 2 + (float)(i % 7) * ranks;
        if (output[i] != expected)
            fail("wrong result");
    }
    MPI_Reduce(mine, slowest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(slowest, (size_t)iterations, sizeof(double), ascending);
        printf("{\"bytes\":%ld,\"median_us\":%.4f,\"p99_us\":%.4f}\n", bytes,
               percentile(slowest, iterations, 50) * 1e6, percentile(slowest, iterations, 99) * 1e6);
    }
    free(input);
    free(output);
    free(mine);
    free(slowest);
    MPI_Finalize();
    return 0;
}
