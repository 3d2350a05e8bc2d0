#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Copies between pageable memory and the GPU that take longer than an offload, and checks every value.

long_copies.py to|from GIB: prints "ready", then copies until stdin ends, then prints {"rounds": N, "wrong": 0}.
The driver makes such a copy in many pieces; between two of them the GPU is idle.
"""
import json
import sys
import threading

import torch


def main() -> None:
    to, count = sys.argv[1] == "to", int(float(sys.argv[2]) * (1 << 30)) // 8
    host = torch.arange(count, dtype=torch.int64)
    there = host.cuda()
    rounds = wrong = 0
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("ready", flush=True)
    while not ended.is_set():
        if to:
            there.zero_()
            there.copy_(host)
            wrong += int(there.sum()) != count * (count - 1) // 2
        else:
            wrong += not torch.equal(there.cpu(), host)
        rounds += 1
    print(json.dumps({"rounds": rounds, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main()
