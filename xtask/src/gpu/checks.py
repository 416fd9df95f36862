#!/usr/bin/env python3
"""What needs a GPU: an NCCL that nobody has changed, over the plugin beside this file.

Two processes share the GPU; NCCL is told that they are on different hosts, so that the network is
the only way between them. What PyTorch's collectives and a small training run give is compared, bit
for bit, with what they give over NCCL's own sockets. A rank is killed, and the other must be told.
all_reduce is timed, if CUDA's MPS lets both processes run at once.

    python3 checks.py                   all of it: needs one GPU, and PyTorch with NCCL
    python3 checks.py --backend gloo    the same without NCCL and without a GPU: these checks themselves
"""

import argparse
import contextlib
import ctypes
import datetime
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PLUGIN = HERE / "libnccl-net-ferroccl.so"
COMMAND = HERE / "ferroccl"
RANKS = 2
WELL = [0] * RANKS
RUN_S = 150
# A rank whose peer has died has ended by then.
TOLD_S = 60
# Over which of our transports, beside NCCL's own sockets.
OURS = ["tcp", "shm"]
SOCKETS = {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
# The same with helper threads of NCCL's, which are off by default.
HELPED = SOCKETS | {"NCCL_SOCKET_NTHREADS": "1", "NCCL_NSOCKS_PERTHREAD": "1"}
ELEMENTS = [1, 1000, 1 << 18, 3_000_001]
TIMED_BYTES = [8, 1 << 16, 1 << 20, 1 << 26]
ROUNDS = 5
# Longest time that CUDA's MPS may take to start or to end.
MPS_S = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--out", default="results.json", help="where the results go, as JSON")
    parser.add_argument("--logs", type=pathlib.Path, help="folder that keeps what ranks print")
    parser.add_argument("--plant", action="store_true", help="spoil a result: it must be found")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", choices=WORK, default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--spoil", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return work(options)
    # Whoever finds results after this finds this run's.
    pathlib.Path(options.out).unlink(missing_ok=True)
    about = versions(options.backend)
    rows = []
    for name, result in steps(options):
        print(f"{name:<58} {result}", flush=True)
        rows.append((name, result))
        write(options.out, about, rows, complete=False)
    write(options.out, about, rows, complete=True)
    return 0 if all(is_ok(result) for _, result in rows) else 1


def steps(options):
    yield plugin_loads()
    yield netcheck()
    yield from compared(options)
    for transport in OURS:
        yield killed(options, transport)
    if options.backend == "nccl":
        yield doctor()
        yield from timed(options)


def ours(transport):
    return {"NCCL_NET_PLUGIN": str(PLUGIN), "FERROCCL_TRANSPORT": transport}


def is_ok(result):
    return result.startswith("ok")


def write(out, about, rows, complete):
    """Replaces the results: whenever this process is killed, a whole file is there."""
    passed = complete and all(is_ok(result) for _, result in rows)
    results = about | {"complete": complete, "passed": passed, "rows": rows}
    whole = pathlib.Path(f"{out}.new")
    whole.write_text(json.dumps(results, indent=1) + "\n")
    whole.replace(out)


def versions(backend):
    import torch

    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": (HERE / "commit").read_text().strip(),
        "backend": backend,
        "torch": torch.__version__,
    }
    if backend == "nccl":
        about["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        about["gpu"] = torch.cuda.get_device_name(0)
        about["cuda"] = torch.version.cuda
    return about


def plugin_loads():
    """As NCCL loads it."""
    try:
        library = ctypes.CDLL(str(PLUGIN), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return "the plugin loads", f"FAILED: {error}"
    tables = [f"v{number}" for number in range(8, 13)]
    missing = [table for table in tables if not hasattr(library, f"ncclNetPlugin_{table}")]
    return "the plugin loads", f"FAILED: no {missing}" if missing else f"ok: {', '.join(tables)}"


def netcheck():
    command = [str(COMMAND), "netcheck", str(PLUGIN), "--contract-only", "--skip-performance"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    except subprocess.TimeoutExpired:
        return "netcheck, host memory", f"FAILED: not done within {RUN_S} s"
    last = next((line for line in ended.stdout.splitlines() if " passed, " in line), ended.stderr)
    return "netcheck, host memory", f"{'FAILED' if ended.returncode else 'ok'}: {last.strip()}"


def doctor():
    """What the command says of a machine that has a GPU."""
    name = "doctor sees the GPU"
    try:
        command = [str(COMMAND), "doctor", "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
        findings = json.loads(ended.stdout)["findings"]
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        return name, f"FAILED: {error!r}"
    of_gpus = [found for found in findings if found["check"].startswith("gpu-")]
    shown = [f"{found['check']} {found['verdict']}: {found['evidence']}" for found in of_gpus]
    said = "; ".join(shown)
    blind = not of_gpus or any("no GPU here" in found["evidence"] for found in of_gpus)
    return name, f"{'FAILED' if blind else 'ok'}: {said}"


def killed(options, transport):
    """Rank 1 kills itself between two collectives: rank 0 must not wait for it."""
    name = f"a rank is killed, {transport}"
    ranks, logs = run(options, ours(transport), "die", TOLD_S + RUN_S)
    at = [line for line in logs[1].splitlines() if line.startswith("DIES ")]
    if not at or ranks[1] != -signal.SIGKILL:
        return name, f"FAILED: status {ranks}, no rank has killed itself\n{logs[1][-2000:]}"
    after = time.monotonic() - float(at[0].split()[1])
    if ranks[0] is None or after > TOLD_S:
        return name, f"FAILED: rank 0 still waited after {TOLD_S} s\n{logs[0][-2000:]}"
    mark = "NCCL WARN NET/ferroccl: "
    said = [line.split(mark)[1] for line in logs[0].splitlines() if mark in line]
    if ranks[0] == 0 or (options.backend == "nccl" and not said):
        return name, f"FAILED: rank 0 was told nothing, status {ranks[0]}\n{logs[0][-2000:]}"
    told = f", told: {said[0]}" if said else ""
    return name, f"ok: rank 0 ended after {after:.1f} s{told}"


def timed(options):
    """all_reduce over each way, in turns: medians, and ours against sockets."""
    with multi_process_service() as why:
        if why:
            yield "all_reduce, times", f"ok: not measured, {why}"
            return
        ways = {"sockets": SOCKETS, "with a helper thread each": HELPED}
        ways |= {transport: ours(transport) for transport in OURS}
        found = {way: {size: [] for size in TIMED_BYTES} for way in ways}
        for _ in range(ROUNDS):
            for way, environment in ways.items():
                ended, logs = run(options, environment, "measure")
                if ended != WELL:
                    yield "all_reduce, times", f"FAILED: status {ended}\n{logs[0][-2000:]}"
                    return
                for line in logs[0].splitlines():
                    if line.startswith("TIME "):
                        _, size, us = line.split()
                        found[way][int(size)].append(float(us))
        for size in TIMED_BYTES:
            base = statistics.median(found["sockets"][size])
            told = [f"sockets {base:.0f} µs"]
            for way in [way for way in ways if way != "sockets"]:
                median = statistics.median(found[way][size])
                pairs = zip(found[way][size], found["sockets"][size])
                ratios = [one / other for one, other in pairs]
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                told.append(f"{way} {median:.0f} µs, {median / base:.2f} ({spread}) of that")
            yield f"all_reduce of {size} bytes, medians of {ROUNDS} runs", "ok: " + "; ".join(told)


@contextlib.contextmanager
def multi_process_service():
    """Runs CUDA's MPS, so that two processes use the GPU at once; gives why that cannot be."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not control:
        yield "there is no nvidia-cuda-mps-control, and without it the ranks take turns on the GPU"
        return
    with tempfile.TemporaryDirectory() as place:
        where = {"CUDA_MPS_PIPE_DIRECTORY": place, "CUDA_MPS_LOG_DIRECTORY": place}
        os.environ.update(where)
        try:
            began = subprocess.run([control, "-d"], capture_output=True, text=True, timeout=MPS_S)
            why = f"MPS: {began.stdout}{began.stderr}" if began.returncode else None
        except subprocess.TimeoutExpired:
            why = f"MPS did not start within {MPS_S} s"
        try:
            yield why
        finally:
            # One that does not answer must not cost the results.
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input="quit -t 5\n", text=True, timeout=MPS_S)
            for name in where:
                del os.environ[name]


def compared(options):
    """A row for each way that messages can go."""
    expected, log = results(options, SOCKETS)
    name = "collectives and training over sockets"
    if expected is None:
        yield name, f"FAILED: {log[-2000:]}"
        return
    yield name, f"ok: {len(expected)} results"
    for transport in OURS:
        name = f"the same over ferroccl, {transport}"
        found, log = results(options, ours(transport), spoil=options.plant)
        if found is None:
            yield name, f"FAILED: {log[-2000:]}"
            continue
        differ = [case for case in expected if expected[case] != found.get(case)]
        yield name, f"FAILED: other bits in {differ}" if differ else "ok: the same bits"
        if options.backend == "nccl":
            used = "via NET/ferroccl" in log
            said = "ok" if used else "FAILED: no `via NET/ferroccl` in NCCL's log"
            yield f"NCCL says that it used it, {transport}", said


def results(options, environment, spoil=False):
    """What both ranks found, and what NCCL has logged; nothing if a rank has failed."""
    ended, logs = run(options, environment, "compare", spoil=spoil)
    said = "\n".join(logs)
    if ended != WELL:
        return None, f"status {ended}\n{said}"
    found = {}
    for rank, log in enumerate(logs):
        for line in log.splitlines():
            if line.startswith("RESULT "):
                _, case, digest = line.split()
                found[f"{case}@{rank}"] = digest
    return found, said


def run(options, environment, mode, limit=RUN_S, spoil=False):
    """The exit status of each rank (None: it had to be stopped), and what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks, ended = [], [None] * RANKS
    with tempfile.TemporaryDirectory() as place:
        logs = [pathlib.Path(place) / f"rank{rank}" for rank in range(RANKS)]
        for rank, log in enumerate(logs):
            own = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
                # Two hosts, as far as NCCL can tell, and nothing but the network between them.
                "NCCL_HOSTID": f"host-{rank}",
                "NCCL_MNNVL_ENABLE": "0",
                "NCCL_NVLS_ENABLE": "0",
                "NCCL_MAX_CTAS": "2",
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,NET",
                # PyTorch itself would wait for a minute before it ends a rank that was told.
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
                "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
            }
            words = [sys.executable, __file__, "--backend", options.backend]
            words += ["--rank", str(rank), "--work", mode] + (["--spoil"] if spoil else [])
            with log.open("w") as output:
                ranks.append(
                    subprocess.Popen(
                        words,
                        env=os.environ | own | environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        until = time.monotonic() + limit
        try:
            for rank, process in enumerate(ranks):
                ended[rank] = process.wait(max(1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in ranks:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            way = environment.get("FERROCCL_TRANSPORT", "sockets")
            for log in logs:
                shutil.copy(log, options.logs / f"{mode}-{way}-{log.name}")
        return ended, [log.read_text(errors="replace") for log in logs]


def work(options):
    """One rank of one of the runs."""
    import torch
    import torch.distributed as dist

    device = "cpu" if options.backend == "gloo" else "cuda"
    limit = datetime.timedelta(seconds=RUN_S)
    dist.init_process_group(options.backend, rank=options.rank, world_size=RANKS, timeout=limit)
    WORK[options.work](options, torch, dist, device)
    dist.barrier()
    dist.destroy_process_group()
    return 0


def die(options, torch, dist, device):
    """Rank 1 kills itself; rank 0 goes on, and on."""
    tensor = torch.ones(1 << 18, device=device)
    for turn in range(1_000_000):
        dist.all_reduce(tensor)
        tensor.div_(RANKS)
        if turn % 10 == 0:
            tensor.cpu()
        if options.rank == 1 and turn == 100:
            print(f"DIES {time.monotonic()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def measure(options, torch, dist, device):
    """Prints the microseconds of one all_reduce for each size."""
    for size in TIMED_BYTES:
        tensor = torch.ones(size // 4, device=device)
        turns = 200 if size <= 1 << 20 else 10
        for _ in range(turns // 10 + 5):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(turns):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        print(f"TIME {size} {(time.perf_counter() - began) / turns * 1e6}", flush=True)


def compare(options, torch, dist, device):
    """Prints a digest of what each case gives."""

    def tell(case, tensors):
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        if options.spoil and options.rank == 0:
            digest.update(b"spoilt")
        print(f"RESULT {case} {digest.hexdigest()}", flush=True)

    def data(count, kind, salt=0):
        torch.manual_seed(1000 * options.rank + salt)
        values = torch.rand(count) - 0.5 if kind.is_floating_point else torch.arange(count)
        return values.to(kind).to(device)

    kinds = [torch.float32, torch.int64] + ([torch.bfloat16] if device == "cuda" else [])
    for count in ELEMENTS:
        for kind in kinds:
            name = f"{str(kind).split('.')[1]}-{count}"
            tensor = data(count, kind)
            dist.all_reduce(tensor)
            tell(f"all_reduce-{name}", [tensor])
        parts = [torch.empty(count, device=device) for _ in range(RANKS)]
        dist.all_gather(parts, data(count, torch.float32))
        tell(f"all_gather-{count}", parts)
        tensor = data(count, torch.float32, 1)
        dist.broadcast(tensor, 1)
        tell(f"broadcast-{count}", [tensor])
        if device == "cuda":
            into = torch.empty(count, device=device)
            dist.reduce_scatter_tensor(into, data(RANKS * count, torch.float32))
            tell(f"reduce_scatter-{count}", [into])
            into = torch.empty(RANKS * count, device=device)
            dist.all_to_all_single(into, data(RANKS * count, torch.float32))
            tell(f"all_to_all-{count}", [into])
        if options.rank == 0:
            dist.send(data(count, torch.float32, 2), 1)
        else:
            into = torch.empty(count, device=device)
            dist.recv(into, 0)
            tell(f"send-{count}", [into])
    train(torch, device, tell, data)


def train(torch, device, tell, data):
    """A few steps of data-parallel training."""
    torch.manual_seed(7)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 16)]
    model = torch.nn.Sequential(*layers).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(20):
        inputs = data(64 * 256, torch.float32, step).view(64, 256)
        loss = (model(inputs) - inputs[:, :16]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().reshape(1))
    tell("training-losses", losses)
    tell("training-weights", list(model.parameters()))


WORK = {"compare": compare, "die": die, "measure": measure}

if __name__ == "__main__":
    sys.exit(main())
