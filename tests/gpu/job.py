#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""One rank of a plain PyTorch + NCCL job, led by lines on stdin.

It knows nothing of lien: torch.distributed, backend nccl, one process per GPU, with RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the environment. Each line is a command with
arguments separated by blanks; each answer is one JSON object on a line of stdout:

    {"command": "check", "ok": true, "ms": 812.4, ...}
    {"command": "check", "ok": false, "ms": 90.1, "error": "communicator 2: ..."}

The first line, not asked for, is {"command": "start", "ok": true, "pid": ...}. Every command but
those of UNSYNCED ends with torch.cuda.synchronize(), so that the rank is at a quiet point when it
answers. Whatever else is written to stdout (NCCL's version line) goes to stderr.

All ranks must be given the same commands, but for those that are no collective: capture-hold,
capture-release, busy, sync, meminfo, segments, fill, verify-fill, drop-fill, info, quit.
"""
import argparse
import datetime
import faulthandler
import gc
import json
import os
import signal
import sys
import time
import traceback

import torch
import torch.distributed as dist

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MODULUS = 1000003  # values are below it: sums of thousands of ranks stay exact in 32 bits
RANKS_MAX = 1024
PIECE = 256 * MIB  # of `fill`

# Answered while work or a capture is still under way.
UNSYNCED = ("capture-hold", "busy")


class Mismatch(Exception):
    pass


def size_text(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def compare(what: str, got, want) -> None:
    """Value by value, on the host; names the first place that differs."""
    got = got.cpu()
    if torch.equal(got, want):
        return
    if got.shape != want.shape:
        raise Mismatch(f"{what}: {got.numel()} values, want {want.numel()}")
    places = (got != want).nonzero().flatten()
    at = int(places[0])
    raise Mismatch(f"{what}: {len(places)} of {got.numel()} values are wrong, the first at {at}: "
                   f"{int(got[at])}, want {int(want[at])}")


class Job:
    def __init__(self, max_bytes: int, timeout_s: float):
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s
        self.groups: list = []
        self.index = None
        self.checks = 0
        self.graph = self.static = self.graph_group = None
        self.held = self.held_graph = self.held_input = self.held_middle = None
        self.filled: list = []
        self.pool = self.pooled = None

    # Data

    def values(self, seed: int, count: int):
        """`count` values on the host; another seed gives another value at every place."""
        if self.index is None or self.index.numel() < count:
            self.index = torch.arange(count, dtype=torch.int64)
        values = (self.index[:count] * 7919 + seed % MODULUS) % MODULUS
        return values.to(torch.int32)

    def random(self, seed: int, count: int):
        generator = torch.Generator(device=self.device)
        generator.manual_seed(seed)
        return torch.randint(-2**31, 2**31 - 1, (count,), dtype=torch.int32, device=self.device,
                             generator=generator)

    def empty(self, count: int):
        return torch.empty(count, dtype=torch.int32, device=self.device)

    def on_device(self, values):
        return values.to(self.device)

    # Collectives: each returns what came out and what should have. Rank r's data have seed + r.

    def all_reduce(self, group, seed: int, count: int):
        tensor = self.on_device(self.values(seed + self.rank, count))
        dist.all_reduce(tensor, group=group)
        want = self.values(seed, count)
        for rank in range(1, self.world):
            want = want + self.values(seed + rank, count)
        return tensor, want

    def all_to_all(self, group, seed: int, count: int):
        total = count * self.world
        out = self.empty(total)
        dist.all_to_all_single(out, self.on_device(self.values(seed + self.rank, total)),
                               group=group)
        mine = slice(self.rank * count, (self.rank + 1) * count)
        return out, torch.cat([self.values(seed + r, total)[mine] for r in range(self.world)])

    def all_gather(self, group, seed: int, count: int):
        out = self.empty(count * self.world)
        dist.all_gather_into_tensor(out, self.on_device(self.values(seed + self.rank, count)),
                                    group=group)
        return out, torch.cat([self.values(seed + r, count) for r in range(self.world)])

    def reduce_scatter(self, group, seed: int, count: int):
        total = count * self.world
        out = self.empty(count)
        dist.reduce_scatter_tensor(out, self.on_device(self.values(seed + self.rank, total)),
                                   group=group)
        mine = slice(self.rank * count, (self.rank + 1) * count)
        want = self.values(seed, total)[mine]
        for rank in range(1, self.world):
            want = want + self.values(seed + rank, total)[mine]
        return out, want

    def send_recv(self, group, seed: int, count: int):
        """Both ways round the ring. Batched: a lone send would make a communicator of its own."""
        left, right = (self.rank - 1) % self.world, (self.rank + 1) % self.world
        other = seed + RANKS_MAX // 2
        out = self.empty(2 * count)
        operations = [
            dist.P2POp(dist.isend, self.on_device(self.values(seed + self.rank, count)), right,
                       group),
            dist.P2POp(dist.isend, self.on_device(self.values(other + self.rank, count)), left,
                       group),
            dist.P2POp(dist.irecv, out[:count], left, group),
            dist.P2POp(dist.irecv, out[count:], right, group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return out, torch.cat([self.values(seed + left, count), self.values(other + right, count)])

    def broadcast(self, group, seed: int, count: int):
        root = (seed // RANKS_MAX) % self.world
        tensor = self.on_device(self.values(seed + self.rank, count))
        dist.broadcast(tensor, src=root, group=group)
        return tensor, self.values(seed + root, count)

    def collectives(self) -> list:
        large, small = self.max_bytes, self.max_bytes // 4
        return [
            ("all-reduce", self.all_reduce, (KIB, 64 * KIB, MIB, large)),
            ("all-to-all", self.all_to_all, (KIB, small)),
            ("all-gather", self.all_gather, (KIB, small)),
            ("reduce-scatter", self.reduce_scatter, (KIB, small)),
            ("send/recv", self.send_recv, (KIB, small)),
            ("broadcast", self.broadcast, (KIB, small, small)),
        ]

    def exercise(self, number: int) -> tuple[int, int]:
        """Every collective on one communicator, compared; returns how many, and their bytes."""
        done = moved = 0
        for name, collective, sizes in self.collectives():
            for size in sizes:
                if size > self.max_bytes:
                    continue
                seed = RANKS_MAX * (self.checks * 4099 + number * 127 + done)
                got, want = collective(self.groups[number], seed, size // 4)
                compare(f"communicator {number}: {name} of {size_text(size)}", got, want)
                done += 1
                moved += size
        return done, moved

    def exercise_all(self) -> dict:
        self.checks += 1
        results = [self.exercise(number) for number in range(len(self.groups))]
        return {"communicators": len(results), "collectives": sum(r[0] for r in results),
                "bytes": sum(r[1] for r in results)}

    # Commands

    def info(self) -> dict:
        properties = torch.cuda.get_device_properties(self.device)
        return {"pid": os.getpid(), "rank": self.rank, "device": self.device.index,
                "name": properties.name, "uuid": str(getattr(properties, "uuid", "")),
                "torch": str(torch.__version__), "cuda": str(torch.version.cuda),
                "nccl": ".".join(str(n) for n in torch.cuda.nccl.version())}

    def init_cuda(self) -> dict:
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        return self.info()

    def setup(self, communicators: str = "4") -> dict:
        """No device_id: each group then gets an id and a communicator of its own, at first use."""
        result = self.init_cuda()
        limit = datetime.timedelta(seconds=self.timeout_s)
        dist.init_process_group("nccl", rank=self.rank, world_size=self.world, timeout=limit)
        self.groups = [dist.group.WORLD]
        while len(self.groups) < int(communicators):
            self.groups.append(self.make_group())
        result.update(self.exercise_all())
        return result

    def make_group(self):
        limit = datetime.timedelta(seconds=self.timeout_s)
        return dist.new_group(list(range(self.world)), timeout=limit)

    def check(self) -> dict:
        return self.exercise_all()

    def new_comm(self) -> dict:
        self.groups.append(self.make_group())
        self.checks += 1
        done, moved = self.exercise(len(self.groups) - 1)
        return {"communicators": len(self.groups), "collectives": done, "bytes": moved}

    def settle(self) -> None:
        """The watchdog thread of torch.distributed queries the events of work until it has seen it
        done; no capture may begin before."""
        torch.cuda.synchronize()
        time.sleep(0.5)

    def graph_capture(self, communicator: str = "0") -> dict:
        self.static = self.empty(min(MIB, self.max_bytes) // 4)
        self.static.zero_()
        self.settle()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            dist.all_reduce(self.static, group=self.groups[int(communicator)])
        return self.graph_replay("1")

    def graph_replay(self, times: str = "3") -> dict:
        if self.graph is None:
            raise RuntimeError("no graph was captured")
        count = self.static.numel()
        for _ in range(int(times)):
            self.checks += 1
            seed = RANKS_MAX * self.checks * 4099
            self.static.copy_(self.values(seed + self.rank, count))
            self.graph.replay()
            torch.cuda.synchronize()
            want = self.values(seed, count)
            for rank in range(1, self.world):
                want = want + self.values(seed + rank, count)
            compare("all-reduce of the captured graph", self.static, want)
        return {"replays": int(times), "values": count}

    def capture_hold(self, mode: str = "global") -> dict:
        self.held_input = self.on_device(self.values(17, KIB))
        self.settle()
        self.held_graph = torch.cuda.CUDAGraph()
        self.held = torch.cuda.graph(self.held_graph, capture_error_mode=mode)
        self.held.__enter__()
        self.held_middle = self.held_input * 2
        return {"mode": mode}

    def capture_release(self) -> dict:
        if self.held is None:
            raise RuntimeError("no capture is held")
        out = self.held_middle + 1
        held, self.held = self.held, None
        held.__exit__(None, None, None)
        self.held_graph.replay()
        torch.cuda.synchronize()
        compare("the graph whose capture was held", out, self.values(17, KIB) * 2 + 1)
        self.held_graph = self.held_input = self.held_middle = None
        return {}

    def busy(self, seconds: str = "5") -> dict:
        """Keeps the device busy for about that long (longer where its clock is below 1.9 GHz)."""
        for _ in range(int(float(seconds) * 10)):
            torch.cuda._sleep(190_000_000)
        return {}

    def sync(self) -> dict:
        return {}

    def fill(self, gib: str = "8") -> dict:
        count = PIECE // 4
        for _ in range(int(float(gib) * GIB) // PIECE):
            seed = 1000 * self.rank + len(self.filled)
            tensor = self.random(seed, count)
            checksum = int(tensor.sum(dtype=torch.int64))
            self.filled.append((seed, tensor, tensor.data_ptr(), checksum))
        return {"tensors": len(self.filled), "bytes": len(self.filled) * PIECE}

    def verify_fill(self) -> dict:
        """Against the checksum kept on the host, and bit by bit against the same values anew."""
        for number, (seed, tensor, address, checksum) in enumerate(self.filled):
            if tensor.data_ptr() != address:
                raise Mismatch(f"tensor {number} moved from {address:#x}")
            again = self.random(seed, tensor.numel())
            if int(again.sum(dtype=torch.int64)) != checksum:
                raise Mismatch(f"tensor {number}: its values could not be made again")
            if not torch.equal(tensor, again):
                places = (tensor != again).nonzero().flatten()
                raise Mismatch(f"tensor {number} at {address:#x}: {len(places)} of "
                               f"{tensor.numel()} values changed, the first at {int(places[0])}")
            if int(tensor.sum(dtype=torch.int64)) != checksum:
                raise Mismatch(f"tensor {number} at {address:#x}: another checksum")
        return {"tensors": len(self.filled), "bytes": len(self.filled) * PIECE}

    def drop_fill(self) -> dict:
        """Frees the tensors and gives their memory back to the driver. With expandable segments
        PyTorch releases it by the handles that it kept since it was made."""
        before = torch.cuda.memory_reserved(self.device)
        self.filled.clear()
        torch.cuda.empty_cache()
        return {"freed": before - torch.cuda.memory_reserved(self.device)}

    def segments(self) -> dict:
        """What PyTorch's allocator has from the driver on this device: address and size."""
        mine = [s for s in torch.cuda.memory_snapshot() if s["device"] == self.device.index]
        return {"segments": sorted([s["address"], s["total_size"]] for s in mine)}

    def pool_register(self, mib: str = "64", how: str = "buffer") -> dict:
        """Memory of NCCL's own allocator, registered with the first communicator; how: "window"."""
        backend = self.groups[0]._get_backend(self.device)
        self.pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(self.pool):
            self.pooled = torch.zeros(int(mib) * MIB // 4, dtype=torch.int32, device=self.device)
        if how == "window":
            backend.register_mem_pool(self.pool, symm=True)
        else:
            backend.register_mem_pool(self.pool)
        dist.all_reduce(self.pooled, group=self.groups[0])
        return {"address": self.pooled.data_ptr(), "bytes": int(mib) * MIB,
                "segments": [[s["address"], s["total_size"]] for s in self.pool.snapshot()]}

    def pool_use(self) -> dict:
        """An all-reduce in the registered memory, compared."""
        self.checks += 1
        seed, count = RANKS_MAX * self.checks * 4099, self.pooled.numel()
        self.pooled.copy_(self.values(seed + self.rank, count))
        dist.all_reduce(self.pooled, group=self.groups[0])
        want = self.values(seed, count)
        for rank in range(1, self.world):
            want = want + self.values(seed + rank, count)
        compare("all-reduce in registered memory", self.pooled, want)
        return {"values": count}

    def pool_deregister(self) -> dict:
        self.groups[0]._get_backend(self.device).deregister_mem_pool(self.pool)
        self.pooled = self.pool = None
        gc.collect()
        torch.cuda.empty_cache()
        return {}

    def meminfo(self) -> dict:
        free, total = torch.cuda.mem_get_info(self.device)
        return {"pid": os.getpid(), "device": self.device.index, "free": free, "total": total,
                "allocated": torch.cuda.memory_allocated(self.device),
                "reserved": torch.cuda.memory_reserved(self.device)}

    def time_setup(self, communicators: str = "4") -> dict:
        """Makes communicators, each with its first all-reduce, and destroys them again."""
        each, groups = [], []
        tensor = torch.ones(256, dtype=torch.int32, device=self.device)
        for _ in range(int(communicators)):
            groups.append(self.make_group())
            dist.all_reduce(tensor, group=self.groups[0])
            torch.cuda.synchronize()
            began = time.monotonic()
            dist.all_reduce(tensor, group=groups[-1])
            torch.cuda.synchronize()
            each.append((time.monotonic() - began) * 1e3)
        for group in groups:
            dist.destroy_process_group(group)
        return {"each_ms": each}

    def time_allreduce(self, times: str = "1000") -> dict:
        tensor = torch.zeros(256, dtype=torch.int32, device=self.device)
        for _ in range(50):
            dist.all_reduce(tensor, group=self.groups[0])
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(int(times)):
            dist.all_reduce(tensor, group=self.groups[0])
        torch.cuda.synchronize()
        total = (time.monotonic() - began) * 1e3
        return {"times": int(times), "total_ms": total}

    def train(self, steps: str = "200") -> dict:
        """A data-parallel loop that never pauses: a step's gradients are averaged on one group,
        its loss on another, activations go round the ring. Deterministic: the losses are the
        same in every run."""
        torch.manual_seed(1)
        width, losses = 512, []
        layers = [torch.nn.Linear(width, width, device=self.device) for _ in range(4)]
        model = torch.nn.Sequential(*layers)
        generator = torch.Generator(device=self.device)
        generator.manual_seed(100 + self.rank)
        got = torch.empty(width, device=self.device)
        for step in range(int(steps)):
            batch = torch.randn(64, width, device=self.device, generator=generator)
            loss = (model(batch) - batch).square().mean()
            model.zero_grad(set_to_none=True)
            loss.backward()
            for number, parameter in enumerate(model.parameters()):
                dist.all_reduce(parameter.grad, group=self.groups[number % len(self.groups)])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 / self.world * parameter.grad
            right, left = (self.rank + 1) % self.world, (self.rank - 1) % self.world
            sent = layers[0].bias.detach().clone()
            for work in dist.batch_isend_irecv([
                    dist.P2POp(dist.isend, sent, right, self.groups[0]),
                    dist.P2POp(dist.irecv, got, left, self.groups[0])]):
                work.wait()
            total = loss.detach().clone() + 0 * got.sum()
            dist.all_reduce(total, group=self.groups[-1])
            if step % 4 == 3:
                losses.append(total.item().hex())
        return {"steps": int(steps), "losses": losses}

    def destroy(self) -> dict:
        self.graph = self.static = None
        gc.collect()
        torch.cuda.synchronize()
        groups = len(self.groups)
        self.groups = []
        dist.destroy_process_group()
        return {"communicators": groups}


COMMANDS = {
    "info": Job.info,
    "init-cuda": Job.init_cuda,
    "setup": Job.setup,
    "check": Job.check,
    "new-comm": Job.new_comm,
    "graph-capture": Job.graph_capture,
    "graph-replay": Job.graph_replay,
    "capture-hold": Job.capture_hold,
    "capture-release": Job.capture_release,
    "busy": Job.busy,
    "sync": Job.sync,
    "fill": Job.fill,
    "verify-fill": Job.verify_fill,
    "drop-fill": Job.drop_fill,
    "segments": Job.segments,
    "pool-register": Job.pool_register,
    "pool-use": Job.pool_use,
    "pool-deregister": Job.pool_deregister,
    "meminfo": Job.meminfo,
    "time-setup": Job.time_setup,
    "time-allreduce": Job.time_allreduce,
    "train": Job.train,
    "destroy": Job.destroy,
}


def obey(job: Job, words: list) -> dict:
    name, arguments = words[0], words[1:]
    began = time.monotonic()
    answer: dict = {"command": name, "ok": True}
    try:
        if name not in COMMANDS:
            raise ValueError(f"unknown command {name}")
        answer.update(COMMANDS[name](job, *arguments))
        if name not in UNSYNCED and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Mismatch as error:
        answer.update(ok=False, error=str(error))
    except Exception as error:
        traceback.print_exc()
        answer.update(ok=False, error=f"{type(error).__name__}: {error}")
    answer["ms"] = round((time.monotonic() - began) * 1e3, 3)
    return answer


def own_stdout():
    """Answers get the real stdout; what libraries print there goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description="one rank of a PyTorch + NCCL job")
    parser.add_argument("--max-bytes", type=int, default=32 * MIB, help="of a collective")
    parser.add_argument("--timeout", type=float, default=60, help="of a collective, seconds")
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answers = own_stdout()
    job = Job(options.max_bytes, options.timeout)
    print(json.dumps({"command": "start", "ok": True, "pid": os.getpid()}), file=answers)
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        if not words:
            continue
        if words[0] == "quit":
            print(json.dumps({"command": "quit", "ok": True, "ms": 0}), file=answers)
            return 0
        print(json.dumps(obey(job, words)), file=answers)
    os._exit(3)  # whoever led this rank is gone; the other ranks may be too, so wait for none


if __name__ == "__main__":
    sys.exit(main())
