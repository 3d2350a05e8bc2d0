#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Two processes that share CUDA tensors as PyTorch does (legacy IPC), and check every value.

Prints {"pids": [...]}, then works until stdin ends, then prints {"steps": N, "wrong": 0}. The owner
writes into its tensors, the other process reads them through what it opened and writes back; tensors
of several sizes, some within one block of PyTorch's allocator.
"""
import json
import os
import sys
import threading

import torch
import torch.multiprocessing as multiprocessing

SIZES = (1 << 8, 3 << 18, 5 << 20, 33 << 20)  # of 4 bytes each


def other(requests, answers) -> None:
    torch.cuda.set_device(0)
    tensors = requests.get()
    answers.put(os.getpid())
    for step in iter(requests.get, None):
        wrong = 0
        for number, tensor in enumerate(tensors):
            wrong += int((tensor != step * 7 + number).sum())
            tensor.fill_(step * 11 + number)
        torch.cuda.synchronize()
        answers.put(wrong)
    del tensors
    answers.put(None)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    torch.cuda.set_device(0)
    tensors = [torch.zeros(size, dtype=torch.int32, device="cuda") for size in SIZES]
    child = context.Process(target=other, args=(requests, answers), daemon=True)
    child.start()
    requests.put(tensors)
    print(json.dumps({"pids": [os.getpid(), answers.get()]}), flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    step = wrong = 0
    while not ended.is_set():
        step += 1
        for number, tensor in enumerate(tensors):
            tensor.fill_(step * 7 + number)
        torch.cuda.synchronize()
        requests.put(step)
        wrong += answers.get()
        wrong += sum(int((tensor != step * 11 + number).sum()) for number, tensor in enumerate(tensors))
    requests.put(None)
    answers.get()
    child.join()
    print(json.dumps({"steps": step, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main()
