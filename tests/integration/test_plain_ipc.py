#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Legacy IPC between processes under `lien run`, and random jobs that share their plain memory."""

import json
import os
import random
import signal
import socket
import sys

from lien_test import MIB, case, check, equal, main, wait_for
from plain import INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, KEPT, Plain, plain_session
from users import ALICE, BOB, Shared

FUTEX = 202


def answers(job):
    """The system call of the thread that answers whoever opens the process's handles."""
    for tid in os.listdir("/proc/%d/task" % job.pid):
        folder = "/proc/%d/task/%s/" % (job.pid, tid)
        with open(folder + "comm") as comm, open(folder + "syscall") as call:
            if comm.read() == "lien-ipc\n":
                word = call.read().split()[0]
                return int(word) if word.isdigit() else None
    return None


@case()
def test_ipc():
    with plain_session() as session:
        owner, user = Plain(session), Plain(session, device=1)
        big, a, b = owner("alloc", 6 * MIB), owner("alloc", 3000), owner("alloc", 5000)
        for value, (block, size) in enumerate(((big, 6 * MIB), (a, 3000), (b, 5000))):
            owner("fill", block, size, value + 1)
        handles = [owner.handle(block) for block in (big, a, b)]
        equal(owner.handle(big), handles[0], "the handle of the same block")
        equal(owner.refused("ipc-open", handles[0]), INVALID_CONTEXT, "opened in the owner")
        opened = [user("ipc-open", handle) for handle in handles]
        equal(user("ipc-open", handles[1]), opened[1], "opened twice")
        for value, (block, size) in enumerate(zip(opened, (6 * MIB, 3000, 5000))):
            user.holds(block, size, value + 1)
            equal(user("range", block + size - 1), [block, size], "range of opened memory")
        user("fill", opened[2], 5000, 77)
        owner.holds(b, 5000, 77)
        owner.holds(a, 3000, 2)
        equal(user.refused("ipc-close", opened[0] + 512), 1, "an address inside")
        equal(user.refused("free", opened[0]), 1, "freed instead of closed")
        user("ipc-close", opened[1])
        user.holds(opened[1], 3000, 2)
        user("ipc-close", opened[1])
        equal(user.refused("ipc-close", opened[1]), 1, "closed once too often")
        user.holds(opened[2], 5000, 77)
        # The owner frees first: who has it open keeps it.
        owner("free", big)
        equal(user.attempt("ipc-open", handles[1])[0], True, "opened again")
        user.holds(opened[0], 6 * MIB, 1)
        other = Plain(session)
        equal(other.refused("ipc-open", handles[0]), INVALID_VALUE, "freed by its owner")
        user("ipc-close", opened[0])
        user("ipc-close", user("ipc-open", handles[1]))
        again = owner("alloc", 6 * MIB)
        check(owner.handle(again) != handles[0], "a new block has the handle of the old one")
        # The owner dies.
        owner.end()
        user.holds(opened[2], 5000, 77)
        equal(other.refused("ipc-open", handles[2]), INVALID_HANDLE, "its owner is dead")
        user("ipc-close", opened[2])
        user("ipc-close", opened[1])
        equal(session.used(), 0, "device memory in use")


@case()
def test_ipc_of_a_process_that_closes_its_descriptors():
    with plain_session() as session:
        owner, user = Plain(session), Plain(session)
        block = owner("alloc", 2 * MIB)
        owner("fill", block, 2 * MIB, 9)
        owner.handle(block)
        owner("closeall")

        def opened():
            ok, values = user.attempt("ipc-open", owner.handle(block))
            return ok and values[0]
        user.holds(wait_for("a handle of a new socket", opened), 2 * MIB, 9)


@case()
def test_ipc_with_owners_that_do_not_answer():
    """Whoever opens their memory waits as long as the owner may answer, and keeps nobody else waiting."""
    with plain_session() as session:
        stopped, full, dead, owner, user = (Plain(session) for _ in range(5))
        blocks = {each: each("alloc", 2 * MIB) for each in (stopped, full, dead, owner)}
        handles = {each: each.handle(block) for each, block in blocks.items()}
        dead.process.send("clone-and-die")
        dead.process.popen.wait()
        full("exhaust")
        stopped.process.signal(signal.SIGSTOP)
        for stop in "ipc-open-cancel", None:
            context = user("create", 0)
            user("ipc-open-begin", handles[stopped])
            user("ipc-close", user("ipc-open", handles[owner]))
            equal(user.refused("ipc-open", handles[dead]), INVALID_HANDLE, "of a process that is dead")
            user("ipc-close", user("ipc-open", handles[full]))
            if stop:
                user(stop)
                stopped.process.signal(signal.SIGCONT)
                user("ipc-close", user("ipc-open-end"))
                stopped.process.signal(signal.SIGSTOP)
                user("destroy", context)
        stopped.process.signal(signal.SIGCONT)
        user("ipc-close", user("ipc-open-end"))
        user("destroy", context)


# --- who has the handle may open it ---------------------------------------------------------------

GUESTS = 32  # control/plain/ipc_offer.c


def half(handle, secret=False):
    """The half of the owner's cookie that names its socket, or the secret one (control/plain/ipc.h)."""
    return handle[2:][32:48] if secret else handle[2:][16:32]


def knock(handle):
    """Connects to the owner, and shows nothing."""
    guest = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guest.connect("\0lien-ipc-" + half(handle))
    guest.setblocking(False)
    return guest


def is_open(guest):
    try:
        return guest.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def descriptors(job):
    return len(os.listdir("/proc/%d/fd" % job.pid))


def with_guests(session):
    """An owner, a user, a handle, and how many descriptors the owner has while nobody asks."""
    owner, user = Plain(session), Plain(session)
    handle = owner.handle(owner("alloc", 2 * MIB))
    user("ipc-close", user("ipc-open", handle))
    return owner, user, handle, descriptors(owner)


@case()
def test_ipc_between_users():
    with Shared(LIEN_PLAIN="0") as session:
        session.start_agent()
        jobs = [Plain(session, uid=uid) for uid in (ALICE, BOB, None)]
        blocks = []
        for value, job in enumerate(jobs):
            blocks.append(job("alloc", 6 * MIB))
            job("fill", blocks[value], 6 * MIB, value + 1)
        session.ready(*(job.pid for job in jobs))
        opened = {}
        for value, owner in enumerate(jobs):
            for user in jobs:
                if user is not owner:
                    opened[user, value] = user("ipc-open", owner.handle(blocks[value]))
                    user.holds(opened[user, value], 6 * MIB, value + 1)
        # Nobody moves what another user has open, but root.
        for uid in ALICE, BOB:
            session.refused_as(uid, "mapped by a process of another user", "offload", "--owner", "all")
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], result["left"]), ("done", []), "offload")
        session.ask("restore")
        for (user, value), address in opened.items():
            user.holds(address, 6 * MIB, value + 1)


# Takes the name of an owner's socket, and prints "shown" if somebody connects.
SQUATTER = """import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind("\\0lien-ipc-" + sys.argv[1])
s.listen()
print("listens", flush=True)
s.accept()
print("shown", flush=True)"""


@case()
def test_ipc_between_network_namespaces():
    with Shared(LIEN_PLAIN="0") as session:
        session.start_agent()
        jobs = [Plain(session), Plain(session, network=True), Plain(session, network=True)]
        blocks = [job("alloc", 4 * MIB) for job in jobs]
        handles = [job.handle(block) for job, block in zip(jobs, blocks)]
        for value, (job, block) in enumerate(zip(jobs, blocks)):
            job("fill", block, 4 * MIB, value + 1)
        session.ready(*(job.pid for job in jobs))
        squatter = session.spawn(["nsenter", "--net=/proc/%d/ns/net" % jobs[1].pid, sys.executable, "-c", SQUATTER,
                                  half(handles[0])])
        equal(squatter.line(), "listens", "in the opener's namespace")
        opened = {}
        for job in jobs:
            for value, handle in enumerate(handles):
                if job is not jobs[value]:
                    opened[job, value] = job("ipc-open", handle)
                    job.holds(opened[job, value], 4 * MIB, value + 1)
        before = descriptors(jobs[1])
        jobs[1]("ipc-close", opened[jobs[1], 0])
        equal((jobs[1]("ipc-open", handles[0]), descriptors(jobs[1])), (opened[jobs[1], 0], before), "again")
        squatter.end()
        check("shown" not in squatter.said(), "a handle was shown to somebody else:", squatter.said())
        for step in "offload", "restore":
            equal(session.ask(step, *(["--owner", "all"] if step == "offload" else []))["outcome"], "done", step)
        for (job, value), address in opened.items():
            job.holds(address, 4 * MIB, value + 1)
        # Another user, the end of the owner, and no agent.
        bob = Plain(session, uid=BOB)
        bob("ipc-close", bob("ipc-open", handles[1]))
        jobs[1].end()
        equal(bob.refused("ipc-open", handles[1]), INVALID_HANDLE, "its owner is dead")
        session.stop_agent()
        equal(bob.refused("ipc-open", handles[2]), INVALID_HANDLE, "without an agent")


def ask_raw(session, request):
    """The agent's answer, and the descriptors that came with it."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(session.socket)
        client.sendall(json.dumps(request).encode() + b"\n")
        answer, fds = b"", []
        while not answer.endswith(b"\n"):
            data, more, _, _ = socket.recv_fds(client, 65536, 8)
            check(data, "it has hung up")
            answer, fds = answer + data, fds + more
    return json.loads(answer), fds


@case()
def test_ipc_connections_that_the_agent_makes():
    """Only to sockets of that form, in the one namespace that is asked for."""
    with plain_session() as session:
        session.start_agent()
        owner = Plain(session, network=True)
        handle = owner.handle(owner("alloc", 2 * MIB))
        session.ready(owner.pid)
        name, network = half(handle), int.from_bytes(bytes.fromhex(handle[2:])[52:56], "little")
        answer, fds = ask_raw(session, {"op": "ipc_connect", "socket": name, "network": network})
        equal((answer["ok"], answer["result"], len(fds)), (True, {}, 1), "answer")
        guest = socket.socket(fileno=fds[0])
        equal((guest.type, is_open(guest)), (socket.SOCK_SEQPACKET, True), "connection")
        guest.close()
        for changed in ({"network": network + 1000}, {"socket": 16 * "0"}, {"socket": name[:15]}, {"socket": name + "0"},
                        {"socket": name[:15] + "/"}, {"socket": None}, {"network": -1}, {"network": 1 << 32},
                        {"network": "1"}, {"more": 1}):
            answer, fds = ask_raw(session, {"op": "ipc_connect", "socket": name, "network": network, **changed})
            equal((answer["ok"], answer.get("code"), fds), (False, "invalid", []), changed)


@case()
def test_ipc_handle_opens_one_block():
    with plain_session() as session:
        owner, user = Plain(session), Plain(session)
        handles = [owner.handle(owner("alloc", 4096)) for _ in range(3)]
        again = owner.handle(owner("alloc", 2 * MIB))
        with open("/proc/net/unix", encoding="ascii") as table:
            names = table.read()
        check(half(again) in names, "no socket of that name")
        for handle in handles:
            check(half(handle, secret=True) not in names, "all of the cookie can be read")
        check(handles[0][-16:] != handles[1][-16:], "two blocks have the same secret")
        # With what belongs to other blocks, or without it.
        for secret in handles[1][-16:], 16 * "0":
            equal(user.refused("ipc-open", handles[0][:-16] + secret), INVALID_VALUE, "a wrong secret")
        equal(user.refused("ipc-open", handles[0][:2 + 32] + 16 * "0" + handles[0][2 + 48:]), INVALID_VALUE,
              "without the second half of the cookie")
        user("ipc-close", user("ipc-open", handles[0]))


@case()
def test_ipc_beside_strangers_that_are_silent():
    with plain_session() as session:
        owner, user, handle, before = with_guests(session)
        guests = [knock(handle) for _ in range(GUESTS // 2)]
        user("ipc-close", user("ipc-open", handle))
        check(all(map(is_open, guests)), "it was opened after silent ones were closed")
        guests += [knock(handle) for _ in range(GUESTS)]
        wait_for("the first ones have been closed", lambda: sum(map(is_open, guests)) == GUESTS)
        check(all(map(is_open, guests[-GUESTS:])), "the first one is not the most silent")
        user("ipc-close", user("ipc-open", handle))
        check(any(map(is_open, guests)), "it was opened after silent ones were closed")
        for guest in guests:
            guest.close()
        wait_for("the owner has closed all", lambda: descriptors(owner) == before)


@case(long=True)
def test_ipc_strangers_that_stay_silent():
    with plain_session() as session:
        owner, _, handle, before = with_guests(session)
        guests = [knock(handle) for _ in range(3)]
        wait_for("they are closed", lambda: not any(map(is_open, guests)))
        wait_for("the owner has closed all", lambda: descriptors(owner) == before)


@case()
def test_ipc_with_a_process_without_lien():
    """They exchange the driver's handles, or the open is refused."""
    with plain_session() as session:
        ours, without = Plain(session), Plain(session, under_lien=False)
        theirs = without("alloc", 2 * MIB)
        without("fill", theirs, 2 * MIB, 5)
        opened = ours("ipc-open", without.handle(theirs))
        ours.holds(opened, 2 * MIB, 5)
        ours("ipc-close", opened)
        equal(without.refused("ipc-open", ours.handle(ours("alloc", 2 * MIB))), INVALID_VALUE,
              "a handle of ours")
        plain = Plain(session, plain=True)
        block = plain("alloc", 2 * MIB)
        without("ipc-close", without("ipc-open", plain.handle(block)))


@case()
def test_ipc_moves():
    """Shared memory is moved in both processes, and can be opened while it is away."""
    with plain_session(strict=False) as session:
        session.start_agent()
        owner, user, late = Plain(session), Plain(session, device=1), Plain(session)
        blocks = [(owner("alloc", size), size) for size in (6 * MIB, 3000, 5000)]
        for value, (block, size) in enumerate(blocks):
            owner("fill", block, size, value + 1)
        handles = [owner.handle(block) for block, _ in blocks]
        opened = [user("ipc-open", handle) for handle in handles]
        late("alloc", 2 * MIB)
        session.ready(owner.pid, user.pid, late.pid)
        before = session.used()
        for _ in range(3):
            result = session.ask("offload", "--owner", "all")
            equal((result["outcome"], result["left"]), ("done", []), "offload")
            equal(session.used(), 2 * KEPT, "device memory in use")
            equal(session.ask("restore")["outcome"], "done", "restore")
            equal(session.used(), before, "device memory in use after the restore")
            for value, (address, (block, size)) in enumerate(zip(opened, blocks)):
                user.holds(address, size, value + 1)
                owner.holds(block, size, value + 1)
        session.ask("offload", "--owner", "all")
        late.process.send("ipc-open %s" % handles[0])
        wait_for("its owner is held at the answer", lambda: answers(owner) == FUTEX)
        equal(session.ask("restore")["outcome"], "done", "restore")
        answer = late.process.line()
        check(answer.startswith("ok "), "opened while it was away:", answer)
        late.holds(int(answer.split()[1], 0), 6 * MIB, 1)
        result = session.ask("offload", "--owner", "all")
        equal((result["outcome"], result["left"], session.used()), ("done", [], 2 * KEPT), "offload")
        session.ask("restore")
        equal(session.ask("status")["events_lost"], 0, "events lost")


# --- random jobs ----------------------------------------------------------------------------------

KINDS = ("plain", "pooled", "pitched", "virtual")
SHARED = ("plain", "pitched")  # by legacy IPC
ORPHANS = {"its owner has let go of it, and only others hold it", "its owner has exited"}


class Block:
    def __init__(self, kind, address, size, value):
        self.kind, self.address, self.size, self.value = kind, address, size, value
        self.reused = False


class Job:
    """A process, its blocks, and what it has opened of others' blocks."""

    def __init__(self, session, number):
        self.device = number % 2
        self.driver = Plain(session, device=self.device)
        self.blocks, self.opened = [], {}  # address: [block, how often]
        self.kept = False  # see plain.KEPT

    def holds(self):
        for block in self.blocks:
            self.driver.holds(block.address, block.size, block.value)
        for address, (block, _) in self.opened.items():
            if not block.reused:
                self.driver.holds(address, block.size, block.value)


class Jobs:
    def __init__(self, session, seed):
        self.session, self.random = session, random.Random(seed)
        self.jobs = [Job(session, number) for number in range(4)]

    def alloc(self, job):
        size = self.random.choice((self.random.randint(1, 5000), self.random.randint(1, 3 * MIB)))
        kind, value = self.random.choices(KINDS, (50, 20, 15, 15))[0], self.random.randrange(256)
        if kind == "plain":
            address = job.driver("alloc", size)
        elif kind == "pooled":
            address = job.driver("alloc-async", size, 0)
        elif kind == "pitched":
            address, pitch = job.driver("pitch", self.random.randint(1, 3000), 300, 4)
            size = pitch * 300
        else:
            size = self.random.randint(1, 2) * 2 * MIB
            address = job.driver("virtual", job.device, size)
        job.driver("fill", address, size, value)
        job.blocks.append(Block(kind, address, size, value))
        job.kept |= kind in SHARED

    def free(self, job):
        if job.blocks:
            block = job.blocks.pop(self.random.randrange(len(job.blocks)))
            if block.kind == "virtual":
                job.driver("virtual-free", block.address, block.size)
            elif self.random.random() < 0.25:
                job.driver("free-async", block.address, 0)
            else:
                job.driver("free", block.address)
            block.reused = block.size < 2 * MIB  # its place in a shared chunk

    def open(self, job):
        owner = self.random.choice(self.jobs)
        blocks = [block for block in owner.blocks if block.kind in SHARED]
        if owner is job or not blocks:
            return
        block = self.random.choice(blocks)
        address = job.driver("ipc-open", owner.driver.handle(block.address))
        entry = job.opened.setdefault(address, [block, 0])
        if entry[0] is block:
            entry[1] += 1
        else:
            check(entry[0].reused, "two blocks at %#x" % address)
            job.driver("ipc-close", address)

    def close(self, job):
        if job.opened:
            address = self.random.choice(sorted(job.opened))
            job.driver("ipc-close", address)
            job.opened[address][1] -= 1
            if not job.opened[address][1]:
                del job.opened[address]

    def fill(self, job):
        places = [(block.address, block) for block in job.blocks]
        places += [(address, entry[0]) for address, entry in job.opened.items()
                   if not entry[0].reused]
        if places:
            address, block = self.random.choice(places)
            block.value = self.random.randrange(256)
            job.driver("fill", address, block.size, block.value)

    def fork(self, job):
        plain = [block.address for block in job.blocks if block.kind != "virtual"]
        if plain:
            equal(job.driver("fork", plain[0]), 3, "what a child may not do")

    def exec(self, job):
        """As if it died, except that its pid stays."""
        job.driver.becomes(job.device)
        job.blocks, job.opened = [], {}
        self.wake(job)

    def wake(self, job):
        """Makes a call that wakes the control library."""
        job.driver("free", job.driver("alloc", 2 * MIB))
        job.kept = True
        self.session.ready(job.driver.pid)

    def kill(self, job):
        """Whoever has its memory open keeps it. Another process takes its place."""
        number = self.jobs.index(job)
        pid = job.driver.pid
        job.driver.end()
        wait_for("%d is gone" % pid, lambda: not self.session.process(pid))
        self.jobs[number] = Job(self.session, number)
        self.wake(self.jobs[number])

    def kept(self):
        return sum(KEPT for job in self.jobs if job.kept)

    def step(self):
        step = self.random.choices((self.alloc, self.free, self.open, self.close, self.fill,
                                    self.fork, self.kill, self.exec),
                                   (30, 20, 20, 15, 20, 2, 1, 1))[0]
        step(self.random.choice(self.jobs))

    def move(self, busy):
        """To the host and back; if busy, a process allocates meanwhile, at once or when all is back."""
        result = self.session.ask("offload", "--owner", "all")
        check(result["outcome"] in ("done", "nothing to do"), "offload:", result)
        # What its owner has freed, or left by dying, has nobody to keep it on the host.
        equal({left["reason"] for left in result["left"]} - ORPHANS, set(), "left")
        equal(self.session.used() - self.kept(), sum(left["bytes"] for left in result["left"]),
              "device memory in use")
        job = self.random.choice(self.jobs)
        if busy:
            job.driver.process.send("alloc 4096")
            job.kept = True
        check(self.session.ask("restore")["outcome"] in ("done", "nothing to do"), "restore")
        if busy:
            answer = job.driver.process.line().split()
            equal(answer[0], "ok", "alloc")
            job.driver("free", int(answer[1], 0))
        for job in self.jobs:
            job.holds()


@case(long=True)
def test_random_jobs():
    """Against a model: every byte of every block, in its owner and in all who have it open."""
    for seed in (1, 3, 12):
        with plain_session(strict=seed == 1) as session:
            session.start_agent()
            random_jobs(session, seed, busy=seed != 1)


def random_jobs(session, seed, busy):
    jobs = Jobs(session, seed)
    for job in jobs.jobs:
        jobs.alloc(job)
        jobs.wake(job)
    for _ in range(8):
        for _ in range(40):
            jobs.step()
        jobs.move(busy)
    for job in jobs.jobs:
        while job.opened:
            jobs.close(job)
    for job in jobs.jobs:
        while job.blocks:
            jobs.free(job)
        job.driver("synchronize", 0)
    equal(session.used(), jobs.kept(), "device memory in use")
    equal(session.ask("status")["events_lost"], 0, "events lost")


if __name__ == "__main__":
    sys.exit(main())
