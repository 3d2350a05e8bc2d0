# SPDX-License-Identifier: BSD-2-Clause
"""Cases of gpu_check.py about what is seen: registrations, counters, the graph against the driver."""
import re
import socket
import struct
import time

from harness import ROOT, Failure, run_command, wait_for
from observe import mem_bytes, phases

COMMUNICATORS = 4
RAS_PORT = 28028  # of NCCL's RAS, unless NCCL_RAS_ADDR says otherwise
STRUCTURE_MAX = 16 << 20


def require(condition, text: str) -> None:
    if not condition:
        raise Failure(text)


def communicators(lien, pid: int) -> list:
    return [c for c in lien.json("graph")["communicators"] if c["pid"] == pid]


def registered_addresses(communicator: dict) -> list:
    return sorted([int(r["address"], 16), r["bytes"]] for r in communicator["registrations"])


def every_segment_with_every_communicator(lien, job) -> dict:
    """Edges of the graph = segments x communicators, in every rank; their number."""
    counts = {}
    for pid, answer in zip(job.pids, job.ask("segments", 60)):
        segments = [list(s) for s in answer["segments"]]
        found = communicators(lien, pid)
        require(len(found) == COMMUNICATORS, f"process {pid}: {len(found)} communicators")
        for communicator in found:
            edges = registered_addresses(communicator)
            require(edges == segments, f"process {pid}, communicator {communicator['group']}: "
                    f"{len(edges)} registrations, {len(segments)} segments; only registered: "
                    f"{[e for e in edges if e not in segments][:3]}, not registered: "
                    f"{[s for s in segments if s not in edges][:3]}")
        counts[pid] = {"segments": len(segments), "edges": len(segments) * len(found)}
    return counts


def registered(context) -> dict:
    """PyTorch registers every segment with every communicator; a freed segment loses them all."""
    with context.session("registered") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job(env={"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"})
        job.ask(f"setup {COMMUNICATORS}", 150)
        figures = {"after set-up": every_segment_with_every_communicator(lien, job)}
        job.ask("fill 2", 90)
        figures["with tensors"] = every_segment_with_every_communicator(lien, job)
        job.ask("drop-fill", 90)
        figures["after empty_cache()"] = every_segment_with_every_communicator(lien, job)
        for when, counts in figures.items():
            print(f"  {when}: " + ", ".join(f"process {pid}: {c['segments']} segments, {c['edges']} "
                                            f"registrations" for pid, c in counts.items()))
        sizes = [sum(c["edges"] for c in counts.values()) for counts in figures.values()]
        require(sizes[1] > sizes[0] and sizes[1] > sizes[2], f"edges: {sizes}")
        job.ask("check", 90)
        job.ask("destroy", 90)
        job.quit()
        return figures


def memory_pool(context) -> dict:
    """register_mem_pool: the pool's segments are NCCL's, and registered with one communicator."""
    with context.session("memory_pool") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job()
        job.ask("setup 2", 150)
        before = [sum(len(c["registrations"]) for c in communicators(lien, pid)) for pid in job.pids]
        answers = job.ask("pool-register 64", 90)
        for pid, answer in zip(job.pids, answers):
            edges = [registered_addresses(c) for c in communicators(lien, pid)]
            holding = [e for e in edges if any(a <= answer["address"] < a + size for a, size in e)]
            require(len(holding) == 1, f"process {pid}: the pool is registered with {len(holding)} "
                    f"communicators: {edges}")
            made = lien.json("holders", pid, hex(answer["address"]))
            require(made["allocation"]["owner"] == "nccl", f"made by {made['allocation']['owner']}")
            kinds = [h["kind"] for h in made["holders"]]
            require("registration" in kinds, f"holders: {kinds}")
        job.ask("pool-deregister", 90)
        after = [sum(len(c["registrations"]) for c in communicators(lien, pid)) for pid in job.pids]
        require(after == before, f"registrations: {before} before, {after} after")
        job.ask("check", 90)
        job.ask("destroy", 90)
        job.quit()
        return {"registrations before and after": [before, after]}


def counted(context) -> dict:
    """Collectives are counted exactly, and NCCL's memory belongs to communicators."""
    with context.session("counted") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job()
        job.ask(f"setup {COMMUNICATORS}", 150)
        before = traffic(lien, job.pids)
        job.ask("time-allreduce 1000", 60)  # and 50 to warm up
        after = traffic(lien, job.pids)
        for pid in job.pids:
            rise = [b - a for a, b in zip(before[pid], after[pid])]
            require(sorted(rise)[-1] == 1050 and sum(rise) == 1050,
                    f"process {pid}: all-reduces rose by {rise}, want 1050 on one communicator")
        figures = {}
        for pid in job.pids:
            owned = {"exact": 0, "inferred": 0, "none": 0}
            for a in lien.json("graph")["allocations"]:
                if a["pid"] != pid or a["owner"] != "nccl" or a["state"] != "on the device":
                    continue
                comm = a["communicator"]
                owned["none" if not comm or not comm["group"] else
                      "inferred" if comm["inferred"] else "exact"] += a["bytes"]
            figures[pid] = owned
            print(f"  process {pid}: NCCL's memory by communicator: {owned}")
            require(sum(owned.values()) == mem_bytes(lien.json("mem"), pid, "nccl"),
                    "sums by communicator and lien mem differ")
        devices = {p["pid"]: p["devices"] for p in lien.json("ps")["processes"]}
        unknown = [a for a in lien.json("graph")["allocations"] if a["origin"].startswith("cuMemAlloc")
                   and a["device"] is None]
        require(not unknown, f"{len(unknown)} plain allocations of no known device: {unknown[:2]}")
        job.ask("destroy", 90)
        job.quit()
        return {"bytes by communicator": figures, "devices": devices}


def traffic(lien, pids: list) -> dict:
    """All-reduces of each communicator of each process, by address."""
    found = {pid: [] for pid in pids}
    for c in sorted(lien.json("comms")["communicators"], key=lambda c: c["address"]):
        if c["pid"] in found:
            found[c["pid"]].append((c["calls"] or {}).get("ncclAllReduce", 0))
    return found


def deep(context) -> dict:
    """The graph against a walk of the driver's mappings, in every rank."""
    with context.session("deep") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        job.ask(f"setup {COMMUNICATORS}", 150)
        job.ask("fill 2", 90)
        result = lien.json("check", "--deep", *[f"--pid={pid}" for pid in job.pids], timeout=120)
        require(len(result["processes"]) == len(job.pids), f"compared: {result['processes']}")
        for process in result["processes"]:
            require(not process["error"], f"process {process['pid']}: {process['error']}")
            require(not process["differences"], f"process {process['pid']}: "
                    f"{process['differences'][:3]}")
            require(process["mappings"] > 500, f"only {process['mappings']} mappings were found")
            print(f"  process {process['pid']}: {process['mappings']} mappings, no difference, "
                  f"{process['ms']:.0f} ms")
        job.ask("check", 90)
        job.ask("destroy", 90)
        job.quit()
        return {"processes": result["processes"]}


def explained(context) -> dict:
    """nvidia-smi's figure of a process = what was traced + a context and the rest."""
    with context.session("explained") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job()
        job.ask(f"setup {COMMUNICATORS}", 150)
        # The answer never waits for NVML: the first one may be from before the job.
        wait_for("NVML's figures of every rank",
                 lambda: all(len(explanations(lien, pid)) == 1 for pid in job.pids), 20)
        figures = {}
        for rank, pid in enumerate(job.pids):
            entry = explanations(lien, pid)[0]
            require(entry["ordinal"] == rank, f"rank {rank} uses device {entry['ordinal']}")
            require(entry["traced_bytes"] + entry["unexplained_bytes"] == entry["total_bytes"],
                    f"process {pid}: {entry}")
            require(0 < entry["unexplained_bytes"] < entry["total_bytes"] // 2,
                    f"process {pid}: more unexplained than a context: {entry}")
            figures[rank] = entry
        print(lien.command("mem", "--explain").text())
        job.ask("destroy", 90)
        job.quit()
        return figures


def explanations(lien, pid: int) -> list:
    """Of its devices: those with memory of its own there, and whose total NVML knows."""
    return [p for gpu in lien.json("mem", "--explain")["gpus"] for p in gpu["processes"]
            if p["pid"] == pid and p["total_bytes"] and p["traced_bytes"]]


def ask_ras(form: str) -> str:
    """What NCCL's RAS says itself, for the parser (agent/ras/ras.c)."""
    with socket.create_connection(("127.0.0.1", RAS_PORT), timeout=15) as ras:
        stream = ras.makefile("rw", newline="\n")
        for line in ("CLIENT PROTOCOL 2", f"SET FORMAT {form}"):
            stream.write(line + "\n")
            stream.flush()
            reply = stream.readline().strip()
            print(f"  NCCL's RAS, asked {line}: {reply}")
            if reply.startswith("ERROR"):
                return ""
        stream.write("STATUS\n")
        stream.flush()
        return stream.read()


def structure_of(pid: int, address: int) -> tuple:
    """The words of an ncclComm, which ends with the value with which it begins."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        data = b""
        while len(data) < STRUCTURE_MAX:
            piece = memory.read(4096 - (address + len(data)) % 4096)
            if not piece:
                break
            data += piece
            words = struct.unpack(f"<{len(data) // 8}Q", data[:len(data) // 8 * 8])
            if words[0] in words[1:]:
                return words[:words.index(words[0], 1) + 1]
    return ()


def describe_memory(pid: int, address: int, hashes: set) -> None:
    """What is where a communicator is, for when the agent makes nothing of it."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        data = memory.read(STRUCTURE_MAX)
    words = struct.unpack(f"<{len(data) // 8}Q", data[:len(data) // 8 * 8])
    again = [8 * i for i, word in enumerate(words) if word == words[0]][:6]
    print(f"  {pid} {address:#x}: {len(data)} bytes, the first word {words[0]:#x} is at {again}; "
          f"hashes at {[8 * i for i, word in enumerate(words) if word in hashes][:8]}")


def adopted_comms(context) -> dict:
    """A job that ran before the agent: NCCL's RAS names its communicators, and the hashes that it
    tells are in the communicators' structures."""
    with context.session("adopted_comms") as session:
        lien = session.lien
        job = session.job(with_lien=False)
        job.ask(f"setup {COMMUNICATORS}", 150)
        said = ask_ras("json")
        print("\n".join("    " + line for line in said.splitlines()))
        lien.start_agent()
        job.ask("check", 90)

        def named():
            result = lien.json("comms")
            mine = [c for c in result["communicators"] if c["pid"] in job.pids]
            return result if len([c for c in mine if c["by"] == "NCCL RAS"]) == \
                COMMUNICATORS * len(job.pids) else None
        try:
            result = wait_for("NCCL's RAS names every communicator", named, 60, 1)
        except Failure:
            print(lien.command("comms").out)
            found = lien.json("comms")
            print(found["late"])
            hashes = {int(row["hash"], 16) for late in found["late"] for row in late["unmatched"]}
            for entry in found["communicators"]:
                describe_memory(entry["pid"], int(entry["address"], 16), hashes)
            raise
        print(lien.command("comms").out)
        figures = {"bytes of an answer": len(said)}
        for entry in result["communicators"]:
            words = structure_of(entry["pid"], int(entry["address"], 16))
            number = int(entry["hash"], 16)
            require(number in words, f"{entry}: no hash in {len(words)} words")
            at = [i for i, word in enumerate(words) if word == number]
            behind = struct.unpack("<2i", struct.pack("<Q", words[at[-1] + 1]))
            require(behind == (entry["rank"], entry["nranks"]), f"{entry}: {behind} behind the hash")
            require(entry["rank"] == job.pids.index(entry["pid"]), f"{entry}: of another rank")
            figures["bytes of a structure"] = 8 * len(words)
            figures["offsets of the hash"] = [8 * i for i in at]
        for late in result["late"]:
            require(late["ras"] == "answered" and not late["others"] and not late["unmatched"],
                    f"late: {late}")
        print(f"  {figures}")
        job.ask("check", 90)
        job.ask("destroy", 90)
        job.quit()
        return figures


def decided(name: str) -> dict[str, str]:
    """What the gate does with each function, as far as somebody has looked at it."""
    lines = (ROOT / "tests/data" / name).read_text().splitlines()
    return dict(line.split() for line in lines)


def exports(pid: int, library: str, prefix: str) -> tuple:
    """The path of a library that a process has mapped, and the functions of its interface."""
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if f"/{library}" in line}
    require(len(paths) == 1, f"process {pid} has {library} from {paths}")
    path = paths.pop()
    listed = run_command(["nm", "-D", "--defined-only", f"/proc/{pid}/root{path}"], 60)
    require(listed.code == 0, listed.text()[-300:])
    names = re.findall(rf" [TW] ({prefix}\w*)(?:@\S*)?$", listed.out, re.M)
    return path, set(names)


def exported(context) -> dict:
    """The gate's tables against what this machine's libraries export, and what holding it all
    costs: a function that the tables do not have is held, and named here. Every one of NCCL's must be
    in them."""
    figures = {}
    with context.session("exported") as session:
        lien = session.lien
        lien.start_agent()
        job = session.job()
        job.ask("setup 1", 150)
        for library, prefix, data in (("libcuda.so", "cu[A-Z]", ["cuda-13.0.gated"]),
                                      ("libnccl.so", "nccl[A-Z]", ["nccl-2.30.gated", "nccl-2.32.gated"])):
            path, names = exports(job.pids[0], library, prefix)
            table = {name: how for file in data for name, how in decided(file).items()}
            new = sorted(names - table.keys())
            held = [name for name in names if table.get(name) != "free"]
            require(len(names) > 50 and held, f"{path} exports {len(names)} functions")
            figures[library] = {"exported": len(names), "held": len(held), "new": new,
                                "not there": len(table.keys() - names)}
            print(f"  {path}: {len(names)} functions, {len(held)} of them held, not in our table "
                  f"(so held): {' '.join(new) or 'none'}")
            require(library != "libnccl.so" or not new, f"{path}: nobody has decided of {new}")
        for turn in ("first", "second", "third"):
            began = time.monotonic()
            out = lien.json("offload", "--owner", "all", timeout=150)
            wall = (time.monotonic() - began) * 1e3
            require(out["outcome"] == "done", f"{out}")
            back = lien.json("restore", timeout=150)
            figures[turn] = {"offload": out["ms"], "as called": wall, "phases": phases(out),
                             "restore": back["ms"]}
            print(f"  {turn} offload of all: {figures[turn]}")
        job.ask("check", 90)
        job.ask("destroy", 90)
        job.quit()
    return figures


CASES = {
    "exported": (exported, 180),
    "registered": (registered, 120),
    "memory_pool": (memory_pool, 120),
    "counted": (counted, 120),
    "deep": (deep, 120),
    "explained": (explained, 120),
    "adopted_comms": (adopted_comms, 240),
}
