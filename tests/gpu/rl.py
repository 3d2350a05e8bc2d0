#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Training and rollout on the same GPUs, taking turns.

    tests/gpu/rl.py [--gpus N] [--gib GIB] [--steps N] [--minutes N] [--variant NAME]... [--json FILE]

A trainer (FSDP2, AdamW) and a rollout engine (tensor parallel, a key-value cache, CUDA graphs), one process of each
per GPU (rl_engine.py). In each step the trainer learns from what the last rollout gave; the rollout's weights come
back beside it, and it hands its own over, by CUDA IPC, in the second step by NCCL broadcasts; it makes room; the
rollout's cache comes back as well, and the rollout decodes, and makes room in turn. They are large enough that a GPU
cannot hold both. The same loop in three variants:

    lien     both under `lien run`, PyTorch's and NCCL's defaults; this program, which leads both, calls
             lien.offload() and lien.restore(), by tag for the weights. The cache is dropped, not saved: it is empty
             between two turns
    rebuild  without lien: what must survive is copied to pinned host memory, the rest is freed, the process groups
             are destroyed, and groups, model and graphs are made again
    keep     nothing is offloaded: first as large as the others, which does not fit, then with the largest cache that
             does fit, for the values

Checked: the weights that arrive are those that were handed over; what a job has in memory is the same after its
absence; losses and rewards of all variants are equal bit by bit; an offload frees what it says, by NVML; memory of
GPUs and host does not grow from turn to turn (with `rebuild` that is only noted).

Prints a table, and writes all of it to FILE (default $OUT/rl.json). "variants" has of each variant "steps" (losses,
digest of what was decoded, ms) and "switches", one for each time that a job goes away:

    away, step          the job, and when; at "start" the trainer makes room before there is a rollout
    out_ms, back_ms     wall time until its memory was off the GPUs; until the other one was back
    moved_bytes, dropped_bytes, left_bytes, left    what the offload says, of all its processes; why memory stays
    freed_bytes         what NVML says of that, of all GPUs together
    gpu_before_bytes, gpu_after_bytes               in use, of all GPUs together, before and when the other one is back
    host_bytes, host_after_bytes                    of the host, beyond what was in use before the variant began
    weights_ms          of a trainer's: until the rollout's weights were back beside it, before out_ms begins
    *_parts_ms          "rebuild": of copying, freeing, groups, building, capturing

"checks" has null for each check that passed, else what was wrong.

Needs root and PyTorch. With one GPU, or --gpus 1, one process of each. Ends with "N passed, N failed", within
--minutes: when the time does not suffice, with fewer steps, or without the later variants, which is said.
"""
import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import harness
from harness import GIB, MIB, ROOT, Failure, Late, Session, deadline, run_command
from observe import Observer, table

sys.path.append(str(ROOT / "tools" / "python"))
import lien  # noqa: E402

VARIANTS = {"lien": 0.45, "rebuild": 0.6, "keep": 1.0}  # and how much of the time that is left each may take
LEAST_STEPS = 3
BROADCAST_STEP = 2
FREED_SHARE = 0.95
GPU_GROWTH, HOST_GROWTH = 64 * MIB, 512 * MIB  # from turn to turn: of each GPU, of the host
SETUP_S, ASK_S = 180, 120
REST_S = 30
END_S, LEAST_S = 15, 30  # what the end takes; a variant is not begun with less
CACHE_SHARE = 0.85  # of a GPU, for the rollout: about what engines take by default
BESIDE = 3 * GIB    # the rollout's contexts, NCCL and graphs
CONTEXT_PART, SPARE_PART = 80, 26  # of a GPU: a context with NCCL's memory, and what is left free where both must fit


def say(text: str) -> None:
    print(text, flush=True)


class Gauge:
    """Memory in use: of the GPUs together, and of the host beyond what was in use at the beginning."""

    def __init__(self, observer, meminfo: Path):
        self.observer, self.meminfo = observer, meminfo
        self.host_before = self._host()

    def _host(self) -> int:
        lines = self.meminfo.read_text(encoding="ascii").splitlines()
        values = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
        return values["MemTotal"] - values["MemAvailable"]

    def host(self) -> int:
        return self._host() - self.host_before

    def gpu(self) -> int:
        return self.observer.used()

    def gpu_freed(self, before: int, expected: int) -> int:
        """Since then; waits a little for the driver to account for it."""
        return before - self.observer.used_once(lambda used: before - used >= FREED_SHARE * expected)


# How a job makes room, and comes back

class ByLien:
    def __init__(self, socket: Path):
        self.more = {"socket": str(socket), "timeout": REST_S}

    def out(self, job) -> dict:
        # The rollout, whose weights come back before the rest, knows when it may use what.
        options = {"drop": ["tag:kv_cache"], "on_use": "ignore"} if job.name == "rollout" else {}
        result = lien.offload(owner="all", pids=job.pids, **options, **self.more)
        if result.outcome != "done":
            raise Failure(f"offload of {job.name}: {result.outcome}")
        dropped = sum(part.discarded_bytes for part in result.per_process.values())
        return {"moved_bytes": result.bytes, "dropped_bytes": dropped,
                "left_bytes": sum(left.bytes for left in result.left),
                "left": sorted({left.reason for left in result.left})}

    def _back(self, job, **what) -> dict:
        result = lien.restore(pids=job.pids, **what, **self.more)
        if result.outcome != "done":
            raise Failure(f"restore of {job.name}: {result.outcome}")
        return {}

    def back(self, job) -> dict:
        return self._back(job)

    def weights(self, job) -> dict:
        return self._back(job, tags=["engine"])

    def look(self, away) -> list:
        """What is wrong with the job that is away."""
        states = {process.pid: process.state for process in lien.processes(socket=self.more["socket"])}
        return [f"process {pid} of {away.name} is {states.get(pid, 'unknown')}" for pid in away.pids
                if states.get(pid) not in ("offloaded", "partly offloaded")]


class ByRebuilding:
    def out(self, job) -> dict:
        return {"out_parts_ms": slowest(job.ask("leave", ASK_S))}

    def back(self, job) -> dict:
        return {"back_parts_ms": slowest(job.ask("come-back", ASK_S))}

    def weights(self, job) -> dict:
        return {"weights_parts_ms": slowest(job.ask("come-back-weights", ASK_S))}

    def look(self, _away) -> list:
        return []


class Never:
    def out(self, _job) -> dict:
        return {}

    def back(self, _job) -> dict:
        return {}

    weights = back

    def look(self, _away) -> list:
        return []


def slowest(answers: list) -> dict:
    return {part: max(answer["parts"][part] for answer in answers) for part in answers[0]["parts"]}


# The turns

class Turns:
    """One variant's loop. A job is asked nothing while it is away."""

    def __init__(self, trainer, rollout, switch, gauge):
        self.trainer, self.rollout, self.switch, self.gauge = trainer, rollout, switch, gauge
        self.rollout_stays = True  # are its weights those from before, when they come back?
        self.switches: list[dict] = []
        self.steps: list[dict] = []
        self.problems: list[str] = []
        self.info: dict = {}
        self.notes: list[str] = []
        self.sums: dict = {}

    def begin(self) -> None:
        """Ends with the trainer in its place. The rollout is made in the place that the trainer has left."""
        self.info["trainer"] = self.trainer.ask("setup", SETUP_S)
        self.info["trainer_gpu_bytes"] = self.gauge.gpu()
        self.out(self.trainer, "start")
        beside = self.gauge.gpu()
        self.info["rollout"] = self.rollout.ask("setup", SETUP_S)
        self.info["rollout_gpu_bytes"] = self.gauge.gpu() - beside
        self.change(self.rollout, self.trainer, "start")

    def step(self, number: int, reward: str) -> str:
        """Returns the next reward."""
        began = time.monotonic()
        trained = self.trainer.ask(f"train {number} {reward}", ASK_S)
        weights = self.weights_back(number)
        handed = self.hand_over(number)
        self.change(self.trainer, self.rollout, number, weights)
        generated = self.rollout.ask(f"generate {number}", ASK_S)
        if len({answer["digest"] for answer in generated}) != 1:
            self.problems.append(f"step {number}: the ranks of the rollout differ")
        self.change(self.rollout, self.trainer, number)
        self.steps.append({
            "step": number, "losses": [answer["loss"] for answer in trained], "digest": generated[0]["digest"],
            "reserved_bytes": max(answer["reserved_bytes"] for answer in trained),
            "train_ms": worst(trained), "handover_ms": handed, "generate_ms": worst(generated),
            "ms": ms_since(began)})
        return generated[0]["reward"]

    def weights_back(self, number: int) -> dict:
        """Beside the trainer."""
        began = time.monotonic()
        record = self.switch.weights(self.rollout)
        record["weights_ms"] = ms_since(began)
        if self.rollout_stays:
            self.compare(self.rollout, number)
        return record

    def hand_over(self, number: int) -> float:
        """Returns ms."""
        began, ranks = time.monotonic(), len(self.trainer.pids)
        if number == BROADCAST_STEP and ranks > 1:
            self.trainer.tell(f"send {number}")
            arrived = self.rollout.ask(f"receive {number}", ASK_S)
            left = self.trainer.collect("send", ASK_S)
            left = left[-1:] + left[:-1]  # each to the next rank
        else:
            left = self.trainer.ask("publish", ASK_S)
            arrived = self.rollout.ask("load " + " ".join(answer["handle"] for answer in left), ASK_S)
        self.trainer.ask("release", ASK_S)
        ms = ms_since(began)
        self.sums[self.rollout], sums = ([answer["sum"] for answer in answers] for answers in (arrived, left))
        if self.sums[self.rollout] != sums:
            self.problems.append(f"weights handed over: {sums} left, {self.sums[self.rollout]} arrived")
        return ms

    def change(self, away, here, step, more=None) -> None:
        record = self.out(away, step)
        record.update(more or {})
        self.back(here, record)
        self.problems += self.switch.look(away)

    def compare(self, here, step) -> None:
        sums = [answer["sum"] for answer in here.ask("checksum", ASK_S)]
        if sums != self.sums[here]:
            self.problems.append(f"step {step}: the memory of {here.name} is not what it was: "
                                 f"{self.sums[here]} left, {sums} came back")

    def out(self, away, step) -> dict:
        self.sums[away] = [answer["sum"] for answer in away.ask("checksum", ASK_S)]
        used, began = self.gauge.gpu(), time.monotonic()
        record = {"step": step, "away": away.name, "gpu_before_bytes": used}
        record.update(self.switch.out(away))
        record["out_ms"] = ms_since(began)
        said = record.get("moved_bytes", 0) + record.get("dropped_bytes", 0)
        record["freed_bytes"] = self.gauge.gpu_freed(used, said)
        record["host_bytes"] = self.gauge.host()
        if record["freed_bytes"] < FREED_SHARE * said:
            self.problems.append(f"step {step}: {said:,} bytes of {away.name} were moved or dropped, NVML says "
                                 f"that {record['freed_bytes']:,} are free")
        self.switches.append(record)
        return record

    def back(self, here, record: dict) -> None:
        began = time.monotonic()
        record.update(self.switch.back(here))
        record["back_ms"] = ms_since(began)
        record["gpu_after_bytes"], record["host_after_bytes"] = self.gauge.gpu(), self.gauge.host()
        self.compare(here, record["step"])

    def run(self, steps: int, until: float) -> None:
        """Until then at the latest, as far as can be told."""
        self.begin()
        reward = 0.0.hex()
        for number in range(1, steps + 1):
            longest = max((step["ms"] for step in self.steps), default=0) / 1e3
            if time.monotonic() + 1.2 * longest > until:
                break
            reward = self.step(number, reward)
        if len(self.steps) < min(LEAST_STEPS, steps):
            raise Failure(f"the time is over after {len(self.steps)} of {steps} steps")

    def growth(self, gpus: int) -> dict:
        """Bytes by which each place has grown, from the least of the last to the most of the first turns; None: there
        were too few. Growth beyond the limits is a problem, but of rebuilding only noted."""
        found: dict = {}
        for job in (self.trainer, self.rollout):
            turns = [record for record in self.switches if record["away"] == job.name and record["step"] != "start"]
            for name, limit in (("gpu_after_bytes", GPU_GROWTH * gpus), ("host_after_bytes", HOST_GROWTH)):
                values = [record[name] for record in turns][1:]
                grown = min(values[-3:]) - max(values[:3]) if len(values) >= 6 else None
                found[f"{name} without {job.name}"] = grown
                if grown is not None and grown > limit:
                    (self.notes if isinstance(self.switch, ByRebuilding) else self.problems).append(
                        f"{name} without {job.name} have grown by {grown:,} in {len(values)} turns")
        return found


def worst(answers: list) -> float:
    return round(max(answer["ms"] for answer in answers), 1)


def ms_since(began: float) -> float:
    return round(1e3 * (time.monotonic() - began), 1)


# The variants

class Variants:
    def __init__(self, options, machine: dict):
        self.options, self.machine = options, machine
        self.gpus = options.gpus
        self.gib = options.gib
        self.cache = options.cache
        if self.cache is None:
            weights = int(self.gib * GIB) // self.gpus
            self.cache = max(int(CACHE_SHARE * machine["gpu_bytes"]) - weights - BESIDE, MIB)
        self.results: dict = {}

    def loop(self, name: str, cache: int, until: float) -> dict:
        """Runs one; what it found, also when it fails."""
        began, turns = time.monotonic(), None
        found: dict = {"cache_bytes": cache, "problems": []}
        try:
            with Session(self.options.lien, self.options.logs, f"rl-{name}") as session:
                turns = self.start(name, session, cache)
                turns.run(self.options.steps, until)
                found["growth_bytes"] = turns.growth(self.gpus)
                if name == "lien":
                    turns.problems += self.agent_problems(session)
        except (Failure, lien.LienError) as failure:
            found["problems"].append(f"{failure}")
        if turns:
            found["problems"] = turns.problems + found["problems"]
            found["notes"] = turns.notes
            found.update(turns.info, steps=turns.steps, switches=turns.switches)
        found["seconds"] = round(time.monotonic() - began, 1)
        return found

    def start(self, name: str, session, cache: int) -> Turns:
        if name == "lien":
            session.lien.start_agent()
        gauge = Gauge(Observer([{"device": number, "uuid": uuid} for number, uuid in
                                enumerate(self.machine["uuids"][:self.gpus])]), self.options.meminfo)
        jobs = [session.job(role, with_lien=name == "lien", ranks=self.gpus, program=self.options.engine, arguments=[
                                "--role", role, "--gib", self.gib, "--cache", cache, "--meet", session.temporary],
                            env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "4"})
                for role in ("trainer", "rollout")]
        switch = {"lien": lambda: ByLien(session.lien.socket), "rebuild": ByRebuilding, "keep": Never}[name]()
        turns = Turns(*jobs, switch, gauge)
        turns.rollout_stays = name != "rebuild"
        return turns

    @staticmethod
    def agent_problems(session) -> list:
        session.lien.check_agent()
        status = session.lien.json("status")
        return [f"lien status: {name}: {status[name]}" for name in
                ("events_lost", "unmatched_imports", "incomplete") if status[name]]

    def run(self, name: str, until: float) -> None:
        if name == "keep":
            self.results["keep"] = self.keep(until)
        else:
            self.results[name] = self.loop(name, self.cache, until)

    def keep(self, until: float) -> dict:
        """With the whole cache, if it fits, else with what fits."""
        say("   with the whole cache, which should not fit")
        found = self.loop("keep", self.cache, until)
        if not any("out of memory" in problem.lower() for problem in found["problems"]):
            return {**found, "fits": True}
        whole = {"cache_bytes": self.cache, "why": found["problems"][-1][:300]}
        cache = self.cache_that_fits()
        if cache < 0:
            return {"fits": False, "whole": whole, "problems": [], "steps": [], "switches": [],
                    "not_run": "without a cache it does not fit, either"}
        say(f"   it does not fit; with a cache of {cache / GIB:.1f} GiB")
        return {**self.loop("keep", cache, until), "fits": False, "whole": whole}

    def cache_that_fits(self) -> int:
        """By what the other variants used on each GPU; without them, a small one."""
        for result in self.results.values():
            if "rollout_gpu_bytes" in result:
                size = self.machine["gpu_bytes"]
                peak = max(step["reserved_bytes"] for step in result["steps"] or result["trainer"])
                trainer = max(result["trainer_gpu_bytes"] // self.gpus, peak + size // CONTEXT_PART)
                rollout = result["rollout_gpu_bytes"] // self.gpus - result["cache_bytes"]
                handed = int(self.gib * GIB) // self.gpus
                return size - trainer - rollout - handed - size // SPARE_PART
        return min(self.cache, GIB)


# What they found

def compare(results: dict) -> list:
    """Problems: the first values of each variant that are not the first variant's."""
    ran = {name: result["steps"] for name, result in results.items() if result.get("steps")}
    (first, wanted), *others = ran.items()
    problems = []
    for name, steps in others:
        differ = [f"step {want['step']}: {what} of {first} {want[what]}, of {name} {got[what]}"
                  for want, got in zip(wanted, steps) for what in ("losses", "digest") if want[what] != got[what]]
        problems += differ[:1]
    return problems


def together(result: dict, gpus: int) -> int | None:
    """Bytes that both would need on each GPU."""
    if "rollout_gpu_bytes" not in result:
        return None
    return (result["trainer_gpu_bytes"] + result["rollout_gpu_bytes"]) // gpus


def rows_of(name: str, result: dict, gpus: int) -> list:
    rows = []
    for away in ("trainer", "rollout"):
        records = [record for record in result.get("switches", []) if record["away"] == away
                   and ("back_ms" in record or record["step"] == "start")]
        later = [record for record in records if record["step"] != "start"][1:]
        if not later or name == "keep":
            continue
        rows.append([f"{name}, {away} to {'rollout' if away == 'trainer' else 'trainer'}", f"{records[0]['out_ms']:.0f}",
                     *(f"{statistics.median(record[what] for record in later):.0f} / "
                       f"{max(record[what] for record in later):.0f}" for what in ("out_ms", "back_ms")),
                     f"{statistics.median(record['freed_bytes'] for record in later) / gpus / GIB:.1f}",
                     f"{max(record['gpu_after_bytes'] for record in later) / gpus / GIB:.1f}",
                     f"{max(record['host_after_bytes'] for record in later) / GIB:.1f}"])
    return rows


def report(results: dict, gpus: int) -> None:
    rows = [row for name, result in results.items() for row in rows_of(name, result, gpus)]
    if rows:
        say(table(["", "first out ms", "out ms: median / worst", "back ms", "freed GiB/GPU", "then used GiB/GPU",
                   "host GiB"], rows))
    for name, result in results.items():
        steps = result.get("steps") or []
        if steps:
            medians = {what: statistics.median(step[what] for step in steps)
                       for what in ("ms", "train_ms", "handover_ms", "generate_ms")}
            weights = statistics.median(record["weights_ms"] for record in result["switches"] if "weights_ms" in record)
            say(f"  {name}: {len(steps)} steps, {medians['ms']:.0f} ms each: training {medians['train_ms']:.0f}, room "
                f"for weights {weights:.0f}, handing them over {medians['handover_ms']:.0f}, rollout "
                f"{medians['generate_ms']:.0f}, and the switches")
        if result.get("whole"):
            say(f"  {name}: does not fit with the whole cache: {result['whole']['why']}")
        for line in [*result.get("notes", ()), *filter(None, [result.get("not_run")])]:
            say(f"  {name}: {line}")


def verdicts(results: dict, gpu_bytes: int, gpus: int) -> dict:
    """By check, None or what was wrong."""
    found = {f"the loop, {name}": "; ".join(result["problems"][:5]) or None for name, result in results.items()}
    ran = [name for name, result in results.items() if result.get("steps")]
    if len(ran) > 1:
        found["equal values: " + ", ".join(ran)] = "; ".join(compare(results)[:3]) or None
    for name, result in results.items():
        need = together(result, gpus) if name != "keep" else None
        if need is not None:
            found[f"both need more than a GPU has, {name}"] = None if need > gpu_bytes else (
                f"{need / GIB:.1f} GiB, and a GPU has {gpu_bytes / GIB:.1f}: raise --gib or --cache")
    return found


def probe(engine: Path) -> tuple:
    """The machine, or None and why not."""
    try:
        outcome = run_command([sys.executable, engine, "--probe"], 240)
    except Failure as failure:
        return None, f"{engine} does not answer: {failure}"
    if outcome.code:
        return None, f"{sys.executable} has no working PyTorch: {outcome.text()[-300:]}"
    return outcome.json(), ""


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lien", type=Path, default=ROOT / "build/lien")
    parser.add_argument("--gpus", type=int, help="default: two, or one where there is one")
    parser.add_argument("--gib", type=float, help="of the weights, 16 bits each, on all GPUs together (default 8; with "
                        "one GPU 5). The trainer needs eight times as much")
    parser.add_argument("--cache", type=int, metavar="BYTES", help="the rollout's cache on each GPU (default: up to "
                        f"{CACHE_SHARE:g} of the GPU)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=9, help="for all of it")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="may be repeated; default all")
    parser.add_argument("--json", type=Path, help="default $OUT/rl.json if OUT is set")
    parser.add_argument("--logs", type=Path, help="keep the logs in this directory")
    parser.add_argument("--meminfo", type=Path, default="/proc/meminfo", help=argparse.SUPPRESS)
    parser.add_argument("--engine", type=Path, default=harness.HERE / "rl_engine.py", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("gpus", "gib", "steps", "minutes"):
        if getattr(options, name) is not None and getattr(options, name) <= 0:
            parser.error(f"--{name} {getattr(options, name)}: must be more than 0")
    if options.cache is not None and options.cache < 0:
        parser.error(f"--cache {options.cache}: must not be negative")
    if options.json is None and os.environ.get("OUT"):
        options.json = Path(os.environ["OUT"]) / "rl.json"
    return options


def run_all(variants: Variants, names: list, ends: float, write) -> None:
    """write() after each."""
    try:
        with deadline(max(ends - time.monotonic(), 1), "all of it"):
            for name in names:
                left = ends - time.monotonic()
                say(f"{name}: {left:.0f} s left")
                if left > LEAST_S:
                    variants.run(name, time.monotonic() + left * (1 if name == names[-1] else VARIANTS[name]))
                    write()
    except Late as late:  # between two
        say(f"  {late}")


def main() -> int:
    ends = time.monotonic()
    options = read_options()
    ends += 60 * options.minutes - END_S
    harness.end_on_signals()
    if os.geteuid() != 0:
        say("FAILED: eBPF needs root\n0 passed, 1 failed")
        return 1
    machine, reason = probe(options.engine)
    need = options.gpus or 1
    if not machine or machine["gpus"] < need:
        say(f"skipped: {reason or str(machine['gpus']) + f' GPU(s), {need} needed'}\n0 passed, 0 failed")
        return 0
    options.gpus = options.gpus or min(machine["gpus"], 2)
    options.gib = options.gib or (8 if options.gpus > 1 else 5)
    harness.GPUS = options.gpus
    say(f"{machine['gpu']}, {options.gpus} of {machine['gpus']}; PyTorch {machine['torch']}, NCCL {machine['nccl']}; "
        f"{options.gib:g} GiB of weights")
    variants = Variants(options, machine)
    names = [name for name in VARIANTS if name in (options.variant or VARIANTS)]
    checks: dict = {}

    def write() -> None:
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps({
                "machine": machine, "gpus": options.gpus, "gib": options.gib, "cache_bytes": variants.cache,
                "steps": options.steps, "checks": checks, "variants": variants.results,
                "not_run": [name for name in names if name not in variants.results]}, indent=1) + "\n",
                encoding="utf-8")

    run_all(variants, names, ends, write)
    report(variants.results, options.gpus)
    checks.update(verdicts(variants.results, machine["gpu_bytes"], options.gpus))
    write()
    for what, why in checks.items():
        say(f"ok {what}" if why is None else f"FAILED {what}: {why}")
    missing = [name for name in names if name not in variants.results]
    if missing:
        say(f"not run, for there was no time: {', '.join(missing)}")
    failed = sum(why is not None for why in checks.values())
    say(f"{len(checks) - failed} passed, {failed} failed" + (f", {len(missing)} skipped" if missing else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
