#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""One rank of a trainer or of a rollout engine, for rl.py: plain PyTorch, led by lines on stdin like job.py.

    rl_engine.py --role trainer|rollout --gib GIB --cache BYTES --meet DIRECTORY
    rl_engine.py --probe

The trainer is FSDP2 with AdamW: 32 bit parameters, 16 bit computation. The rollout is tensor parallel, 16 bit, with
a key-value cache, and decodes by replaying a CUDA graph that has the all-reduces in it. Both have the same model.
The trainer hands its weights over as colocated engines do: each rank gathers in a buffer what the rollout's rank on the
same GPU needs, which opens the buffer by CUDA IPC and copies it (`publish`, `load`); or, as engines on other GPUs do, it
sends the buffer to the rollout's next rank, over a group that is made for it (`send`, `receive`). For such a group they
meet in DIRECTORY.

Of lien it uses tags alone, in the rollout: "kv_cache" for the cache, "engine" for the rest. `leave` and `come-back` are
how a job without lien makes room: what must survive is copied to pinned host memory, the groups are destroyed, and all
of it is made again.

--probe prints what PyTorch sees of the machine. rl.py says what each command is for.
"""
import argparse
import base64
import contextlib
import faulthandler
import gc
import json
import math
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import reduce_tensor

from job import own_stdout

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools" / "python"))
import lien  # noqa: E402

WIDTH, HEADS = 4096, 32
HEAD = WIDTH // HEADS
PIECES = {"qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH), "up": (4 * WIDTH, WIDTH), "down": (WIDTH, 4 * WIDTH)}
LAYER = sum(rows * columns for rows, columns in PIECES.values())
BATCH, LENGTH = 2, 256         # what the trainer trains on, each rank
SEQUENCES, POSITIONS = 16, 64  # what the rollout decodes
HALF = 2                       # bytes of a bfloat16
WHOLE = 1 << 61


def norm(x):
    return nn.functional.rms_norm(x, x.shape[-1:])


def register(buffer) -> None:
    """Pins host memory that is not PyTorch's."""
    size = buffer.numel() * buffer.element_size()
    code = int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), size, 0))
    if code:
        raise RuntimeError(f"cudaHostRegister of {size:,} bytes: error {code}")


def total(tensors) -> int:
    """A sum of their bits, in which each tensor has its own weight. Makes 64 bit copies, of one after the other."""
    sums = [tensor.reshape(-1).view(torch.int16 if tensor.element_size() == HALF else torch.int32)
            .sum(dtype=torch.int64) for tensor in tensors]
    return sum((number + 1) * part for number, part in enumerate(torch.stack(sums).tolist())) % WHOLE


class Clock:
    """ms of one part after the other."""

    def __init__(self):
        self.parts, self.before = {}, time.monotonic()

    def end(self, name: str) -> None:
        torch.cuda.synchronize()
        now = time.monotonic()
        self.parts[name] = round(1e3 * (now - self.before), 1)
        self.before = now


class Engine:
    """What both have: a place, and a group."""

    def __init__(self, options):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        self.layers = max(1, round(options.gib * (1 << 30) / (LAYER * HALF)))
        self.cache_bytes, self.meet = options.cache, options.meet
        self.store, self.groups_made = None, 0

    def join(self) -> None:
        """A group of all ranks: a new one each time, by the same store."""
        if self.store is None:
            self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), self.world,
                                       self.rank == 0)
        self.groups_made += 1
        dist.init_process_group("nccl", store=dist.PrefixStore(f"group {self.groups_made}", self.store),
                                rank=self.rank, world_size=self.world, device_id=self.device)
        dist.all_reduce(torch.zeros(1, device=self.device))

    def pair(self, name: str, trainer: int, rank: int):
        """A group of two: the trainer's rank, which is 0 in it, and the rollout's next one."""
        store = dist.FileStore(os.path.join(self.meet, f"{name}.{trainer}"), 2)
        return dist.ProcessGroupNCCL(store, rank, 2, dist.ProcessGroupNCCL.Options())

    def info(self, **more) -> dict:
        properties = torch.cuda.get_device_properties(self.device)
        return {"device": self.device.index, "uuid": str(getattr(properties, "uuid", "")), "layers": self.layers,
                "weight_bytes": self.layers * LAYER * HALF,
                "reserved_bytes": torch.cuda.max_memory_reserved(self.device), **more}

    def pieces(self, flat) -> list:
        """Views of what a rank of the rollout has, layer by layer: [{name: tensor}]"""
        at, layers = 0, []
        for _ in range(self.layers):
            layers.append({})
            for name, (rows, columns) in PIECES.items():
                count = rows * columns // self.world
                shape = (rows // self.world, columns) if name in ("qkv", "up") else (rows, columns // self.world)
                layers[-1][name] = flat[at:at + count].view(shape)
                at += count
        return layers

    def buffer(self):
        """As large as the weights of a rank of the rollout."""
        return torch.empty(self.layers * LAYER // self.world, dtype=torch.bfloat16, device=self.device)


# The trainer

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        for name, (rows, columns) in PIECES.items():
            setattr(self, name, nn.Linear(columns, rows, bias=False))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.transpose(1, 2) for part in
                   self.qkv(norm(x)).view(batch, length, 3, HEADS, HEAD).unbind(2))
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = (q @ k.transpose(2, 3) / math.sqrt(HEAD)).masked_fill(later, -math.inf).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(torch.relu(self.up(norm(x))))


class Trainer(Engine):
    def __init__(self, options):
        super().__init__(options)
        self.net = self.optimizer = self.away = self.handed = None
        self.steps = 0

    def build(self) -> None:
        """The model and its optimizer, without values."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        with torch.device("meta"):
            self.net = nn.Sequential(*(Block() for _ in range(self.layers)))
        more = {"mesh": init_device_mesh("cuda", (self.world,)),
                "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
        for block in self.net:
            fully_shard(block, **more)
        fully_shard(self.net, **more)
        self.net.to_empty(device=self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-4, fused=True)

    def shards(self) -> list:
        return [parameter.to_local().detach() for parameter in self.net.parameters()]

    def state(self) -> list:
        """All that must survive."""
        moments = [self.optimizer.state[parameter][name].to_local()
                   for parameter in self.net.parameters() for name in ("exp_avg", "exp_avg_sq")]
        return self.shards() + moments

    def setup(self) -> dict:
        torch.cuda.set_device(self.device)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.join()
        self.build()
        for number, shard in enumerate(self.shards()):
            generator = torch.Generator(self.device)
            generator.manual_seed(1000 * number + self.rank)
            shard.normal_(0, WIDTH ** -0.5, generator=generator)
        self.learn(0, 0.0)  # makes the optimizer's state
        torch.cuda.empty_cache()
        return self.info()

    def learn(self, step: int, reward: float):
        generator = torch.Generator(self.device)
        generator.manual_seed(1000 * step + self.rank)
        x = torch.randn(BATCH, LENGTH, WIDTH, device=self.device, generator=generator)
        loss = (self.net(x).float() - reward).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return loss

    def train(self, step: str, reward: str) -> dict:
        return {"loss": float(self.learn(int(step), float.fromhex(reward)).detach()).hex(),
                "reserved_bytes": torch.cuda.max_memory_reserved(self.device)}

    def gather(self, rank: int) -> dict:
        """The weights that this rank of the rollout needs, in 16 bits."""
        self.handed, shards = self.buffer(), iter(self.shards())
        heads = slice(rank * HEADS // self.world, (rank + 1) * HEADS // self.world)
        for places in self.pieces(self.handed):
            for name, (rows, columns) in PIECES.items():
                shard = next(shards).to(torch.bfloat16)
                whole = torch.empty(rows, columns, dtype=torch.bfloat16, device=self.device)
                dist.all_gather_into_tensor(whole, shard)
                if name == "qkv":
                    places[name].copy_(whole.view(3, HEADS, HEAD, columns)[:, heads].reshape(-1, columns))
                else:
                    places[name].copy_(whole.chunk(self.world, 0 if name == "up" else 1)[rank])
        return {"sum": total(self.handed.split(LAYER))}

    def publish(self) -> dict:
        answer = self.gather(self.rank)
        torch.cuda.synchronize()
        return {**answer, "handle": base64.b64encode(pickle.dumps(reduce_tensor(self.handed))).decode()}

    def send(self, name: str) -> dict:
        # All ranks need all shards, but each sends to another one.
        answer = self.gather((self.rank + 1) % self.world)
        group = self.pair(name, self.rank, 0)
        group.broadcast([self.handed]).wait()
        torch.cuda.synchronize()
        group.shutdown()
        return answer

    def release(self) -> dict:
        """Memory that PyTorch has cached goes back to the driver, so that a switch need not move it."""
        self.handed = None
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        return {}

    def checksum(self) -> dict:
        return {"sum": total(self.state())}

    def leave(self) -> dict:
        clock = Clock()
        state = self.state()
        if self.away is None:
            self.away = [torch.empty(sum(tensor.numel() for tensor in state), dtype=torch.float32)]
            register(self.away[0])
            clock.end("pin")
        places = self.away[0].split([tensor.numel() for tensor in state])
        for place, tensor in zip(places, state):
            place.view(tensor.shape).copy_(tensor, non_blocking=True)
        clock.end("copy")
        del state, tensor
        self.net = self.optimizer = None
        gc.collect()
        torch.cuda.empty_cache()
        clock.end("free")
        dist.destroy_process_group()
        clock.end("groups")
        return {"parts": clock.parts}

    def come_back(self) -> dict:
        clock = Clock()
        self.join()
        clock.end("groups")
        self.build()
        for parameter in self.net.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(self.steps), device=self.device),
                "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        clock.end("build")
        state = self.state()
        for place, tensor in zip(self.away[0].split([tensor.numel() for tensor in state]), state):
            tensor.copy_(place.view(tensor.shape), non_blocking=True)
        clock.end("copy")
        return {"parts": clock.parts}


# The rollout

class Rollout(Engine):
    def __init__(self, options):
        super().__init__(options)
        self.flat = self.weights = self.pool = self.cache = self.graph = None

    def make_weights(self) -> None:
        self.flat = self.buffer().zero_()
        self.weights = self.pieces(self.flat)

    def allocate(self) -> None:
        width = WIDTH // self.world
        slots = max(self.cache_bytes // (self.layers * 2 * width * HALF), SEQUENCES * POSITIONS)
        self.pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self.pool), lien.tag("kv_cache"):
            self.cache = torch.zeros(self.layers, 2, slots, width, dtype=torch.bfloat16, device=self.device)
        # Those that are used are spread over the whole cache.
        self.slots = (torch.arange(SEQUENCES * POSITIONS, device=self.device)
                      * (slots // (SEQUENCES * POSITIONS))).view(SEQUENCES, POSITIONS)
        self.positions = torch.arange(POSITIONS, device=self.device)
        self.x = torch.zeros(SEQUENCES, WIDTH, dtype=torch.bfloat16, device=self.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.digest = torch.zeros(1, dtype=torch.float64, device=self.device)

    def decode(self) -> None:
        """One position of all sequences; what the graph does."""
        x, heads = self.x, HEADS // self.world
        now = self.slots.index_select(1, self.position).view(-1)
        later = (self.positions > self.position).view(1, 1, -1)
        for layer, cache in zip(self.weights, self.cache):
            q, k, v = (norm(x) @ layer["qkv"].T).view(SEQUENCES, 3, heads * HEAD).unbind(1)
            seen = []
            for part, values in zip(cache, (k, v)):
                part.index_copy_(0, now, values)
                seen.append(part.index_select(0, self.slots.view(-1))
                            .view(SEQUENCES, POSITIONS, heads, HEAD).transpose(1, 2))
            keys, values = seen
            scores = q.view(SEQUENCES, heads, 1, HEAD) @ keys.transpose(2, 3) / math.sqrt(HEAD)
            weights = scores.squeeze(2).masked_fill(later, -math.inf).softmax(-1)
            y = (weights.unsqueeze(2) @ values).view(SEQUENCES, heads * HEAD) @ layer["out"].T
            dist.all_reduce(y)
            x = x + y
            y = torch.relu(norm(x) @ layer["up"].T) @ layer["down"].T
            dist.all_reduce(y)
            x = x + y
        self.x.copy_(norm(x))
        self.digest.add_(self.x.double().sum())
        self.position.add_(1)

    def capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what may not be made during a capture
            for _ in range(2):
                self.decode()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.decode()
        torch.cuda.synchronize()

    def setup(self) -> dict:
        torch.cuda.set_device(self.device)
        self.join()
        self.make_weights()
        self.allocate()
        self.capture()
        return self.info()

    def load(self, *handles: str) -> dict:
        """Into the same tensor: the graph knows it."""
        rebuild, arguments = pickle.loads(base64.b64decode(handles[self.rank]))
        self.flat.copy_(rebuild(*arguments))
        answer = self.checksum()
        torch.cuda.ipc_collect()
        return answer

    def receive(self, name: str) -> dict:
        group = self.pair(name, (self.rank - 1) % self.world, 1)
        group.broadcast([self.flat]).wait()
        torch.cuda.synchronize()
        group.shutdown()
        return self.checksum()

    def generate(self, step: str) -> dict:
        generator = torch.Generator(self.device)
        generator.manual_seed(1000 * int(step))  # the same on all ranks
        self.x.copy_(torch.randn(SEQUENCES, WIDTH, device=self.device, generator=generator))
        self.position.zero_()
        self.digest.zero_()
        for _ in range(POSITIONS):
            self.graph.replay()
        digest = float(self.digest)
        if not math.isfinite(digest):
            raise ValueError(f"the rollout's values are not finite: {digest}")
        return {"reward": math.tanh(digest / 1e4).hex(), "digest": digest.hex()}

    def checksum(self) -> dict:
        return {"sum": total(self.flat.split(LAYER))}

    def leave(self) -> dict:
        """The cache is empty between two turns, and weights are handed over anew: nothing must survive."""
        clock = Clock()
        self.graph.reset()
        self.graph = self.flat = self.weights = self.cache = self.pool = None
        gc.collect()
        torch.cuda.empty_cache()
        clock.end("free")
        dist.destroy_process_group()
        clock.end("groups")
        return {"parts": clock.parts}

    def come_back_weights(self) -> dict:
        clock = Clock()
        self.join()
        clock.end("groups")
        self.make_weights()
        clock.end("weights")
        return {"parts": clock.parts}

    def come_back(self) -> dict:
        clock = Clock()
        self.allocate()
        clock.end("build")
        self.capture()
        clock.end("capture")
        return {"parts": clock.parts}


COMMANDS = ("setup", "train", "publish", "load", "send", "receive", "release", "generate", "checksum", "leave",
            "come-back-weights", "come-back")


def obey(engine, words: list) -> dict:
    name, began = words[0], time.monotonic()
    answer = {"command": name, "ok": True}
    try:
        if name not in COMMANDS or not hasattr(engine, name.replace("-", "_")):
            raise ValueError(f"a {type(engine).__name__} has no command {name}")
        answer.update(getattr(engine, name.replace("-", "_"))(*words[1:]))
        torch.cuda.synchronize()
    except Exception as error:
        traceback.print_exc()
        answer.update(ok=False, error=f"{type(error).__name__}: {error}")
    answer["ms"] = round((time.monotonic() - began) * 1e3, 3)
    return answer


def probe() -> dict:
    gpus = torch.cuda.device_count()
    each = [torch.cuda.get_device_properties(number) for number in range(gpus)]
    first = each[0] if gpus else None
    return {"uuids": [str(getattr(one, "uuid", "")) for one in each],
            "torch": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,
            "gpu": first.name if first else None, "gpu_bytes": first.total_memory if first else 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--role", choices=("trainer", "rollout"))
    parser.add_argument("--gib", type=float)
    parser.add_argument("--cache", type=int, default=0)
    parser.add_argument("--meet", metavar="DIRECTORY")
    parser.add_argument("--probe", action="store_true")
    options = parser.parse_args()
    if options.probe:
        print(json.dumps(probe()))
        return 0
    if options.role is None or options.gib is None or options.meet is None:
        parser.error("--role, --gib and --meet are needed; rl.py starts this program")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answers = own_stdout()
    warnings.filterwarnings("ignore", "lien.tag")  # in the variants without it
    engine = (Trainer if options.role == "trainer" else Rollout)(options)
    tagged = lien.tag("engine") if options.role == "rollout" else contextlib.nullcontext()
    print(json.dumps({"command": "start", "ok": True, "pid": os.getpid()}), file=answers)
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        if words[:1] == ["quit"]:
            print(json.dumps({"command": "quit", "ok": True, "ms": 0}), file=answers)
            return 0
        if words:
            with tagged:
                print(json.dumps(obey(engine, words)), file=answers)
    os._exit(3)  # rl.py is gone


if __name__ == "__main__":
    sys.exit(main())
