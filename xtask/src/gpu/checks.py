#!/usr/bin/env python3
"""What needs a GPU: an NCCL that nobody has changed, over the plugin beside this file.

Two processes share the GPU; NCCL is told that they are on different hosts, so that the network is
the only way between them. What PyTorch's collectives and a small training run give is compared, bit
for bit, with what they give over NCCL's own sockets.

    python3 checks.py                   all of it: needs one GPU, and PyTorch with NCCL
    python3 checks.py --backend gloo    the same without NCCL and without a GPU: these checks themselves
"""

import argparse
import ctypes
import datetime
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PLUGIN = HERE / "libnccl-net-ferroccl.so"
RANKS = 2
RUN_S = 150
# Over which of our transports, beside NCCL's own sockets.
OURS = ["tcp", "shm"]
ELEMENTS = [1, 1000, 1 << 18, 3_000_001]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--out", default="results.json", help="where the results go, as JSON")
    parser.add_argument("--plant", action="store_true", help="spoil a result: it must be found")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
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
    command = [str(HERE / "netcheck"), str(PLUGIN), "--contract-only", "--skip-performance"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    except subprocess.TimeoutExpired:
        return "netcheck, host memory", f"FAILED: not done within {RUN_S} s"
    last = next((line for line in ended.stdout.splitlines() if " passed, " in line), ended.stderr)
    return "netcheck, host memory", f"{'FAILED' if ended.returncode else 'ok'}: {last.strip()}"


def compared(options):
    """A row for each way that messages can go."""
    expected, log = run(options, {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"})
    name = "collectives and training over sockets"
    if expected is None:
        yield name, f"FAILED: {log[-2000:]}"
        return
    yield name, f"ok: {len(expected)} results"
    for transport in OURS:
        name = f"the same over ferroccl, {transport}"
        plugin = {"NCCL_NET_PLUGIN": str(PLUGIN), "FERROCCL_TRANSPORT": transport}
        found, log = run(options, plugin, spoil=options.plant)
        if found is None:
            yield name, f"FAILED: {log[-2000:]}"
            continue
        differ = [case for case in expected if expected[case] != found.get(case)]
        yield name, f"FAILED: other bits in {differ}" if differ else "ok: the same bits"
        if options.backend == "nccl":
            used = "via NET/ferroccl" in log
            said = "ok" if used else "FAILED: no `via NET/ferroccl` in NCCL's log"
            yield f"NCCL says that it used it, {transport}", said


def run(options, environment, spoil=False):
    """What both ranks found, if they agree, and what NCCL has logged."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as place:
        logs = [pathlib.Path(place) / f"rank{rank}" for rank in range(RANKS)]
        ranks = []
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
            }
            words = [sys.executable, __file__, "--backend", options.backend, "--rank", str(rank)]
            words += ["--spoil"] if spoil else []
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
        try:
            until = datetime.datetime.now() + datetime.timedelta(seconds=RUN_S)
            for rank in ranks:
                rank.wait(max(1, (until - datetime.datetime.now()).total_seconds()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
                    rank.wait()
        said = "\n".join(log.read_text(errors="replace") for log in logs)
        if any(rank.returncode for rank in ranks):
            return None, f"status {[rank.returncode for rank in ranks]}\n{said}"
        lines = [log.read_text(errors="replace").splitlines() for log in logs]
        found = {}
        for rank, text in enumerate(lines):
            for line in text:
                if line.startswith("RESULT "):
                    _, case, digest = line.split()
                    found[f"{case}@{rank}"] = digest
        return found, said


def work(options):
    """One rank: prints a digest of what each case gives."""
    import torch
    import torch.distributed as dist

    device = "cpu" if options.backend == "gloo" else "cuda"
    limit = datetime.timedelta(seconds=RUN_S)
    dist.init_process_group(options.backend, rank=options.rank, world_size=RANKS, timeout=limit)

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
    dist.barrier()
    dist.destroy_process_group()
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
