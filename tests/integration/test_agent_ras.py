#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Communicators of processes that ran before the agent: what NCCL's RAS says of them is found in the
processes' memory and shown; all else is unknown. Real BPF programs, real processes, a stand-in
libnccl whose communicators have a hash as NCCL's have, a stand-in for RAS (ras_server.py).

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import json
import os
import socket
import sys
import time

from lien_test import SOFTNCCL, Driver, Session, case, check, equal, main, program, wait_for
from nccl_rank import Rank, unique_id

PORT = 28028
HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 40  # the agent asks again after 5 s at the earliest, on request


class Server:
    """What listens where NCCL's RAS would: in a namespace of its own, unless it is told where."""

    def __init__(self, session, *options, address="127.0.0.1", port=PORT, prefix=()):
        session.count += 1
        self.path = session.path("ras-%d.json" % session.count)
        self.port = port
        self.say("json")
        self.process = session.spawn([*prefix, sys.executable, os.path.join(HERE, "ras_server.py"),
                                      *options, address, port, self.path])
        ready = self.process.line()
        check(ready and ready.startswith("ready "), "no server: %s" % self.process.said())

    def say(self, mode, *comms, **more):
        with open(self.path + ".new", "w", encoding="ascii") as file:
            json.dump({"mode": mode, "comms": comms, **more}, file)
        os.rename(self.path + ".new", self.path)

    def inside(self):
        """What a command begins with that is to be in its network namespace."""
        return ["nsenter", "-t", self.process.pid, "-n"]

    def asked(self):
        return self.process.lines.qsize()


class Adopted(Rank):
    """A rank that runs before the agent does."""

    def __init__(self, session, prefix=(), device=0, **environment):
        Driver.__init__(self, session.spawn(
            [*prefix, program("prog_nccl"), SOFTNCCL], **environment))
        self("init", device)

    def hash(self, comm):
        return self("hash", comm)[0]


def rank_of(rank, number, device=0, host="127.0.0.1", pid=None):
    return {"rank": number, "host": host, "pid": pid or rank.pid, "device": device}


def group_of(ranks, comms, **more):
    """What RAS says of a communicator of these ranks."""
    return {"hash": ranks[0].hash(comms[0]), "size": len(ranks), **more,
            "ranks": [rank_of(rank, number, number) for number, rank in enumerate(ranks)]}


def comm_of(session, rank, comm):
    for entry in session.ask("comms")["communicators"]:
        if (entry["pid"], int(entry["address"], 16)) == (rank.pid, comm):
            return entry
    return None


def late_of(session, rank):
    found = [entry for entry in session.ask("comms")["late"] if entry["pid"] == rank.pid]
    equal(len(found), 1, "entries of process %d among those that were late" % rank.pid)
    return found[0]


def found(session, rank, comm):
    """Its entry, once RAS has named it."""
    def is_named():
        entry = comm_of(session, rank, comm)
        return entry if entry and entry["by"] else None
    return wait_for("communicator %#x of %d is named" % (comm, rank.pid), is_named, LIMIT)


def answered(session, rank, state="answered"):
    def is_so():
        entry = late_of(session, rank)
        return entry if entry["ras"] == state else None
    return wait_for("NCCL's RAS has %s for %d" % (state, rank.pid), is_so, LIMIT)


def searched(session, rank):
    """Waits until what is used now has been looked for: a question was asked, and done, after this.
    One that is under way may have begun before."""
    for _ in range(2):
        since = time.monotonic()

        def is_newer():
            age = late_of(session, rank)["age_ms"]
            return age is not None and age < (time.monotonic() - since) * 1000
        wait_for("another question about %d" % rank.pid, is_newer, LIMIT)


def members(entry, *names):
    return [entry[name] for name in names]


def pair(session, server, **environment):
    """Two ranks with two communicators, before there is an agent."""
    ranks = [Adopted(session, server.inside() if server else (), device, **environment)
             for device in (0, 1)]
    comms = [[rank.made("init-rank", 2, number, unique_id(magic))
              for number, rank in enumerate(ranks)] for magic in (0xaa, 0xbb)]
    return ranks, comms


@case()
def test_named_and_kept():
    with Session() as session:
        server = Server(session, "--unshare")
        ranks, (used, idle) = pair(session, server)
        server.say("json", group_of(ranks, used, secondary=(5, 6)), group_of(ranks, idle))
        session.start_agent()
        for rank, comm in zip(ranks, used):
            rank.call("all_reduce", comm, times=3)
        name = "%016x" % ranks[0].hash(used[0])
        for number, (rank, comm) in enumerate(zip(ranks, used)):
            entry = found(session, rank, comm)
            equal(members(entry, "group", "hash", "by", "rank", "nranks", "device", "complete",
                          "calls_total", "bytes", "inferred_bytes"),
                  [name, "%#x" % int(name, 16), "NCCL RAS", number, 2, number, False, 3, 0, 0],
                  "entry")
            late = answered(session, rank)
            equal(members(late, "version", "job", "named", "matched", "others"),
                  ["2.28.9", 2, 2, 1, False], "late")
            equal([members(one, "group", "rank", "nranks", "device") for one in late["unmatched"]],
                  [["%016x" % rank.hash(idle[number]), number, 2, number]], "unmatched")
        group, = [group for group in session.ask("comms")["groups"] if group["group"] == name]
        equal(members(group, "nranks", "here", "made_by", "id", "by", "behind"),
              [2, 2, None, None, "NCCL RAS", []], "group")
        ranks[0].call("all_reduce", used[0])
        group, = [group for group in session.ask("comms")["groups"] if group["group"] == name]
        equal(group["behind"], [], "behind, of which nothing can be said")
        out = session.lien("comms").out
        for words in ("group %s: 2 of 2 ranks on this node, named by NCCL's RAS" % name,
                      "named by NCCL's RAS and not used", "%016x" % ranks[0].hash(idle[0])):
            check(words in out, "no '%s' in %s" % (words, out))
        check("unknown communicator" not in out, out)
        equal([process["ranks"] for process in session.ask("ps")["processes"]
               if process["pid"] == ranks[1].pid],
              [[{"group": name, "rank": 1, "nranks": 2}]], "ranks in ps")
        # What was told stays: in a snapshot, and for the next agent.
        path = session.path("snapshot.lien")
        equal(session.lien("snapshot", path).code, 0, "snapshot")
        kept = json.loads(session.lien("comms", "--json", "--from", path).out)
        equal(sorted(members(entry, "group", "hash", "rank", "by")
                     for entry in kept["communicators"]),
              [[name, "%#x" % int(name, 16), number, "NCCL RAS"] for number in (0, 1)], "snapshot")
        session.stop_agent()
        session.start_agent("--no-ras")
        entry = comm_of(session, ranks[1], used[1])
        equal(members(entry, "group", "rank", "nranks", "device"), [name, 1, 2, 1], "after a restart")


@case()
def test_not_asked():
    with Session() as session:
        server = Server(session, "--unshare")
        ranks, (used, idle) = pair(session, server)
        server.say("json", group_of(ranks, used), group_of(ranks, idle))
        session.start_agent("--no-ras")
        ranks[0].call("all_reduce", used[0])
        entry = comm_of(session, ranks[0], used[0])
        equal(members(entry, "group", "hash", "rank", "by"), ["0" * 16, None, None, None], "entry")
        equal(members(late_of(session, ranks[0]), "ras", "named", "unmatched", "others"),
              ["not asked", None, [], True], "late")
        out = session.lien("comms", COLUMNS=100).out
        check("unknown communicator" in out, out)
        equal(server.asked(), 0, "connections")


@case(long=True)
def test_later_ones_are_counted_too():
    """A communicator that was seen being made keeps what was seen, and is not shown as unused."""
    with Session() as session:
        server = Server(session, "--unshare")
        ranks, (used, _) = pair(session, server)
        session.start_agent()
        later = [rank.made("init-rank", 2, number, unique_id(0xcc))
                 for number, rank in enumerate(ranks)]
        server.say("json", group_of(ranks, used), group_of(ranks, later))
        for rank, comm in zip(ranks, used):
            rank.call("all_reduce", comm)
        for rank, comm in zip(ranks, used):
            found(session, rank, comm)
        for number, (rank, comm) in enumerate(zip(ranks, later)):
            wait_for("its hash is known", lambda: comm_of(session, rank, comm)["hash"], LIMIT)
            equal(members(comm_of(session, rank, comm), "group", "hash", "by", "rank", "complete"),
                  ["%016x" % 0xcc, "%#x" % rank.hash(comm), None, number, True], "seen being made")
            equal(members(answered(session, rank), "named", "matched", "unmatched"), [2, 2, []],
                  "late")


@case(long=True)
def test_split_of_an_adopted_one():
    with Session() as session:
        server = Server(session, "--unshare")
        ranks, (used, _) = pair(session, server)
        server.say("json", group_of(ranks, used))
        session.start_agent()
        for rank, comm in zip(ranks, used):
            rank.call("all_reduce", comm)
        for rank, comm in zip(ranks, used):
            found(session, rank, comm)
        children = [rank.made("split", comm, 0, 0, 1) for rank, comm in zip(ranks, used)]
        for rank, child in zip(ranks, children):
            equal(members(comm_of(session, rank, child), "group", "rank"), ["0" * 16, None],
                  "how many splits there were before nobody knows")
        server.say("json", group_of(ranks, used), group_of(ranks, children))
        # The stand-in has it that each is alone in what it splits off: rank and size of its memory
        # are not what RAS says, and the hash alone decides.
        for number, (rank, child) in enumerate(zip(ranks, children)):
            equal(members(found(session, rank, child), "group", "rank", "nranks", "complete"),
                  ["%016x" % rank.hash(child), number, 2, True], "split")


@case(long=True)
def test_port_and_pids_of_a_namespace():
    """NCCL_RAS_ADDR, in the agent's own network namespace; pids are those of the job's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Session() as session:
        server = Server(session, port=port)
        ranks = [Adopted(session, ["unshare", "-p", "-f", "--kill-child"], device,
                         NCCL_RAS_ADDR="localhost:%d" % port) for device in (0, 1)]
        for rank in ranks:
            equal(rank.inner_pid, 1, "pid inside")
            with open("/proc/%d/task/%d/children" % (rank.pid, rank.pid), encoding="ascii") as file:
                rank.pid = int(file.read())
        comms = [rank.made("init-rank", 2, number, unique_id(5))
                 for number, rank in enumerate(ranks)]
        other = ranks[0].made("init-rank", 2, 0, unique_id(6))
        # Both have pid 1 at one address: only the memory tells which is which.
        server.say("json", {"hash": ranks[0].hash(comms[0]), "size": 2,
                            "ranks": [rank_of(rank, number, number, pid=1)
                                      for number, rank in enumerate(ranks)]},
                   {"hash": ranks[0].hash(other), "size": 2,
                    "ranks": [rank_of(ranks[0], 0, 0, pid=1)]})
        session.start_agent()
        for rank, comm in zip(ranks, comms):
            rank.call("all_reduce", comm)
        for number, (rank, comm) in enumerate(zip(ranks, comms)):
            equal(found(session, rank, comm)["rank"], number, "rank")
            late = answered(session, rank)
            equal(members(late, "named", "matched", "unmatched", "others"), [1, 1, [], True],
                  "late, where a pid may mean two processes")


def says_all(ranks, comms):
    return "json", group_of(ranks, comms)


def says_in(mode):
    return lambda ranks, comms: (mode, group_of(ranks, comms))


def says_elsewhere(ranks, comms):
    group = group_of(ranks, comms)
    return "json", {**group, "ranks": [{**rank, "host": "10.99.99.99"} for rank in group["ranks"]]}


def says_another_hash(ranks, comms):
    return "json", {**group_of(ranks, comms), "hash": 0x1234}


def says_it_twice(ranks, comms):
    """Two communicators have one hash, so it is not known which is meant."""
    group = group_of(ranks, comms)
    return "json", group, {**group, "secondary": (8, 9)}


def damage(ranks, comms):
    for rank, comm in zip(ranks, comms):
        rank("damage", comm)


class Refused:
    """A job whose RAS says what must not be believed, or which cannot be asked. problem: why there is no
    answer; late: what is said of its answer otherwise. asked: whether there is a connection."""

    def __init__(self, session, what, says, prepare=None, options=(), port=PORT, problem=None,
                 late=None, asked=True, environment=None):
        self.session, self.what, self.problem, self.late, self.asked = (
            session, what, problem, late or {}, asked)
        self.server = Server(session, "--unshare", *options, port=port)
        self.ranks, (self.used, _) = pair(session, self.server, **(environment or {}))
        if prepare:
            prepare(self.ranks, self.used)
        mode, *comms = says(self.ranks, self.used)
        self.server.say(mode, *comms)

    def use(self):
        for rank, comm in zip(self.ranks, self.used):
            rank.call("all_reduce", comm)

    def answered(self):
        """What is known once all of its ranks have been asked about; None: not yet."""
        found, state = self.session.ask("comms"), "silent" if self.problem else "answered"
        late = {entry["pid"]: entry for entry in found["late"]}
        return found if all(late[rank.pid]["ras"] == state for rank in self.ranks) else None

    def verify(self):
        found = wait_for("%s: asked about" % self.what, self.answered, LIMIT)
        late = {entry["pid"]: entry for entry in found["late"]}
        comms = {(entry["pid"], int(entry["address"], 16)): entry
                 for entry in found["communicators"]}
        for rank, comm in zip(self.ranks, self.used):
            equal(members(comms[rank.pid, comm], "group", "rank", "by"), ["0" * 16, None, None],
                  "%s: entry" % self.what)
            said = late[rank.pid]
            check(not self.problem or self.problem in said["problem"], self.what, said)
            equal({name: said[name] for name in self.late}, self.late, "%s: late" % self.what)
        equal(bool(self.server.asked()), self.asked, "%s: the server was asked" % self.what)


REFUSED = {
    "ranks of other nodes": {"says": says_elsewhere, "problem": "does not name it"},
    "another hash": {"says": says_another_hash, "late": {"named": 1, "matched": 0}},
    "a structure without an end": {
        "says": says_all, "prepare": damage, "late": {"matched": 0}},
    "one hash of two": {"says": says_it_twice, "late": {"named": 2, "matched": 0}},
    "garbage": {"says": says_in("garbage"), "problem": "speaks something else"},
    "deep JSON": {"says": says_in("deep"), "problem": "does not understand"},
    "NCCL before 2.28.7": {"says": says_in("text"), "problem": "from NCCL 2.28.7 on"},
    "a listener of another user": {
        "says": says_all, "options": ("--user", "12345"), "problem": "another user's",
        "asked": False},
    "no listener": {
        "says": says_all, "port": PORT + 1, "problem": "nobody listens on port 28028",
        "asked": False},
    "RAS that is turned off": {
        "says": says_all, "environment": {"NCCL_RAS_ENABLE": "0"}, "problem": "NCCL_RAS_ENABLE=0",
        "asked": False},
}


@case(long=True)
def test_what_is_not_believed():
    """Nothing is named by any of these. One agent has all of the jobs."""
    with Session() as session:
        jobs = [Refused(session, what, **how) for what, how in REFUSED.items()]
        session.start_agent()
        for job in jobs:
            job.use()
        searched(session, next(job.ranks[0] for job in jobs if not job.problem))
        for job in jobs:
            job.verify()
        out = session.lien("comms", COLUMNS=100).out
        check("unknown communicator" in out, out)
        check(all(len(line) <= 100 for line in out.splitlines()), out)
        equal(session.lien("status").code, 0, "status")


@case(long=True)
def test_silent_server():
    """Not with the others: a question to it takes 8 s."""
    with Session() as session:
        job = Refused(session, "silence", says_in("silent"), problem="does not answer")
        session.start_agent()
        job.use()
        job.verify()
        session.kill_agent()  # which would wait for the end of a question


@case(long=True)
def test_answer_without_an_end():
    """What came before the limit counts, but is not taken for everything."""
    with Session() as session:
        server = Server(session, "--unshare")
        ranks, (used, idle) = pair(session, server)
        server.say("cut", group_of(ranks, used), group_of(ranks, idle), group_of(ranks, idle))
        session.start_agent()
        for rank, comm in zip(ranks, used):
            rank.call("all_reduce", comm)
        equal(found(session, ranks[0], used[0])["rank"], 0, "rank")
        equal(answered(session, ranks[0])["others"], True, "others")
        server.say("endless", group_of(ranks, used))
        before = server.asked()
        wait_for("it is asked", lambda: session.ask("comms") and server.asked() > before, LIMIT)
        equal(session.lien("status").code, 0, "the agent answers meanwhile")
        equal(found(session, ranks[1], used[1])["rank"], 1, "what was known")


@case(long=True)
def test_two_jobs_share_the_port():
    """The kernel chooses which of them is asked."""
    with Session() as session:
        first = Server(session, "--unshare")
        second = Server(session, prefix=first.inside())
        jobs = []
        for magic, server in ((1, first), (2, second)):
            rank = Adopted(session, first.inside())
            comm = rank.made("init-rank", 1, 0, unique_id(magic))
            server.say("json", group_of([rank], [comm]))
            jobs.append((rank, comm))
        session.start_agent()
        for rank, comm in jobs:
            rank.call("all_reduce", comm)
        for rank, comm in jobs:
            equal(found(session, rank, comm)["group"], "%016x" % rank.hash(comm), "group")


@case(long=True)
def test_a_user_sees_nothing_of_others():
    with Session() as session:
        server = Server(session, "--unshare")
        ranks, (used, _) = pair(session, server)
        server.say("json", group_of(ranks, used))
        session.start_agent()
        answered(session, ranks[0])
        program_text = ("import os, socket; os.setresuid(12345, 12345, 12345); "
                        "s = socket.socket(socket.AF_UNIX); s.connect(%r); "
                        "s.sendall(b'{\"op\": \"comms\"}\\n'); print(s.makefile().readline())"
                        % session.socket)
        os.chmod(session.folder, 0o755)
        other = session.spawn([sys.executable, "-c", program_text])
        equal(json.loads(other.line())["result"]["late"], [], "of another user")


if __name__ == "__main__":
    sys.exit(main())
