# SPDX-License-Identifier: BSD-2-Clause
"""What tests share that compare the agent's graph with the software driver's truth: jobs of processes
that make random calls (prog_random.c), and what they say of their memory."""

import collections
import json
import signal
import socket

from lien_test import SEED, at_a_moment, brief, check, program

PROCESSES = 4

# tests/softcuda/dump.h
(HANDLE, RANGE, MAPPING, PLAIN, PITCH, MANAGED, ASYNC, ASYNC_IMPORT, IPC, POOL, HOST, REGISTERED,
 MULTICAST, BINDING) = range(1, 15)
ORIGINS = {HANDLE: "cuMemCreate", MULTICAST: "cuMulticastCreate", PLAIN: "cuMemAlloc",
           PITCH: "cuMemAllocPitch", MANAGED: "cuMemAllocManaged", ASYNC: "cuMemAllocAsync",
           HOST: "cuMemHostAlloc", REGISTERED: "cuMemHostRegister"}
FLAGS = {"none": 0, "read": 1, "write": 2, "read-write": 3}
Thing = collections.namedtuple(
    "Thing", "kind number value references va bytes place where imported multicast offset access")
HOST_SLOT = -1


class Connection:
    """To the agent's socket, for any number of requests."""

    def __init__(self, session):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(session.socket)
        self.rest = b""

    def line(self):
        pieces = [self.rest]
        while b"\n" not in pieces[-1]:
            pieces.append(self.more())
        line, _, self.rest = b"".join(pieces).partition(b"\n")
        return line

    def more(self):
        piece = self.socket.recv(1 << 20)
        check(piece, "the agent hung up")
        return piece

    def ask(self, op):
        self.socket.sendall(b'{"op": "%s"}\n' % op.encode())
        answer = json.loads(self.line())
        check(answer["ok"], "the agent refused", op, brief(answer))
        return answer["result"]

    def close(self):
        self.socket.close()


class Job:
    """The processes, by number; one that is killed is followed by another. options:
    prog_random's."""

    def __init__(self, session, rng, *options):
        self.session, self.rng = session, rng
        self.lives = collections.Counter()  # programs that a pid has run
        self.argv = [program("prog_random"), session.folder]
        self.options = options
        self.members = [self.start(number) for number in range(PROCESSES)]
        for member in self.members:
            self.is_ready(member)

    def start(self, number):
        return self.session.spawn([*self.argv, number, PROCESSES, *self.options])

    def is_ready(self, member):
        check(member.line() == "started", "prog_random:", brief(member.said()))
        self.go_on(member)

    def go_on(self, member):
        if self.session.agent:
            self.session.followed(member.pid)
        check(member.ask("go") == "ready", "prog_random:", brief(member.said()))

    def kill(self, number):
        member = self.members[number]
        member.signal(signal.SIGKILL)
        member.wait()
        self.session.processes.remove(member)
        member.end()

    def replace(self, number):
        self.members[number] = self.start(number)
        self.is_ready(self.members[number])

    def alive(self):
        return next(member for member in self.members if member.popen.poll() is None)

    def burst(self):
        """The state of each process, by pid; how many sequences that were."""
        sequences, running = 0, {}
        for number, member in enumerate(self.members):
            threads = self.rng.choice((1, 2, 4, 4, 8))
            member.send("burst %d %d %d" % (
                threads, self.rng.choice((4, 24, 60)), self.rng.randrange(1 << 62)))
            running[number] = threads
        if self.rng.random() < 0.08:  # in the middle of it
            at_a_moment(self.rng, 0.01)
            victim = self.rng.randrange(PROCESSES)
            self.kill(victim)
            del running[victim]
        states = {}
        for number, threads in running.items():
            member = self.members[number]
            line = member.line(60)
            check(line, "prog_random ended:", brief(member.said()))
            states[member.pid] = json.loads(line)
            sequences += threads
        return states, sequences

    def states(self):
        """What each process has now, by pid, without a turn."""
        return {member.pid: json.loads(member.ask("burst 0 0 0")) for member in self.members
                if member.popen.poll() is None}

    def contents(self):
        """Of each process: {address: sum of what is mapped there, or the driver's error}."""
        return {member.pid: json.loads(member.ask("sums")) for member in self.members
                if member.popen.poll() is None}

    def open(self, numbers=range(PROCESSES)):
        """Both devices get access to all memory with handles, in these processes."""
        for member in map(self.members.__getitem__, numbers):
            if member.popen.poll() is None:
                said = member.ask("open")
                check(said == "opened", said)

    def paint(self):
        """Other contents where they can be written."""
        for member in self.members:
            if member.popen.poll() is None:
                said = member.ask("paint %d" % self.rng.randrange(1, 1 << 62))
                check(said == "painted", said)

    def between(self):
        """What happens to processes when they are quiet. Those that died are followed."""
        for number, member in enumerate(self.members):
            if member.popen.poll() is not None:
                self.replace(number)
        chance, number = self.rng.random(), self.rng.randrange(PROCESSES)
        member = self.members[number]
        if chance < 0.08:
            self.kill(number)
            self.replace(number)
        elif chance < 0.12:
            check(member.ask("fork") == "forked", "fork")
        elif chance < 0.16:
            check(member.ask("exec") == "started", "exec:", brief(member.said()))
            self.go_on(member)
            self.lives[member.pid] += 1


def truth_of(states):
    """What the driver says: entries by allocation, facts of allocations, and what is beside them."""
    entries, facts = collections.defaultdict(list), {}
    beside, bindings, host = collections.Counter(), [], []
    for pid, state in states.items():
        for thing in map(Thing._make, state["objects"]):
            kind, number = thing.kind, thing.number
            if kind == RANGE:
                beside["reservation", pid, thing.va, thing.bytes] += 1
            elif kind == POOL:
                if thing.value not in state["default_pools"]:
                    beside["pool", pid, thing.value, bool(thing.imported)] += 1
            elif kind == BINDING:
                bindings.append((thing.multicast, number, thing.offset, thing.bytes))
                entries[number] += []
            elif kind in (HANDLE, MULTICAST):
                entries[number].append(
                    ("handle", pid, thing.value, thing.references, bool(thing.imported)))
            else:
                access = tuple(sorted(map(tuple, thing.access))) if kind == MAPPING else ()
                entry = ("mapping", pid, thing.va, thing.bytes, access)
                if kind in (HOST, REGISTERED):
                    host.append((entry, (pid, ORIGINS[kind], None, thing.bytes)))
                else:
                    entries[number].append(entry)
                if kind == IPC:
                    beside["opened", pid, thing.va] += thing.references
            if not thing.imported and kind in ORIGINS and number:
                where = thing.where if thing.place == 1 and kind != MULTICAST else None
                facts[number] = (pid, ORIGINS[kind], where, thing.bytes)
        for value, device in state["contexts"]:
            beside["context", pid, value, device >= 0] += 1
    return entries, facts, beside, bindings, host


def access_of(mapping):
    flags = {}
    for place in mapping["access"]:
        slot = place.get("device", HOST_SLOT)
        flags[slot] = FLAGS[place["access"]]
    return tuple(sorted((slot, flag) for slot, flag in flags.items() if flag))


def entries_of(allocation):
    entries = [("handle", row["pid"], int(row["handle"], 16), row["references"], row["imported"])
               for row in allocation["handles"]]
    entries += [("mapping", row["pid"], int(row["address"], 16), row["bytes"], access_of(row))
                for row in allocation["mappings"]]
    return entries


def sorted_tuple(entries):
    return tuple(sorted(entries))


def text(group):
    return "; ".join(" ".join("%#x" % word if type(word) is int and word > 1 << 20 else str(word)
                              for word in entry) for entry in group) or "bound memory"
