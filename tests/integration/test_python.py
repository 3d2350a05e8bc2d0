#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The Python package, tools/python, with a real agent: in processes on the software driver that move their own
memory and each other's. See lien_test.py for what it needs."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys

import faults
from faults import BY_APPLICATION, DELAY, Faults
from lien_test import (
    LIEN, MIB, Session, brief, case, check, equal, main, wait_for)
from nccl_rank import Rank, unique_id
from python_program import PACKAGE, SIZE, Job, jobs_of
from users import ALICE, Shared

sys.path.append(PACKAGE)
import lien  # noqa: E402


def busy_session(**more):
    """While the file is there, no device comes to rest."""
    session = Session(**more)
    session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = session.path("busy")
    return session


def keep_busy(session):
    with open(session.path("busy"), "w"):
        pass


def let_go(session):
    os.unlink(session.path("busy"))


def under_way(session, clients=1):
    """The transaction, once that many clients wait for its end and it waits for the job."""
    def found():
        transaction = session.ask("status")["transaction"]
        return transaction and transaction["phase"] == "drain" and transaction["clients"] == clients and transaction
    return wait_for("a transaction drains, and %d clients wait for it" % clients, found)


# The package

@case(long=True)
def test_pip_installs_it_without_a_network():
    with Session() as session:
        target = session.path("site")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index",
                        "--disable-pip-version-check", "--target", target, PACKAGE],
                       check=True, timeout=100, env=session.env(PIP_CONFIG_FILE=os.devnull, PIP_ROOT_USER_ACTION="ignore"))
        check(os.path.exists(os.path.join(target, "lien", "py.typed")), os.listdir(target))
        said = subprocess.run(
            [sys.executable, "-c", "import lien, lien.aio, importlib.metadata\n"
             "print(lien.__file__, lien.__version__, importlib.metadata.version('lien'))"],
            env=session.env(PYTHONPATH=target), cwd="/", capture_output=True, text=True, timeout=20, check=True)
        version = session.lien("--version").out.split()[1]
        equal(said.stdout.split(), [os.path.join(target, "lien", "__init__.py"), version, version], "installed")


@case()
def test_the_table_of_events_is_up_to_date():
    with open(os.path.join(PACKAGE, "lien", "_layout.py"), encoding="utf-8") as file:
        kept = file.read()
    made = subprocess.run([os.path.join(os.environ["TEST_BIN"], "event_layout")], capture_output=True, text=True,
                          timeout=20, check=True).stdout
    check(kept == made, "run `make python-layout`")


@case()
def test_examples():
    """The examples of all docstrings, in a process that moves its own memory."""
    with Session() as session:
        session.start_agent()
        job = Job(session, "--doctest", "lien", "lien.aio", "lien._errors", "lien._tag")
        session.ready(job.pid)
        said = job.process.ask("go", 50)
        lines = []
        while not re.fullmatch(r"\d+ \d+", said or ""):
            check(said is not None, "it ended: %s" % job.process.said())
            lines.append(said)
            said = job.process.line(50)
        failed, tried = map(int, said.split())
        check(not failed, "\n".join(lines))
        check(tried >= 30, "only %d examples" % tried)


# A process and its own memory

@case()
def test_a_process_moves_its_own_memory():
    """The thread that asks is at rest: it is in no call."""
    with Session() as session:
        session.start_agent()
        [job] = jobs_of(session, 1)
        used = session.used()
        result = job("vars(lien.offload('all', [lien.SELF], timeout=5))['raw']")
        equal((result["outcome"], result["bytes"], [p["pid"] for p in result["processes"]]),
              ("done", SIZE, [job.pid]), "offload")
        equal(session.used(), used - SIZE, "bytes in use")
        equal(job("lien.offload('all', [lien.SELF]).bytes"), SIZE, "the same once more")
        equal(job("lien.restore([lien.SELF]).bytes"), SIZE, "restore")
        check(job("holds(address, size, 0x5a)"), "other bytes than before")
        equal(job("lien.holders(lien.SELF, address).pid"), job.pid, "the owner")
        equal(job("[row.bytes for row in lien.memory(pid=lien.SELF)]"), [SIZE], "its memory")
        # From a thread other than that which has used CUDA, and with another owner of the interpreter's lock.
        equal(job("__import__('concurrent.futures').futures.ThreadPoolExecutor().submit("
                  "lien.offload, 'all').result().bytes"), SIZE, "in a thread")
        equal(job("lien.restore().bytes"), SIZE, "restore")
        check(job("holds(address, size, 0x5a)"), "other bytes than before")


@case(long=True)
def test_a_thread_of_the_process_waits_for_the_memory():
    """It waits in the driver, and the thread that offloaded can restore."""
    with Session() as session:
        session.start_agent()
        [job] = jobs_of(session, 1)
        equal(job("lien.offload('all').bytes"), SIZE, "offload")
        job("globals().update(pool=__import__('concurrent.futures').futures.ThreadPoolExecutor()) or 1")
        job("globals().update(filling=pool.submit(lambda: init(0) or fill(address, size, 0x33))) or 1")
        wait_for("the thread is held", lambda: [
            held["pid"] for held in session.ask("status")["held"]] == [job.pid])
        equal(job("filling.done()"), False, "before the restore")
        equal(job("lien.restore().bytes"), SIZE, "restore")
        equal(job("filling.result(10)"), None, "after it")
        check(job("holds(address, size, 0x33)"), "what it has written")


@case()
def test_dropped_memory_is_not_saved():
    with Session() as session:
        session.start_agent()
        [job] = jobs_of(session, 1)
        cache = job("tagged('cache', tensor, %d)" % SIZE)
        job("fill(%d, %d, 7)" % (cache, SIZE))
        result = job("vars(lien.offload('nccl', drop='tag:cache'))['raw']")
        equal((result["bytes"], result["discarded_bytes"]), (0, SIZE), "offload")
        job("lien.restore().bytes")
        check(job("holds(%d, %d, 0)" % (cache, SIZE)), "it was saved")


# Every rank at once

@case()
def test_every_rank_asks_at_once():
    with busy_session(memory="2G", fresh=True) as session:
        session.start_agent()
        ranks = jobs_of(session, 4)
        used = session.used()
        keep_busy(session)
        for rank in ranks:
            rank.begin("vars(lien.offload('all', timeout=60))['raw']")
        under_way(session, 4)
        let_go(session)
        results = [rank.end() for rank in ranks]
        equal((results[0]["outcome"], results[0]["bytes"]), ("done", 4 * SIZE), "offload")
        equal(results, [results[0]] * 4, "results of the ranks")
        equal(session.used(), used - 4 * SIZE, "bytes in use")
        # One that comes later, and has another limit: nothing has been moved since.
        equal(ranks[1]("vars(lien.offload('all', timeout=3))['raw']"), results[0], "of one that comes later")
        equal(session.ask("offload", "--owner", "all")["outcome"], "nothing to do", "of one that asks alone")
        equal(ranks[2]("lien.offload('all', together=False).outcome"), "nothing to do", "of one that asks alone")
        backs = []
        for rank in ranks:
            rank.begin("vars(lien.restore())['raw']")
        backs = [rank.end() for rank in ranks]
        equal((backs[0]["outcome"], backs[0]["bytes"]), ("done", 4 * SIZE), "restore")
        equal(backs, [backs[0]] * 4, "results of the ranks")
        equal([r["transaction"] for r in (results[0], backs[0])], [1, 2], "numbers")
        equal([rank("holds(address, size, 0x5a)") for rank in ranks], [True] * 4, "bytes")
        # After a restore, an equal offload is a new one.
        equal(ranks[3]("lien.offload('all').transaction"), 3, "number")
        equal(ranks[3]("lien.restore().transaction"), 4, "number")


@case(long=True)
def test_ranks_that_are_a_turn_apart():
    """With a token, a late rank does not begin again what has been done, nor undo what came after it."""
    with Session(fresh=True) as session:
        session.start_agent()
        first, late = jobs_of(session, 2)
        equal(first("lien.restore(together='turn 0').outcome"), "nothing to do", "outcome")
        for turn in (1, 2):
            out = first("lien.offload('all', together='turn %d').transaction" % turn)
            equal(session.process(late.pid)["state"], "offloaded", "state")
            equal(first("lien.restore(together='turn %d').transaction" % turn), out + 1, "number")
        first("lien.offload('all', together='turn 3').transaction")
        equal(late("lien.offload('all', together='turn 1').transaction"), 1, "of the late one")
        equal(late("lien.restore(together='turn 1').transaction"), 2, "of the late one")
        equal(session.process(first.pid)["state"], "offloaded", "after the late one's restore of turn 1")
        equal(late("lien.offload('all', together='turn 3').transaction"), 5, "the present turn")
        refusal = late("caught(lien.offload, 'nccl', together='turn 3')")
        equal(refusal["code"], "invalid", refusal)
        # There was nothing to do, which is remembered as well.
        equal(late("lien.restore(together='turn 0').outcome"), "nothing to do", "outcome")
        equal(session.process(first.pid)["state"], "offloaded", "state")


@case()
def test_a_text_shares_with_no_other():
    with Session(fresh=True) as session:
        session.start_agent()
        [job] = jobs_of(session, 1)
        equal(job("lien.offload('all', together='one').transaction"), 1, "number")
        equal(job("lien.offload('all', together='two').outcome"), "nothing to do", "with another text")
        equal(job("lien.offload('all').transaction"), 1, "without a text")


@case()
def test_the_result_of_a_job_that_has_ended():
    """The next job, which may name its turns alike, does not get it. Nothing has been moved since, but that is not why
    the next one has nothing to restore."""
    with Session() as session:
        session.start_agent()
        [first] = jobs_of(session, 1)
        equal(first("lien.restore(together='before').outcome"), "nothing to do", "restore")
        number = first("lien.offload('all', together='turn').transaction")
        equal(first("lien.restore(together='turn').bytes"), SIZE, "restore")
        equal(first("lien.offload('all', together='turn').transaction"), number, "offload, again")
        equal(first("lien.restore().bytes"), SIZE, "restore, again")
        os.kill(first.pid, signal.SIGKILL)
        wait_for("it has ended", lambda: not session.ask("ps")["processes"])
        [second] = jobs_of(session, 1)
        equal(second("lien.restore().outcome"), "nothing to do", "of the next job")
        equal(second("lien.offload('all', together='turn').transaction"), number + 2, "its first turn")
        equal(session.process(second.pid)["state"], "offloaded", "state")
        equal(second("lien.restore(together='before').transaction"), number + 3, "what the first one had nothing to")


@case()
def test_a_failure_is_every_ranks_and_is_not_remembered():
    with busy_session() as session:
        session.start_agent()
        ranks = jobs_of(session, 2)
        keep_busy(session)
        ranks[0].begin("caught(lien.offload, 'all', timeout=60, together='one')")
        under_way(session)
        ranks[1].begin("caught(lien.offload, 'all', timeout=60, together='one')")
        under_way(session, 2)
        equal(session.request('{"op": "cancel"}\n').strip(), '{"ok":true,"result":{"cancelled":true}}', "cancel")
        errors = [rank.end() for rank in ranks]
        equal([error["code"] for error in errors], ["cancelled"] * 2, "codes")
        equal(errors[0], errors[1], "errors")
        let_go(session)
        equal(ranks[1]("lien.offload('all', together='one').outcome"), "done", "outcome")


@case()
def test_another_request_waits_or_is_refused():
    with busy_session() as session:
        session.start_agent()
        first, second = jobs_of(session, 2)
        keep_busy(session)
        first.begin("lien.offload('all', [lien.SELF], timeout=60).bytes")
        under_way(session)
        error = second("caught(lien.offload, 'all', [lien.SELF], wait=False)")
        equal((error["code"], "lien status" in error["remedy"]), ("busy", True), error)
        equal(second("caught(lien.restore, wait=False)")["code"], "busy", "restore")
        requests = session.ask("status")["loop"]["requests"]
        second.begin("lien.offload('all', [lien.SELF], timeout=60).bytes")
        polls = [0]

        def has_asked():
            polls[0] += 1
            return session.ask("status")["loop"]["requests"] > requests + polls[0]
        wait_for("the agent has the second request", has_asked)
        equal(under_way(session)["clients"], 1, "who wait for the first one")
        let_go(session)
        equal((first.end(), second.end()), (SIZE, SIZE), "bytes")
        equal([session.process(job.pid)["state"] for job in (first, second)], ["offloaded"] * 2, "states")
        equal(first("lien.restore().bytes"), 2 * SIZE, "restore")
        # One that waits for its turn is cancelled like one that is under way.
        keep_busy(session)
        first.begin("caught(lien.offload, 'all', [lien.SELF], timeout=60)")
        under_way(session)
        requests, polls[0] = session.ask("status")["loop"]["requests"], 0
        second.begin("caught(lien.offload, 'all', [lien.SELF], timeout=60)")
        wait_for("the agent has the second request", has_asked)
        session.request('{"op": "cancel"}\n')
        equal([job.end()["code"] for job in (first, second)], ["cancelled"] * 2, "codes")


@case()
def test_every_rank_of_a_job_that_was_not_started_by_lien():
    """The first requests attach to all of them."""
    with Session() as session:
        session.start_agent(attach=True)
        ranks = jobs_of(session, 3, control=False)
        for rank in ranks:
            session.known(rank.pid)
        for rank in ranks:
            rank.begin("vars(lien.offload('all'))['raw']")
        results = [rank.end() for rank in ranks]
        equal(results[0]["bytes"], 3 * SIZE, results[0])
        equal(results, [results[0]] * 3, "results of the ranks")
        equal(ranks[0]("lien.restore().bytes"), 3 * SIZE, "restore")


# What is selected

@case(long=True)
def test_by_gpu():
    with Session(devices=2) as session:
        session.start_agent()
        jobs = [Job(session, 0), Job(session, 1)]
        session.ready(*(job.pid for job in jobs))
        uuids = sorted(gpu["uuid"] for gpu in session.ask("ps")["gpus"])
        equal(len(uuids), 2, "GPUs")
        for gpus, expected in (([1], jobs[1:]), ([uuids[0]], jobs[:1]), (uuids, jobs), (["GPU-"] + uuids + [0], jobs)):
            result = jobs[0]("sorted(lien.offload('all', gpus=%r).per_process)" % gpus)
            equal(result, sorted(job.pid for job in expected), gpus)
            jobs[0]("lien.restore().bytes")
        for gpus in ([7, "GPU-ffff"], ["GPU-ffff"], [""], [64], []):
            error = jobs[0]("caught(lien.offload, 'all', gpus=%r)" % gpus)
            equal(error["code"], "invalid", error)
        equal([job("holds(address, size, 0x5a)") for job in jobs], [True] * 2, "bytes")


@case(long=True)
def test_so_much_free():
    """Ranks that ask for the same free it once; a restore in between, or together=False, frees it again."""
    with Session() as session:
        session.start_agent()
        ranks = jobs_of(session, 2)
        results = []
        for rank in ranks:
            rank.begin("lien.offload('all', free=%d).raw" % SIZE)
        for rank in ranks:
            results.append(rank.end())
        equal(results[0], results[1], "results")
        equal(results[0]["bytes"], SIZE, "bytes")
        equal(ranks[0]("lien.offload('all', free=%d).transaction" % SIZE), results[0]["transaction"], "later")
        answer = ranks[1]("lien.offload('all', free=1, together=False)"
                          ".free[0].__dict__")
        equal((answer["asked_bytes"], answer["bytes"], answer["movable_bytes"]), (1, SIZE, SIZE), "once more")
        error = ranks[0]("caught(lien.offload, 'all', free=1, together=False)")
        equal((error["code"], "nothing can be freed" in error["message"]), ("refused", True), error)
        equal(ranks[0]("lien.restore().bytes"), 2 * SIZE, "restore")
        equal(ranks[0]("lien.offload('all', free=%d).bytes" % SIZE), SIZE, "after the restore")
        ranks[0]("lien.restore().bytes")
        for free in (0, -1, "'1G'", True):
            equal(ranks[0]("caught(lien.offload, 'all', free=%s)" % free)["code"], "invalid", free)


@case(long=True)
def test_by_communicator():
    with Session() as session:
        session.start_agent()
        rank = Rank(session, allocate=SIZE, control=True)
        for number in (0xa1, 0xa2):
            rank.made("init-rank", 1, 0, unique_id(number))
        session.ready(rank.pid)
        [job] = jobs_of(session, 1)
        groups = ["%016x" % number for number in (0xa1, 0xa2)]
        equal(job("lien.offload(dry_run=True).bytes"), 2 * SIZE, "of all")
        equal(job("lien.offload(comms=%r).bytes" % groups[:1]), SIZE, "of one")
        rows = {row["key"]: row["offloaded_bytes"] for row in session.ask("mem", "--by", "comm")["rows"]}
        equal([rows["rank 0/1 of " + group] for group in groups], [SIZE, 0], "offloaded")
        equal(job("lien.offload(comms=%r).bytes" % groups), SIZE, "the other one")
        equal(job("lien.restore().bytes"), 2 * SIZE, "restore")
        for comms in (["00000000000000a3"], ["a1"], [""]):
            error = job("caught(lien.offload, comms=%r)" % comms)
            equal(error["code"], "invalid", error)


# Errors

@case()
def test_errors_say_what_to_do():
    with busy_session() as session:
        session.environment["LIEN_SOCKET"] = session.socket
        job = Job(session)
        error = job("caught(lien.processes)")
        equal((error["code"], error["process"], "lien agent" in error["remedy"]), ("no-agent", None, True), error)
        session.start_agent()
        job = Job(session)
        session.ready(job.pid)
        error = job("caught(lien.holders, 999999, 1)")
        equal((error["code"], error["process"]), ("invalid", 999999), error)
        error = job("caught(lien.offload, 'ncll')")
        equal(error["code"], "invalid", error)
        # Nothing that is given is taken for "not given".
        for call, word in (("lien.offload, host_limit=0", "host_limit_bytes must be"), ("lien.offload, free=0", "free_bytes"),
                           ("lien.offload, pids=[]", "pids must be"), ("lien.restore, pids=[]", "pids must be"),
                           ("lien.offload, comms=[]", "comms must be"), ("lien.restore, tags=[]", "tags must be"),
                           ("lien.offload, gpus=[]", "gpus must be"), ("lien.offload, on_use=''", "on_use must be"),
                           ("lien.offload, owner=''", "no GPU memory")):
            error = job("caught(%s)" % call)
            check(error["code"] == "invalid" and word in error["message"], call, error)
        keep_busy(session)
        error = job("caught(lien.offload, 'all', [lien.SELF], timeout=0.05)")
        equal((error["code"], error["process"], error["holder"]), ("not-at-rest", job.pid, None), error)
        check(error["remedy"], error)
        let_go(session)
        error = pickle.loads(pickle.dumps(lien.LienError("what", "busy", 812, 813, "wait")))
        equal((str(error), error.message, error.code, error.process, error.holder, error.remedy),
              ("what: wait", "what", "busy", 812, 813, "wait"), "from another process")


@case()
def test_errors_name_the_process_that_is_not_at_rest():
    """One of its threads goes on calling, and blocks the signal that would hold it."""
    with Session() as session:
        faults.folder(session)
        session.start_agent()
        asking, calling = jobs_of(session, 2)
        calling("globals().update(thread=Calling()) or 1")
        wait_for("it calls", lambda: calling("thread.calls") > 100)
        slow = Faults(session, calling.pid)  # sleeping in its calls, it is soon awake again, however busy the machine is
        slow.arm(DELAY, times=0, function="cuMemsetD8_v2", delay_ms=1, by=BY_APPLICATION)
        error = asking("caught(lien.offload, 'all', [%d], timeout=0.5)" % calling.pid)
        equal((error["code"], error["process"]), ("not-at-rest", calling.pid), error)
        check(slow.disarm(), "it was never slow")
        calling("thread.end()")
        equal(asking("lien.offload('all').bytes"), 2 * SIZE, "bytes")


@case()
def test_errors_name_the_holder():
    with Session() as session:
        session.start_agent()
        owner, importer = jobs_of(session, 2)
        fd = owner("export(first)")
        importer("take(%d, %d, size)" % (owner.pid, fd))
        owner("os.close(%d)" % fd)
        found = owner("[(h.pid, h.kind) for h in lien.holders(pid, address).holders]")
        check((importer.pid, "import") in found and (importer.pid, "mapping") in found, found)
        error = owner("caught(lien.offload, 'all', [lien.SELF])")
        equal((error["code"], error["process"], error["holder"]), ("refused", owner.pid, importer.pid), error)
        check("with_closure" in error["remedy"], error)
        equal(owner("sorted(lien.offload('all', [lien.SELF], with_closure=True).per_process)"),
              sorted((owner.pid, importer.pid)), "with it")
        equal(owner("lien.restore().bytes"), SIZE, "bytes")  # the importer's own were not selected
        outsider = Job(session, control=False)
        fd = owner("export(first)")
        outsider("take(%d, %d, size)" % (owner.pid, fd))
        owner("os.close(%d)" % fd)
        error = owner("caught(lien.offload, 'all', with_closure=True)")
        equal(error["code"], "refused", error)
        equal((error["process"], error["holder"]), (owner.pid, outsider.pid), error)
        check("lien run" in error["remedy"], error)


@case()
def test_another_users_memory():
    with Shared() as session:
        session.start_agent()
        root = Job(session)
        alice = Job(session, uid=ALICE)
        session.ready(root.pid, alice.pid)
        equal(alice("[p.pid for p in lien.processes()]"), [alice.pid], "what she sees")
        error = alice("caught(lien.offload, 'all', [%d])" % root.pid)
        equal((error["code"], error["process"]), ("invalid", root.pid), error)
        root.begin("lien.offload('all', together='a').bytes")
        equal(root.end(), 2 * SIZE, "root's")
        # A token is its user's: hers names another request.
        equal(alice("lien.restore(together='b').bytes"), SIZE, "hers")
        equal(alice("lien.offload('all', together='a').bytes"), SIZE, "hers")
        equal(root("lien.offload('all', together='a').bytes"), 2 * SIZE, "root's")


RESTORES = """
import json, os, socket, sys
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
for i in range(8):
    s.send(b'{"op": "restore", "together": "%d"}\\n' % i)
answers = s.makefile()
for i in range(8):
    answer = json.loads(answers.readline())
    assert answer["ok"], answer
"""


@case(long=True)
def test_another_users_results():
    """Users without a process push out nobody's results."""
    with Shared(fresh=True) as session:
        session.start_agent()
        alice = Job(session, uid=ALICE)
        session.ready(alice.pid)
        equal(alice("lien.offload('all', together='a').transaction"), 1, "offload")
        equal(alice("lien.restore(together='a').transaction"), 2, "restore")
        for uid in range(60000, 60009):
            subprocess.run([sys.executable, "-c", RESTORES, session.socket, str(uid)], check=True, timeout=30)
        equal(alice("lien.offload('all', together='a').transaction"), 1, "what she has done already")


@case()
def test_who_gives_up_cancels():
    with busy_session() as session:
        session.start_agent()
        [job] = jobs_of(session, 1)
        keep_busy(session)
        sign = session.path("cancel")
        job.begin("asyncio.run(cancel_when(%r, lien.aio.offload('all', timeout=50)))" % sign)
        under_way(session)
        with open(sign, "w"):
            pass
        equal(job.end(), "cancelled", "a task that was cancelled")
        wait_for("nothing is under way", lambda: not session.ask("status")["transaction"])
        other = Job(session)
        session.ready(other.pid)
        job.begin("lien.offload('all', [%d], timeout=50)" % other.pid)
        under_way(session)
        job.process.signal(signal.SIGINT)
        check(job.process.wait(20), "exit status after Ctrl-C")
        wait_for("nothing is under way", lambda: not session.ask("status")["transaction"])


# Questions

@case()
def test_answers_are_those_of_the_command():
    with Session() as session:
        session.start_agent()
        [job] = jobs_of(session, 1)
        for question, expression in (
                (["ps"], "[dict(p.raw) for p in lien.processes()]"),
                (["mem"], "[dict(m.raw) for m in lien.memory()]"),
                (["mem", "--by", "rank"], "[dict(m.raw) for m in lien.memory(by='rank')]"),
                (["mem", "--by", "callsite"], "[dict(m.raw) for m in lien.memory('callsite')]"),
                (["holders", job.pid, hex(job.address)], "lien.holders(pid, address).raw")):
            answer = session.ask(*question)
            found = job(expression)
            equal(found, answer.get("processes", answer.get("rows", answer)), question)


@case()
def test_events_are_those_of_the_command():
    with Session() as session:
        session.start_agent()
        [job] = jobs_of(session, 1)
        watch = session.spawn([LIEN, "events", "-f", "--json"])
        job("globals().update(stream=lien.events()) or 1")
        call = "[allocate(2 << 20) and 1, export(create(2 << 20)) and 1]"
        wait_for("the command watches", lambda: (job(call), not watch.lines.empty())[1])
        job("globals().update(stream=lien.events()) or 1")
        mark = job("create(6 << 20)")
        job(call)
        last = job("create(8 << 20)")
        events = job("collect(stream, 8 << 20)")
        lines = []
        while not lines or lines[-1]["arguments"].get("size") != 8 * MIB:
            lines.append(json.loads(watch.line(10)))
        begin = max(i for i, line in enumerate(lines) if line["arguments"].get("size") == 6 * MIB)
        check(mark and last, "handles")
        equal([event[:-1] for event in events], [
            [line["event"], line["pid"], line["tid"], line["command"], line["arguments"], line.get("result"),
             line.get("inside"), line.get("control"), line.get("partial")] for line in lines[begin:]], "events")
        # Seconds and milliseconds: two binary numbers, which two roundings can take apart.
        apart = [abs(event[-1] * 1e3 - line["boot_ms"]) for event, line in zip(events, lines[begin:])]
        check(max(apart) < 1e-3, "times differ: %s" % apart)
        check(len(events) >= 8, brief(events))


if __name__ == "__main__":
    sys.exit(main())
