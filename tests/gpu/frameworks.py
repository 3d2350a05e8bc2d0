#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Small deterministic programs of several CUDA frameworks: frameworks.py NAME STEPS

Prints {"pid": ...} when its memory is there, then takes that many steps, and prints {"digest": ...}
of all results, which is the same in every run.
"""
import hashlib
import json
import os
import sys


def say(**answer) -> None:
    print(json.dumps(answer), flush=True)


class Steps:
    """Calls step() that often; what it returns goes into the digest."""

    def __init__(self, count: int):
        self.count = count

    def run(self, step) -> None:
        digest = hashlib.sha256()
        step()
        say(pid=os.getpid())
        for _ in range(self.count):
            digest.update(str(step()).encode())
        say(digest=digest.hexdigest())


def torch_convolutions(steps: Steps) -> None:
    """cuDNN and its workspaces."""
    import torch
    import torchvision
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(1)
    model = torchvision.models.resnet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(32, 3, 128, 128).cuda(), torch.arange(32).cuda()

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item().hex()
    steps.run(step)


def torch_transformer(steps: Steps) -> None:
    """cuBLAS and its workspaces, AdamW, a replayed graph of the forward pass."""
    import torch
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, still = torch.randn(8, 128, 512).cuda(), torch.randn(8, 512).cuda()
    weight = torch.randn(512, 512).cuda()
    out = (still @ weight).relu()  # cuBLAS cannot be initialised in a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (still @ weight).relu()

    def step():
        optimizer.zero_grad()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            loss = model(tokens).square().mean()
        loss.backward()
        optimizer.step()
        still.copy_(tokens[:, 0])
        graph.replay()
        return loss.item().hex(), out.double().sum().item().hex()
    steps.run(step)


def triton_kernel(steps: Steps) -> None:
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x, y, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(y + at, tl.load(x + at, at < n) * 3 + 1, at < n)
    n = 1 << 24
    one, two = torch.arange(n, dtype=torch.int32).cuda(), torch.empty(n, dtype=torch.int32).cuda()

    def step():
        nonlocal one, two
        scale[(n // 1024,)](one, two, n, block=1024)
        one, two = two, one
        return int(one.sum(dtype=torch.int64))
    steps.run(step)


def jax_training(steps: Steps) -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".03")
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    import jax
    import jax.numpy as jnp
    keys = jax.random.split(jax.random.PRNGKey(1), 5)
    weights = [jax.random.normal(key, (1024, 1024)) * 0.03 for key in keys[:4]]
    batch = jax.random.normal(keys[4], (256, 1024))

    def loss(weights):
        x = batch
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - batch) ** 2)

    @jax.jit
    def update(weights):
        value, gradients = jax.value_and_grad(loss)(weights)
        return value, [w - 0.1 * g for w, g in zip(weights, gradients)]

    def step():
        nonlocal weights
        value, weights = update(weights)
        return float(value).hex()
    steps.run(step)


def cupy_solvers(steps: Steps) -> None:
    """cuFFT, cuBLAS, sorting; memory of CuPy's own pool."""
    import cupy
    values = cupy.random.RandomState(1).standard_normal(1 << 22)
    matrix = cupy.random.RandomState(2).standard_normal((1024, 1024))

    def step():
        nonlocal values
        spectrum = cupy.fft.rfft(values)
        values = cupy.fft.irfft(spectrum * 1j, values.size)
        return float(cupy.sort(values)[1000]).hex(), float((matrix @ matrix).sum()).hex()
    steps.run(step)


PROGRAMS = {program.__name__.replace("_", "-"): program for program in (
    torch_convolutions, torch_transformer, triton_kernel, jax_training, cupy_solvers)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Steps(int(sys.argv[2])))
