#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs torch_memory_saver's own examples with lien's control library in the place of its hook.

    tests/gpu/torch_saver.py CHECKOUT [--lien build/lien] [--only NAME]... [--logs FOLDER]

CHECKOUT is a checkout of https://github.com/fzyzcjy/torch_memory_saver, or an unpacked source archive of it: the
folder with `torch_memory_saver/` (its Python package; nothing is compiled) and `test/examples/`. Needs root, one GPU
with 30 GB free, and PyTorch.

Each example runs in a process of its own, in the modes that it has. Those in DIFFERS use what lien does otherwise
(docs/torch-memory-saver.md); they are run, too, and their end is shown, but does not count. Beside them: what lien
itself must show of a pause, and that nothing is left of it.
"""
import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

from harness import ROOT, Failure, Session, deadline, end_on_signals, probe_gpus, run_command, tail

PRELOAD, TORCH = "preload", "torch"
BOTH = (PRELOAD, TORCH)
# example: (function, modes, environment)
EXAMPLES = {
    "simple": ("run", BOTH, {}),
    "cuda_graph": ("run", BOTH, {}),
    "rl_example": ("run", BOTH, {}),
    "multi_device": ("run", BOTH, {}),
    "training_engine": ("run", (PRELOAD,), {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}),
    "nested_region": ("run", (PRELOAD,), {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}),
    "cuda_vmm_granularity": ("run", (PRELOAD,), {"TMS_INIT_ENABLE": "1"}),
}
DIFFERS = {
    "cpu_backup": ("run", BOTH, {}),     # retain_cpu_backup
    "disk_backup": ("run", BOTH, {}),    # looks for the files
}
NEEDS_TWO = {"multi_device"}

# Some PyTorch cannot say what the device has used without pynvml.
RUNNER = """
import importlib, sys, torch
try:
    import pynvml
except ImportError:
    def used(device=0):
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    torch.cuda.device_memory_used = used
name, function, mode = sys.argv[1:]
getattr(importlib.import_module("examples." + name), function)(hook_mode=mode)
print("EXAMPLE ENDED WELL", flush=True)
"""

# Our own: what lien shows of a pause, values by tag, and use of other memory meanwhile.
SHOWN = """
import json, os, subprocess, sys, torch
from torch_memory_saver import torch_memory_saver as saver
saver.hook_mode = sys.argv[1]
MIB = 1 << 20

def full(value):
    return torch.full((256 * MIB,), value, dtype=torch.uint8, device="cuda")

def tags():
    found = json.loads(subprocess.run([os.environ["LIEN"], "mem", "--by", "tag", "--json"], check=True,
                                      capture_output=True, text=True, timeout=60).stdout)
    return {row["key"]: (row["bytes"] // MIB, row["offloaded_bytes"] // MIB) for row in found["rows"]}

with saver.region(tag="weights", enable_cpu_backup=True):
    weights = full(7)
with saver.region(tag="kv_cache"):
    cache = full(8)
other = full(1)
addresses = weights.data_ptr(), cache.data_ptr()
torch.cuda.synchronize()
found = tags()
assert found["weights"] == (256, 0) and found["kv_cache:no-backup"] == (256, 0), found
for _ in range(3):
    saver.pause("kv_cache")
    found = tags()
    assert found["weights"] == (256, 0) and found["kv_cache:no-backup"] == (0, 256), found
    other += weights          # kernels run on
    assert int(other.max()) == int(other.min()), "other memory"
    torch.cuda.empty_cache()
    assert tags()["kv_cache:no-backup"] == (0, 256), "empty_cache() brought it back"
    saver.pause("weights")
    other += 1
    saver.resume("weights")
    assert tags()["kv_cache:no-backup"] == (0, 256), "resumed with the other"
    assert int(weights.min()) == int(weights.max()) == 7, "weights"
    saver.resume("kv_cache")
    cache.fill_(9)
    assert int(cache.min()) == int(cache.max()) == 9, "cache"
    assert (weights.data_ptr(), cache.data_ptr()) == addresses
del cache
torch.cuda.empty_cache()
print("EXAMPLE ENDED WELL", flush=True)
"""


def cases() -> dict:
    """{name: (example, mode, script and arguments, environment, does it count)}"""
    found = {f"shown-{mode}": ("shown", mode, ["shown.py", mode], {}, True) for mode in BOTH}
    for counts, table in ((True, EXAMPLES), (False, DIFFERS)):
        for name, (function, modes, environment) in table.items():
            for mode in modes:
                found[f"{name}-{mode}"] = name, mode, ["runner.py", name, function, mode], environment, counts
    return found


def lay_out(checkout: Path, folder: Path, library: Path) -> Path:
    """The package with links to our library for its hooks, and the examples."""
    site = folder / "site"
    shutil.copytree(checkout / "torch_memory_saver", site / "torch_memory_saver")
    shutil.copytree(checkout / "test" / "examples", site / "examples")
    (site / "examples" / "__init__.py").touch()
    for mode in BOTH:
        for cuda in (12, 13):
            (site / f"torch_memory_saver_hook_mode_{mode}_cu{cuda}.abi3.so").symlink_to(library)
    (site / "runner.py").write_text(RUNNER)
    (site / "shown.py").write_text(SHOWN)
    return site


def attempt(session: Session, site: Path, name: str, arguments: list, mode: str, environment: dict,
            limit: float) -> str:
    """Nothing, or why it failed."""
    lien = session.lien
    log = session.logs / f"{name}-{mode}.log"
    options = ["--torch-memory-saver"] if mode == PRELOAD else []
    env = {**lien.environment, "PYTHONPATH": str(site), "LIEN": str(lien.binary), **environment}
    outcome = run_command([lien.binary, "run", *options, "--", sys.executable, "-u", *arguments], limit, env)
    log.write_text(outcome.text())
    lien.check_agent()
    if outcome.code or "EXAMPLE ENDED WELL" not in outcome.text():
        return f"ended with {outcome.code}; {log}:\n{tail(log, 12)}"
    said = [line for line in outcome.text().splitlines()
            if line.startswith("lien: torch_memory_saver: cannot")]
    return said[0] if said else ""


def nothing_left(session: Session) -> str:
    """The agent has forgotten the process."""
    for _ in range(50):
        rows = session.lien.json("mem")["rows"]
        if not rows:
            return ""
        time.sleep(0.1)
    return f"left behind: {json.dumps(rows)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--lien", type=Path, default=ROOT / "build" / "lien")
    parser.add_argument("--only", action="append", help="such as simple-preload")
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--limit", type=float, default=180, help="seconds for each")
    options = parser.parse_args()
    seen, why = probe_gpus(1)
    if seen is None:
        print(f"skipped: {why}")
        return 77
    if not (options.checkout / "torch_memory_saver" / "binary_wrapper.py").exists():
        print(f"{options.checkout} has no torch_memory_saver/binary_wrapper.py: it is no checkout")
        return 2
    end_on_signals()
    failed = passed = 0
    library = (options.lien.resolve().parent / "liblien-control.so").resolve()
    with Session(options.lien, options.logs, "torch-saver", {**os.environ}) as session:
        session.lien.start_agent()
        site = lay_out(options.checkout, session.temporary, library)
        for case, (name, mode, (script, *rest), environment, counts) in cases().items():
            if options.only and case not in options.only:
                continue
            if name in NEEDS_TWO and seen["gpus"] < 2:
                print(f"skipped {case}: it needs two GPUs", flush=True)
                continue
            began = time.monotonic()
            try:
                with deadline(options.limit + 30, case):
                    problem = attempt(session, site, name, [site / script, *rest], mode, environment,
                                      options.limit)
                    problem = problem or nothing_left(session)
            except Failure as failure:
                problem = str(failure)
            word = "ok" if not problem else "FAILED" if counts else "differs"
            print(f"{word} {case} ({time.monotonic() - began:.1f} s)" + (f": {problem}" if problem else ""),
                  flush=True)
            passed += counts and not problem
            failed += counts and bool(problem)
    print(f"{passed} passed, {failed} failed; PyTorch {seen['torch']}, CUDA {seen['cuda']}, {seen['gpus']} GPUs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
