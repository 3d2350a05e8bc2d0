#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""One rank of a training job as users write them, which knows nothing of lien:

    train.py JOB STEPS

JOB is one of JOBS below. Prints "step NUMBER LOSS" per step (the loss in
hexadecimal, so that runs can be compared bit by bit) and "end" when all steps are done. Start it with
RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. On SIGUSR1 it says where its threads are.
"""
import faulthandler
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, LENGTH, BATCH = 1024, 8, 256, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(1, 2) / WIDTH ** 0.5, -1)
        x = x + self.out(weights @ v)
        return x + self.down(torch.relu(self.up(self.norm(x))))


def model():
    torch.manual_seed(7)
    return nn.Sequential(*(Block() for _ in range(LAYERS))).cuda()


def batch(step, rank):
    torch.manual_seed(1000 * step + rank)
    return torch.randn(BATCH, LENGTH, WIDTH, device="cuda")


def train(net, steps, rank):
    """Forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    for step in range(steps):
        loss = net(batch(step, rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def ddp(steps, rank, _world):
    return train(nn.parallel.DistributedDataParallel(model()), steps, rank)


def fsdp2(steps, rank, _world):
    from torch.distributed.fsdp import fully_shard
    net = model()
    for block in net:
        fully_shard(block)
    return train(fully_shard(net), steps, rank)


def fsdp2_prefetch(steps, rank, _world):
    """Gathers the next two blocks ahead, and accumulates gradients over three batches."""
    from torch.distributed.fsdp import fully_shard
    net = model()
    blocks = [fully_shard(block) for block in net]
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[number + 1:number + 3])
        block.set_modules_to_backward_prefetch(blocks[max(number - 2, 0):number][::-1])
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    for step in range(steps):
        total = torch.zeros((), device="cuda")
        for micro in range(3):
            net.set_requires_gradient_sync(micro == 2)
            loss = net(batch(3 * step + micro, rank)).square().mean()
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        yield total


def reduced(y):
    dist.all_reduce(y)
    return y


def flags(steps, rank, world):
    """Like tensor, but the all-reduces are kernels that wait for flags which the other ranks' kernels set, as vLLM's
    and SGLang's custom all-reduces do: NCCL knows nothing of them."""
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    import torch.distributed._symmetric_memory as symmetric
    group = dist.group.WORLD.group_name
    shared = symmetric.empty((BATCH, 8, WIDTH), device="cuda", dtype=torch.float32)
    symmetric.rendezvous(shared, group)

    def reduce(y):
        shared.copy_(y)
        return torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group)
    yield from tensor(steps, rank, world, reduce)


def tensor(steps, rank, world, reduce=reduced):
    """Tensor parallel inference: two small all-reduces in each of 32 layers."""
    torch.manual_seed(7)
    part = WIDTH // world
    layers = [[torch.randn(shape, device="cuda") / WIDTH ** 0.5 for shape in ((WIDTH, part), (part, WIDTH)) * 2]
              for _ in range(32)]
    for step in range(steps):
        x = batch(step, 0)[:, :8]
        with torch.no_grad():
            for a, b, up, down in layers:
                for first, second in ((a, b), (up, down)):
                    y = reduce(torch.relu(x @ first) @ second)
                    x = nn.functional.layer_norm(x + y, (WIDTH,))
        yield x.square().mean()


def threads(steps, rank, world):
    """Three threads, each with a group and a stream of its own, compute and reduce at once. What the
    driver or PyTorch allocates is allocated before: that would wait for other threads' collectives,
    and they for other ranks."""
    count = 3
    groups = [dist.new_group(list(range(world))) for _ in range(count)]
    streams = [torch.cuda.Stream() for _ in range(count)]
    x = batch(0, rank)
    buffers = [[torch.empty_like(x), torch.empty_like(x)] for _ in range(count)]
    totals = torch.zeros(count, device="cuda")
    begin, end = threading.Barrier(count + 1), threading.Barrier(count + 1)

    def once(number):
        one, other = buffers[number]
        torch.mul(x, number + 1, out=one)
        for _ in range(8):
            torch.tanh(one, out=other)
            torch.mul(other, 1.5, out=one)
            dist.all_reduce(one, group=groups[number])
        totals[number] = one.view(-1)[:1000].sum()

    def work(number):
        torch.cuda.set_device(x.device)
        with torch.cuda.stream(streams[number]):
            while True:
                begin.wait()
                once(number)
                streams[number].synchronize()
                end.wait()

    for number in range(count):  # in the same order everywhere
        with torch.cuda.stream(streams[number]):
            once(number)
        torch.cuda.synchronize()
    for number in range(count):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    for step in range(steps):
        x.copy_(batch(step, rank))
        torch.cuda.synchronize()
        begin.wait()
        end.wait()
        yield totals.sum()


def pipeline(steps, rank, world):
    """Each rank has a part of the layers, and hands on what it makes."""
    part = model()[rank * LAYERS // world:(rank + 1) * LAYERS // world]
    for step in range(steps):
        for _ in range(4):
            x = batch(step, 0)
            if rank:
                dist.recv(x, rank - 1)
            with torch.no_grad():
                x = part(x)
            if rank + 1 < world:
                dist.send(x, rank + 1)
        yield x.square().mean()


def moe(steps, rank, world):
    """All-to-all, asynchronous, on two groups."""
    groups = [dist.new_group(list(range(world))) for _ in range(2)]
    for step in range(steps):
        x = batch(step, rank).view(-1, WIDTH)
        outputs = [torch.empty_like(x) for _ in groups]
        works = [dist.all_to_all_single(out, x * (n + 1), group=group, async_op=True)
                 for n, (group, out) in enumerate(zip(groups, outputs))]
        for work in works:
            work.wait()
        yield sum(out.square().mean() for out in outputs)


def graph(steps, rank, _world):
    """Replays a graph with all-reduces."""
    x, total = batch(0, rank), torch.zeros(1, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # what may not be made during a capture
        for _ in range(3):
            dist.all_reduce(x @ x.transpose(1, 2) @ x)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = x
        for _ in range(8):
            y = torch.tanh(y @ y.transpose(1, 2) @ y / 1e3)
            dist.all_reduce(y)
        total.copy_(y.square().mean())
    for step in range(steps):
        x.copy_(batch(step, rank))
        captured.replay()
        yield total


def long(steps, rank, _world):
    """Computes for long, then reduces."""
    for step in range(steps):
        x = batch(step, rank)
        for _ in range(400):
            x = torch.tanh(x @ x.transpose(1, 2) @ x / 1e3)
        dist.all_reduce(x)
        yield x.square().mean()


def compute(steps, rank, _world):
    """Computes for about five seconds of the device's time, then reduces."""
    x = torch.randn(8192, 8192, device="cuda") / 8192 ** 0.5
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
    rounds = torch.tensor([20 * 5 / (time.monotonic() - began)], device="cuda")
    dist.broadcast(rounds, 0)
    for step in range(steps):
        y = batch(step, rank)[0].repeat(32, 8)
        for _ in range(int(rounds)):  # their number may differ from run to run: not so the sum
            z = y @ x
        total = z.square().mean()
        dist.all_reduce(total)
        yield total


def stall(steps, rank, world):
    """Trains, but in every fourth step the last rank's data loader is two seconds late."""
    net = model()
    train_on = train(nn.parallel.DistributedDataParallel(net), steps, rank)
    for step in range(steps):
        if step % 4 == 3 and rank == world - 1:
            time.sleep(2)
        yield next(train_on)


JOBS = {function.__name__: function for function in (
    ddp, fsdp2, fsdp2_prefetch, tensor, flags, threads, pipeline, moe, graph, long, compute, stall)}


def main() -> int:
    faulthandler.register(signal.SIGUSR1)
    name, steps = sys.argv[1], int(sys.argv[2])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl", device_id=device)
    rank, world = dist.get_rank(), dist.get_world_size()
    for number, loss in enumerate(JOBS[name](steps, rank, world)):
        print(f"step {number} {float(loss.detach()).hex()}", flush=True)
    torch.cuda.synchronize()
    print("end", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
