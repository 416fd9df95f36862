"""Times Gloo's all_reduce of float32 sums through torch.distributed, for one size.

    MASTER_ADDR=... MASTER_PORT=... WORLD_SIZE=2 RANK=0 gloo_all_reduce.py BYTES ITERATIONS WARMUP

Rank 0 prints one line of JSON.
"""

import sys
import time

import torch
import torch.distributed as dist

size, iterations, warmup = map(int, sys.argv[1:4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
tensor = torch.ones(size // 4)
times = []
for iteration in range(warmup + iterations):
    start = time.perf_counter_ns()
    dist.all_reduce(tensor)
    if iteration >= warmup:
        times.append((time.perf_counter_ns() - start) / 1e3)
times.sort()
if dist.get_rank() == 0:
    median, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    print(f'{{"bytes": {size}, "median_us": {median:.3f}, "p99_us": {p99:.3f}}}', flush=True)
