#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Random jobs, and random offloads, restores, kills, delays and failures, for CHAOS_STEPS (200) steps.

    make chaos CHAOS_STEPS=2000

CHAOS_SEED repeats what was chosen, though not when the kernel ran whom. CHAOS_LIVE=1: jobs that
never rest are among them. A hostile user floods the agent meanwhile. The last line says in JSON what
was, with the longest turn of the agent's loop; the exit status is 1 where bytes were lost, or something
hung or failed. A third user, who does no harm, asks the agent all the time: how soon it answered is said, too.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import chaos_run
import faults
from chaos_jobs import Holder, Several, Trainer, any_job
from lien_test import LIEN, SOFTCUDA, Failure, Late, alive, at_a_moment, brief, program, wait_for
from train_job import SYNC
from users import ALICE, BOB, Shared

LIMIT_S = 30.0  # for whatever is asked: more is a hang
IN_OFFLOAD = ["cuMemUnmap", "cuMemUnmap", "cuMemUnmap", "cuMemRelease", "cuMemcpyDtoHAsync_v2", "cuMemGetAccess", ""]
IN_RESTORE = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2",
              "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", ""]
BYSTANDER = """
import json, os, socket, sys, time
os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
while True:
    began = time.monotonic()
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(30)
            s.connect(sys.argv[1])
            s.sendall(b'{"op": "ps"}\\n')
            if s.makefile().readline():
                print(began, time.monotonic(), flush=True)
    except OSError:
        pass  # there is no agent
    time.sleep(0.05)
"""
AWAY_S = [0, 0.5, 1, 3, 4.5, 5.5, 8, 15]  # no agent; the control library waits 5 s for one


class Chaos(chaos_run.Run):
    def __init__(self, session, seed, length, live):
        super().__init__(seed, length, transactions=0, in_parts=0, rollbacks=0, refusals=0, kills=0, faults=0,
                         jobs=0, agents=0, longest_turn_ms=0, longest_turn_cpu_ms=0, longest_turn_in="",
                         longest_turn_ready_ms=0, answers=0, answer_ms_median=0, answer_ms_99=0)
        self.session, self.live = session, live
        self.jobs = []
        self.hostile = self.bystander = None
        self.without_agent = []  # (since, until)

    # What is asked of the agent

    def ask(self, op, **more):
        """Its reply; None: it hung up."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT_S)
            try:
                connection.connect(self.session.socket)
                connection.sendall((json.dumps({"op": op, **more}) + "\n").encode())
                for line in connection.makefile():
                    reply = json.loads(line)
                    if "ok" in reply:
                        return self.note(op, reply)
            except socket.timeout:
                raise Late("no answer to %s within %g s" % (op, LIMIT_S)) from None
            except OSError:
                pass
        return None

    def note(self, op, reply):
        """Counts an answer to an offload or a restore."""
        if op not in ("offload", "restore"):
            return reply
        if reply["ok"]:
            self.tally.add("transactions", reply["result"]["outcome"] == "done")
            self.tally.add("in_parts", (reply["result"].get("lazy") or {"parts": 0})["parts"] > 1)
            return reply
        self.steps.append("  " + brief(reply["error"], 400))
        if "everything was put back" in reply["error"]:
            self.tally.add("rollbacks")
        if "nothing was moved" in reply["error"] or "gone for good" in reply["error"] or \
                "; " not in reply["error"]:
            self.tally.add("refusals")
        else:
            self.tally.add("transactions")
        return reply

    def wish(self, job):
        """The arguments of an offload."""
        nccl = not job.rests or (isinstance(job, (Several, Trainer)) and self.rng.random() < 0.5)
        more = {"pids": job.living, "owner": "nccl" if nccl else "all"}
        if self.rng.random() < 0.2:
            more["verify"] = True
        if self.rng.random() < 0.1:
            more["pids"] = [self.rng.choice(more["pids"])]
            more["with_closure"] = True
        groups = self.groups(job) if self.rng.random() < 0.3 else []
        if groups:
            more["comms"] = self.rng.sample(groups, self.rng.randint(1, len(groups)))
        return more

    def groups(self, job):
        """Of its communicators."""
        reply = self.ask("comms")
        found = reply["result"]["communicators"] if reply and reply["ok"] else []
        return sorted({comm["group"] for comm in found if comm["pid"] in job.living} - {"0" * 16})

    def way_back(self, job):
        """The arguments of a restore: of all, or for one communicator; or for one after the other."""
        groups = self.groups(job) if self.rng.random() < 0.4 else []
        more = {"lazy": True} if self.rng.random() < (0.7 if isinstance(job, Several) else 0.3) else {}
        return {**more, **({"comms": [self.rng.choice(groups)]} if groups else {"pids": job.living})}

    def spawn(self, op, job):
        """A client of its own, that can be killed."""
        words = [word for pid in job.living for word in ("--pid", str(pid))]
        if op == "offload" and job.rests:
            words += ["--owner", "all"]
        return subprocess.Popen([LIEN, op, "--json", *words], env=self.session.env(),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def end_client(self, client, op):
        try:
            out, _ = client.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            client.kill()
            raise Late("`lien %s` took more than %g s" % (op, LIMIT_S)) from None
        if client.returncode == 0:
            self.tally.add("transactions", '"done"' in out)
        elif client.returncode > 0:
            error = [line for line in out.splitlines() if line.startswith("lien ")]
            self.note(op, {"ok": False, "error": error[-1] if error else out})

    # What is so at rest

    def away(self, job):
        """What of a job's living processes is not as it was."""
        reply = self.ask("ps")
        if reply is None or not reply["ok"]:
            return "no agent"
        found = {p["pid"]: p for p in reply["result"]["processes"]}
        return [(pid, found[pid]["state"], found[pid]["control"]) if pid in found else (pid, "unknown")
                for pid in job.living
                if pid not in found or found[pid]["state"] != "running" or
                found[pid]["offloaded_bytes"] or found[pid]["control"] != "ready"]

    def settle(self, job, dead=()):
        """Everything comes back, whatever was done to it; then it is looked at."""
        for fault in job.faults:
            fault.disarm()
        end = time.monotonic() + LIMIT_S
        while True:
            job.poke()
            reply = self.ask("restore", pids=job.living)
            left = self.away(job)
            if not left and reply and reply["ok"]:
                break
            if time.monotonic() > end:
                raise Late("not put back within %g s: %s" % (LIMIT_S, left))
            time.sleep(0.02)
        self.tally.add("bytes_verified", job.look(dead))

    # Steps

    def do_rounds(self, job):
        for _ in range(self.rng.randint(1, 4)):
            self.ask("offload", **self.wish(job))
            if self.rng.random() < 0.3:
                at_a_moment(self.rng, 0.05)
            self.ask("restore", **self.way_back(job))
        self.settle(job)

    def do_run(self, job):
        job.run()
        self.settle(job)

    def do_fail(self, job):
        """A driver call fails, in one process, once or from then on."""
        for _ in range(self.rng.randint(2, 5)):
            op = self.rng.choice(["offload", "offload", "offload", "restore"])
            if op == "restore":
                self.ask("offload", **self.wish(job))
            self.rng.choice(job.faults).arm(
                faults.FAIL, nth=self.rng.choice([1, 1, 1, 2, 3, 5]),
                times=self.rng.choice([0, 0, 0, 1, 3]),
                function=self.rng.choice(IN_OFFLOAD if op == "offload" else IN_RESTORE),
                result=self.rng.choice([2, 999]))
            self.ask(op, **(self.wish(job) if op == "offload" else self.way_back(job)))
            self.tally.add("faults", sum(fault.disarm() > 0 for fault in job.faults))
            self.settle(job)

    def do_delay(self, job):
        """Driver calls are slow, and two clients ask at once."""
        for fault in job.faults:
            if self.rng.random() < 0.5:
                fault.arm(faults.DELAY, nth=self.rng.randint(1, 9), times=self.rng.randint(1, 4),
                          delay_ms=self.rng.randint(1, 60))
        ops = [self.rng.choice(["offload", "restore"]) for _ in range(self.rng.randint(2, 3))]
        clients = [(self.spawn(op, job), op) for op in ops]
        for client, op in clients:
            self.end_client(client, op)
        self.tally.add("faults", sum(fault.disarm() > 0 for fault in job.faults))
        self.settle(job)

    def do_kill_client(self, job):
        for _ in range(self.rng.randint(1, 3)):
            op = self.rng.choice(["offload", "restore"])
            if op == "restore":
                self.ask("offload", **self.wish(job))
            client = self.spawn(op, job)
            at_a_moment(self.rng, 0.06)
            client.kill()
            self.tally.add("kills")
            self.end_client(client, op)
            time.sleep(0.03)  # for an agent that has not read yet what it was asked
        self.settle(job)

    def do_stop(self, job):
        """A process does not run for a while."""
        pid = self.rng.choice(job.living)
        os.kill(pid, signal.SIGSTOP)
        again = threading.Timer(self.rng.random() * 0.5, os.kill, (pid, signal.SIGCONT))
        again.start()
        try:
            self.ask("offload", timeout_ms=self.rng.choice([50, 300, 10000]), **self.wish(job))
        finally:
            again.join()
        self.settle(job)

    def do_kill_rank(self, job):
        """In the middle of something, or when nothing is going on."""
        number = self.rng.randrange(len(job.pids))
        how = self.rng.choice(["at rest", "away", "fault", "while"])
        op = self.rng.choice(["offload", "restore"])
        if how == "away" or op == "restore":
            self.ask("offload", **self.wish(job))
        if how == "fault":
            job.faults[number].arm(faults.KILL, nth=self.rng.randint(1, 30))
            self.ask(op, **(self.wish(job) if op == "offload" else {"pids": job.living}))
        if how == "while":
            client = self.spawn(op, job)
            at_a_moment(self.rng, 0.06)
        pid = job.pids[number]
        job.kill(number)
        self.tally.add("kills")
        if how == "while":
            self.end_client(client, op)
        if not job.others_end(10):
            self.settle(job, [pid])
        self.renew(job)

    @contextlib.contextmanager
    def no_agent(self):
        since = time.monotonic()
        yield
        self.without_agent.append((since, time.monotonic()))

    def do_kill_agent(self, job):
        """With or without an order under way; the next one finds what there is."""
        op = self.rng.choice(["offload", "restore", None])
        client = None
        if op == "restore":
            self.ask("offload", **self.wish(job))
        if op:
            client = self.spawn(op, job)
            at_a_moment(self.rng, 0.06)
        with self.no_agent():
            self.session.kill_agent()
            self.tally.add("kills")
            if client:
                self.end_client(client, op)
            self.start_agent()
        for other in self.jobs:
            self.settle(other)

    def do_agent_away(self, job):
        """In a phase: stopped for a while, or killed and another one comes only then."""
        op = self.rng.choice(["offload", "restore"])
        if op == "restore":
            self.ask("offload", **self.wish(job))
        fault = self.rng.choice(job.faults)
        fault.arm(faults.DELAY, nth=self.rng.randint(1, 4), delay_ms=300,
                  function=self.rng.choice(IN_OFFLOAD if op == "offload" else IN_RESTORE))
        client = self.spawn(op, job)
        end = time.monotonic() + 1
        while client.poll() is None and not fault.record.hit and time.monotonic() < end:
            time.sleep(0.001)
        away, killed = self.rng.choice(AWAY_S), self.rng.random() < 0.5
        self.steps.append("  in %s: %s for %g s" % (op, "killed" if killed else "stopped", away))
        with self.no_agent():
            if killed:
                self.tally.add("kills")
                self.session.kill_agent()
                time.sleep(away)
                self.start_agent()
            else:
                self.session.agent.signal(signal.SIGSTOP)
                time.sleep(away)
                self.session.agent.signal(signal.SIGCONT)
        self.end_client(client, op)
        for other in self.jobs:
            self.settle(other)

    def do_nest(self, job):
        """What is left is moved while something is away, and that may fail."""
        first = {"pids": [self.rng.choice(job.living)], "owner": "all"} if job.leaves else \
            {"pids": job.living, "owner": "nccl"}
        self.ask("offload", **first)
        number = self.rng.randrange(len(job.faults))
        how = self.rng.choice(["well", "fails", "dies"])
        if how != "well":
            job.faults[number].arm(faults.FAIL if how == "fails" else faults.KILL,
                                   nth=self.rng.randint(1, 20), function=self.rng.choice(IN_OFFLOAD))
        pid = job.pids[number]
        self.ask("offload", **self.wish(job))
        hits = [fault.disarm() > 0 for fault in job.faults]
        self.tally.add("faults", sum(hits))
        if how != "dies" or not hits[number]:
            return self.settle(job)
        job.kill(number)  # it is ending
        self.tally.add("kills")
        if not job.others_end(10):
            self.settle(job, [pid])
        return self.renew(job)

    def do_leave(self, job):
        """A process ends, becomes another program or has a child while its memory is away."""
        if not job.leaves:
            return self.do_rounds(job)
        number, how = self.rng.randrange(len(job.pids)), self.rng.choice(["exit", "exec", "fork"])
        self.ask("offload", **self.wish(job))
        if how == "exit" and self.rng.random() < 0.5:
            self.ask("restore", pids=job.living)
        pid = job.pids[number]
        job.leave(number, how)
        if how == "fork":
            return self.settle(job)
        self.settle(job, [pid])
        return self.renew(job)

    def do_keep(self, job):
        """In the midst of an offload a descriptor is exported and kept, or a network card gets memory."""
        if not isinstance(job, Holder):
            return self.do_rounds(job)
        client = self.spawn("offload", job)
        at_a_moment(self.rng, 0.06)
        kept = job.keep()
        self.end_client(client, "offload")
        end = time.monotonic() + LIMIT_S
        while not kept.answered():
            self.ask("restore", pids=job.living)
            if time.monotonic() > end:
                raise Late("%s is held for ever" % kept.command)
        self.settle(job)
        self.ask("offload", **self.wish(job))
        self.settle(job)
        kept.undo()
        return self.do_rounds(job)

    def do_stay_stopped(self, job):
        """A process is stopped while all are asked back: the others' memory comes."""
        self.ask("offload", **self.wish(job))
        pid = self.rng.choice(job.living)
        os.kill(pid, signal.SIGSTOP)
        try:
            self.ask("restore")
            for other in self.jobs:
                if other is not job:
                    self.settle(other)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.settle(job)

    STEPS = [(do_rounds, 6), (do_run, 3), (do_fail, 6), (do_delay, 2), (do_kill_client, 3),
             (do_stop, 1), (do_kill_rank, 2), (do_kill_agent, 1), (do_agent_away, 1), (do_nest, 3),
             (do_leave, 2), (do_keep, 2), (do_stay_stopped, 1)]

    # The whole

    def start_agent(self):
        self.session.start_agent("--library", SYNC)
        self.tally.add("agents")

    def add_job(self, lively=False):
        job = any_job(self.session, self.rng, lively)
        self.tally.add("jobs")
        self.jobs.append(job)
        self.steps.append("%s of %s" % (type(job).__name__, job.pids))
        wait_for("all take orders", lambda: job.poke() or not self.away(job), LIMIT_S, 0.05)

    def note_turns(self):
        reply = self.ask("status")
        if reply and reply["ok"]:
            loop = reply["result"]["loop"]
            self.tally["longest_turn_ready_ms"] = round(max(
                self.tally["longest_turn_ready_ms"], loop["longest_turn_ready_ms"]), 1)
            if loop["longest_turn_ms"] > self.tally["longest_turn_ms"]:
                self.tally["longest_turn_ms"] = round(loop["longest_turn_ms"], 1)
                self.tally["longest_turn_cpu_ms"] = round(loop["longest_turn_cpu_ms"], 1)
                self.tally["longest_turn_in"] = loop["longest_turn_in"]

    def flood(self):
        folder = self.session.path("hostile")
        os.mkdir(folder)
        os.chown(folder, ALICE, ALICE)
        hostile = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos_hostile.py")
        self.hostile = self.session.spawn_as(ALICE, [
            "/usr/bin/python3", hostile, self.tally["seed"], folder, LIEN, program("prog_driver"),
            os.path.join(SOFTCUDA, "libcuda.so.1")], env=self.session.env())
        self.bystander = subprocess.Popen(
            ["/usr/bin/python3", "-c", BYSTANDER, self.session.socket, str(BOB)], stdout=subprocess.PIPE, text=True)

    def note_answers(self):
        self.bystander.kill()
        asked = [tuple(map(float, line.split())) for line in self.bystander.communicate()[0].splitlines()]
        took = sorted(1e3 * (end - began) for began, end in asked if not any(
            began < until and end > since for since, until in self.without_agent))
        self.tally.update(answers=len(took), answer_ms_median=round(took[len(took) // 2], 1),
                          answer_ms_99=round(took[len(took) * 99 // 100], 1))

    def renew(self, job):
        self.jobs.remove(job)
        job.end()
        self.add_job(not job.rests)

    def step(self):
        functions, weights = zip(*self.STEPS)
        function = self.rng.choices(functions, weights)[0]
        job = self.rng.choice(self.jobs)
        self.say(function.__name__, job.pids)
        function(self, job)
        self.note_turns()
        if not alive(self.hostile.pid):
            raise Failure("the hostile user's process has ended: %s" % self.hostile.said())

    def finish(self):
        self.hostile.end()
        for job in self.jobs:
            self.settle(job)
            job.stop()
            job.end()
        wait_for("device memory is free", lambda: not self.session.used())

    def run(self):
        self.began = time.monotonic()
        self.start_agent()
        self.add_job()
        self.add_job()
        if self.live:
            self.add_job(True)
        self.flood()
        for _ in range(self.length):
            self.step()
        self.tally["seconds"] = round(time.monotonic() - self.began, 1)
        self.note_answers()
        self.finish()

    def said(self):
        for job in self.jobs:
            yield "job %s, living %s: %s" % (job.pids, job.living, job.said())
        with contextlib.suppress(Failure, AttributeError):
            yield "agent: %s" % brief(self.session.agent.said()[-1500:], 1500)


@contextlib.contextmanager
def begin(seed, length):
    with Shared(devices=4, memory="1G") as session:
        faults.folder(session)
        yield Chaos(session, seed, length, os.environ.get("CHAOS_LIVE"))


if __name__ == "__main__":
    sys.exit(chaos_run.main(begin, 200))
