# SPDX-License-Identifier: BSD-2-Clause
"""Graph replies of made-up jobs, for the pictures of `lien graph`."""

MIB = 1 << 20


class Job:
    """A graph reply in the making; methods return what they added, to be changed."""

    def __init__(self):
        self.reply = {"processes": [], "allocations": [], "communicators": []}
        self.address = 0x7f0000000000

    def process(self, pid, devices, **changes):
        one = {"pid": pid, "command": "python3", "uid": 0, "state": "running", "complete": True,
               "control": "ready", "devices": devices, "ranks": [], "bytes": 0, "nccl_bytes": 0,
               "nccl_inferred_bytes": 0, "imported_bytes": 0, "offloaded_bytes": 0, **changes}
        self.reply["processes"].append(one)
        return one

    def memory(self, pid, device, size, owner="nccl", importers=(), count=1, **changes):
        """importers: pairs of pid and device."""
        made = []
        for _ in range(count):
            self.address += 64 * MIB
            holders = ([(pid, device)] if changes.get("alive", True) and pid else []) + \
                list(importers)
            made.append({
                "id": len(self.reply["allocations"]) + 1, "pid": pid, "device": device,
                "bytes": size, "owner": owner, "owner_inferred": False, "tag": None, "origin": "cuMemCreate",
                "state": "on the device", "exports": len(importers), "alive": True,
                "handles": [{"pid": p, "handle": hex(self.address + p), "references": 1,
                             "imported": p != pid} for p, _ in holders],
                "mappings": [{"pid": p, "address": hex(self.address), "bytes": size,
                              "access": [{"device": d, "access": "read-write"}]}
                             for p, d in holders], **changes})
            self.reply["allocations"].append(made[-1])
        return made

    def communicator(self, group, pids, registered=0):
        for rank, pid in enumerate(pids):
            self.reply["communicators"].append({
                "group": group, "pid": pid, "address": hex(self.address + rank), "rank": rank,
                "nranks": len(pids),
                "registrations": [{"address": "0x1000", "bytes": 20 * MIB, "window": False}
                                  for _ in range(registered)]})
            for process in self.reply["processes"]:
                if process["pid"] == pid:
                    process["ranks"].append({"group": group, "rank": rank, "nranks": len(pids)})


def ranks(count, per_pair, communicators, torch=12):
    """Every rank on a GPU of its own; each holds per_pair allocations of each other."""
    job = Job()
    pids = [812 + r for r in range(count)]
    for rank, pid in enumerate(pids):
        job.process(pid, [rank])
    for rank, pid in enumerate(pids):
        job.memory(pid, rank, 2 * MIB, count=98)
        job.memory(pid, rank, 1 << 30, "torch", count=torch)
        job.memory(pid, rank, 2 * MIB, "cudart", count=3, origin="cuMemAlloc")
        for peer, other in enumerate(pids):
            if other != pid:
                job.memory(pid, rank, 2 * MIB, importers=[(other, peer)], count=per_pair)
    for c in range(communicators):
        job.communicator("5ac1d2e0b7f0a1%02x" % c, pids, 2 if c == 0 else 0)
    return job


def one_process():
    job = Job()
    job.process(812, [0])
    job.memory(812, 0, 512 * MIB, "torch", count=3)
    return job.reply


def two_processes():
    """One has exported; part of it is offloaded."""
    job = ranks(2, 336, 4)
    for allocation in job.reply["allocations"][:500]:
        if allocation["owner"] == "nccl":
            allocation["state"] = "offloaded"
    job.reply["processes"][0].update(state="partly offloaded")
    return job.reply


def eight_ranks():
    return ranks(8, 480, 4).reply


def eight_ranks_uneven():
    """What goes wrong in large jobs: parts of groups, something away, a rank that has died."""
    job = Job()
    pids = [4190000 + 7 * r for r in range(8)]
    for rank, pid in enumerate(pids):
        if rank != 5:
            job.process(pid, [rank])
    job.reply["processes"][2].update(state="offloaded", complete=False)
    for rank, pid in enumerate(pids):
        dead = {"alive": False} if rank == 5 else {}
        job.memory(pid, rank, (rank + 1) << 30, "libtorch_cuda_linalg_with_a_long_name", **dead)
        job.memory(pid, rank, 96 * MIB, count=4, **dead)
        for peer, other in enumerate(pids):
            if other != pid and peer != 5 and abs(peer - rank) <= 3:
                state = {"state": "offloaded"} if rank == 2 and peer == 3 else {}
                job.memory(pid, rank, 4 * MIB, importers=[(other, peer)],
                           count=10 * (rank + 1) + peer, **dead, **state)
    alive = [pid for pid in pids if pid != pids[5]]
    job.communicator("aaaa000000000001", pids, 3)
    job.communicator("bbbb000000000001", pids[:4])
    job.communicator("bbbb000000000002", pids[4:])
    for i, pid in enumerate(alive[:4]):
        job.communicator("cccc00000000000%d" % i, [pid, alive[i + 3]])
    job.reply["communicators"] = [c for c in job.reply["communicators"] if c["pid"] != pids[5]]
    return job.reply


def sixteen_on_one():
    job = Job()
    for i in range(16):
        job.process(30000 + i, [0], command="vllm-worker-%d" % i)
        job.memory(30000 + i, 0, (i + 1) * 256 * MIB, "torch", count=2)
        job.memory(30000 + i, 0, 64 * MIB, "cublas")
    for i in range(4):
        job.memory(30000, 0, 512 * MIB, "torch", importers=[(30000 + 5 * i + 0, 0)]
                   if i else [(30001, 0)], count=3)
    return job.reply


def sixteen_all_to_all():
    return ranks(16, 12, 2).reply


def sixty_four():
    """8 processes on each of 8 GPUs, in rings that cross the GPUs."""
    job = Job()
    for i in range(64):
        job.process(50000 + i, [i // 8])
        job.memory(50000 + i, i // 8, 300 * MIB, "torch", count=4)
    for i in range(64):
        for step in (1, 8):
            other = (i + step) % 64
            job.memory(50000 + i, i // 8, 8 * MIB, importers=[(50000 + other, other // 8)],
                       count=20)
    job.communicator("5ac1d2e0b7f0a100", [50000 + i for i in range(64)])
    for i in range(8):
        job.communicator("6ac1d2e0b7f0a10%d" % i, [50000 + 8 * i + j for j in range(8)])
    return job.reply


def two_devices_each():
    job = Job()
    job.process(70, [0, 1])
    job.process(71, [2, 3])
    for device in range(4):
        pid, other = (70, 71) if device < 2 else (71, 70)
        job.memory(pid, device, 1 << 30, "torch")
        job.memory(pid, device, 16 * MIB, importers=[(other, (device + 2) % 4)],
                   count=10 + device)
    job.communicator("5ac1d2e0b7f0a100", [70, 70, 71, 71])
    return job.reply


def tagged():
    """Memory of one library with several tags, shared or away too, and with none."""
    job = Job()
    for rank, pid in enumerate((812, 813)):
        job.process(pid, [rank])
        job.memory(pid, rank, 512 * MIB, "torch", count=2)
        job.memory(pid, rank, 256 * MIB, "torch", count=3, tag="weights")
        job.memory(pid, rank, 128 * MIB, "torch", tag="a tag with a name that goes on for a while")
        job.memory(pid, rank, 64 * MIB, "torch", tag="kv_cache", state="offloaded")
        job.memory(pid, rank, 32 * MIB, importers=[(813 - rank, 1 - rank)], tag="kv_cache")
    return job.reply


def odd():
    """Memory of the dead and of the unknown, none at all, hostile names, what is not known yet."""
    job = Job()
    job.process(100, [0], command="<b>&\"'\x1b[31m\u202e</svg>")
    job.process(101, [], command="idle")
    job.process(102, [1], command="\u540d\u524d" * 8, complete=False)
    job.process(103, [1], command="")
    job.memory(100, 0, 300 * MIB, "]]><script>alert(1)</script>", importers=[(102, 1)])
    job.memory(100, None, 100 * MIB, "torch", state="in host memory", kind="host")
    job.memory(100, 0, 100 * MIB, "", state="on the moon")
    job.memory(77, 0, 700 * MIB, importers=[(102, 1), (103, 1), (100, 0)], alive=False, count=3)
    job.memory(None, None, 50 * MIB, "unknown", importers=[(103, 1)], alive=False,
               origin="import", pool={"id": 3}, count=2)
    job.memory(103, 1, 1, "a_library_with_a_name_that_goes_on_" * 3, kind=["managed"])
    job.reply["devices"] = [{"uuid": "GPU-1234"}]
    job.reply["communicators"].append({"group": "<&>", "pid": 103, "address": "0x1", "rank": 5,
                                       "nranks": 4096, "parent": "x", "registrations": []})
    return job.reply


def empty():
    return Job().reply


JOBS = {"one": one_process, "two": two_processes, "8ranks": eight_ranks,
        "8uneven": eight_ranks_uneven, "16on1": sixteen_on_one, "16all": sixteen_all_to_all,
        "64": sixty_four, "devices": two_devices_each, "tags": tagged,
        "odd": odd, "empty": empty}
