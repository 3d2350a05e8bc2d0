#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Jobs in containers (container.py): in namespaces of their own, with a root that has its own copies of
the driver, libc and the program, and neither lien nor its agent's socket.

See lien_test.py for what it needs.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from lien_test import (  # noqa: E402
    CONTROL, MIB, ROOT, SOFTCUDA, Driver, Failure, Process, Session, case, check, equal, main,
    program, wait_for)
from train_job import SYNC, Train, children_of  # noqa: E402

BOB = 54322
LIBRARIES = "/usr/local/nvidia/lib64"
NCCL = "/opt/nccl/libnccl.so.2"
INSIDE = "/opt/lien/liblien-control.so"  # where an image has it
# One that other users may run, too.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
NAMESPACES = ["--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup"]


class Kind:
    """namespaces: unshare's options; uid: who makes the container; network: the file of a namespace
    that others are in, too; user: container.py's"""

    def __init__(self, *namespaces, uid=0, user=None, network=None):
        self.namespaces, self.uid, self.user = namespaces, uid, user
        self.before = ["nsenter", "--net=" + network] if network else []
        if uid:
            self.before = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]

    def argv(self):
        return [*self.before, "unshare", "--fork", "--kill-child", *self.namespaces]

    def why_not(self):
        """Why there are no such containers here, or None."""
        done = subprocess.run([*self.argv(), PYTHON, "-c", ""], capture_output=True, text=True,
                              check=False)
        return done.stderr.strip() if done.returncode else None


KINDS = {
    "root's": Kind(*NAMESPACES),
    "with a user namespace": Kind("--user", "--map-root-user", *NAMESPACES),
    "a user's": Kind("--user", "--map-root-user", *NAMESPACES, uid=BOB),
    "of nobody": Kind(*NAMESPACES, user=BOB),  # no id inside means anybody outside
}


def kinds(*names):
    """Those of them that can be made here."""
    for name in names or KINDS:
        why = KINDS[name].why_not()
        if why:
            print("   skipped: containers %s: %s" % (name, why))
        else:
            yield name, KINDS[name]


class Image:
    """A root directory."""

    def __init__(self, session, name):
        self.session, self.root = session, session.path(name)
        needed = subprocess.run(["ldd", program("prog_driver"), CONTROL], env=session.env(),
                                check=True, capture_output=True, text=True).stdout
        for word in needed.split():
            if re.match(r"/(usr/)?lib", word):
                self.add(word, word)
        self.add(os.path.join(SOFTCUDA, "libcuda.so.1"), LIBRARIES + "/libcuda.so.1")
        self.add(program("prog_driver"), "/usr/bin/prog_driver")
        self.add(CONTROL, INSIDE)
        for folder in ("/proc", "/tmp", session.devices):
            os.makedirs(self.root + folder)

    def add(self, path, place):
        os.makedirs(os.path.dirname(self.root + place), exist_ok=True)
        shutil.copy(path, self.root + place)
        return self.root + place

    def run(self, kind, argv, *, preload=False, pass_fds=(), **options):
        """A container of this image: its first process, as Process has unshare's."""
        session = self.session
        environment = {name: value for name, value in session.environment.items()
                       if name.startswith("LIEN_SOFTCUDA_")}
        environment["LD_LIBRARY_PATH"] = LIBRARIES
        if preload:
            environment["LD_PRELOAD"] = INSIDE
        inside = {"root": self.root, "layers": None, "binds": [session.devices], "proc": True,
                  "readonly": False, "noexec": False, "filter": False, "user": kind.user,
                  "environment": environment, **options}
        session.count += 1
        process = Process([*kind.argv(), PYTHON, session.path("container.py"), json.dumps(inside),
                           *argv],
            session.env(), session.path("%d-container.log" % session.count), pass_fds=pass_fds)
        session.processes.append(process)
        return process

    def driver(self, kind, init=True, **more):
        driver = Driver(self.run(kind, ["/usr/bin/prog_driver"], **more))
        equal(driver.inner_pid, 1, "its pid inside")
        driver.pid = children_of(driver.process.pid)[0]
        if init:
            driver("init", 0)
        return driver


class Containers(Session):
    """With devices that all containers have in common."""

    def __init__(self, **environment):
        super().__init__(**environment)
        os.chmod(self.folder, 0o755)
        shutil.copy(os.path.join(ROOT, "tests", "integration", "container.py"), self.folder)
        first = self.driver(control=False)  # root makes the devices
        os.chmod(self.devices, 0o755)
        first.end()

    def image(self, name):
        return Image(self, name)

    def probed(self, path):
        """Files of that name that are probed."""
        return [library for library in self.ask("status")["libraries"] if library["path"] == path]

    def drivers(self):
        return self.probed(LIBRARIES + "/libcuda.so.1")

    def probed_image(self, name, kind):
        """Whose libraries are probed before the container of the test begins."""
        image = self.image(name)
        image.add(SYNC, NCCL)
        counts = len(self.drivers()), len(self.probed(NCCL))
        first = image.driver(kind, init=False)
        first.attempt("nccl", NCCL)
        wait_for("its copies are probed", lambda: len(self.drivers()) > counts[0] and
                 len(self.probed(NCCL)) > counts[1])
        self.ended(first)
        return image

    def takes_orders(self, job):
        """It makes calls meanwhile, as jobs do: a new copy of the control library is woken at one."""
        def is_ready():
            job.driver("info", 0)
            return self.process(job.pid)["control"] == "ready"
        wait_for("process %d takes orders" % job.pid, is_ready)

    def ended(self, driver):
        """It ends cleanly, and leaves nothing."""
        driver.process.close_input()
        equal(driver.process.wait(), 0, "exit status of a container")
        self.forgotten(driver.pid)
        equal(self.process(driver.pid), None, "`lien ps` of what has ended")

    def moved_twice(self, *drivers, size):
        """Offload and restore, of what filled() made; values are compared, and changed between."""
        pids = sorted(driver.pid for driver in drivers)
        for value in (0x5a, 0xa5):
            for driver in drivers:
                driver.fill(value)
            answer = self.ask("offload", "--owner", "all")
            equal((answer["bytes"], sorted(p["pid"] for p in answer["processes"])), (size, pids),
                  "offloaded")
            equal(self.used(), 0, "device memory in use")
            equal(self.ask("restore")["bytes"], size, "restored")
            for driver in drivers:
                driver.verify(value)


@contextlib.contextmanager
def sockets():
    here, there = socket.socketpair()
    with here, there:
        yield here, there


class Job:
    """A driver with memory."""

    def __init__(self, driver, size=4 * MIB, handle=None):
        self.driver, self.process, self.pid, self.size = driver, driver.process, driver.pid, size
        if handle is None:
            self.handle, self.va = driver("make", size, 0)
        else:
            self.handle, self.va = handle, driver("show", size, handle, 0)

    def fill(self, value):
        self.driver("fill", self.va, self.size, value)

    def verify(self, value):
        equal(self.driver("check", self.va, self.size, value), 0, "wrong bytes in %d" % self.pid)

    def end(self, session):
        self.driver("unmap", self.va, self.size)
        self.driver("release", self.handle)
        session.ended(self)


@case(90)
def test_traced_and_moved():
    """Containers of each kind, with the control library in the image, and attached to."""
    with Containers() as session:
        session.start_agent()
        for name, kind in kinds():
            image = session.probed_image(name.replace(" ", "-"), kind)
            for preload in (True, False):
                job = Job(image.driver(kind, preload=preload))
                process = session.known(job.pid)
                equal((process["command"], process["complete"], process["bytes"]),
                      ("prog_driver", True, job.size), name)
                if not preload:
                    session.refused("offload", "--owner", "all", "--pid", job.pid,
                                    text="no control library")
                    attached, = session.ask("attach", job.pid)["processes"]
                    equal((attached["pid"], attached["error"]), (job.pid, None), name)
                session.takes_orders(job)
                session.moved_twice(job, size=job.size)
                job.end(session)
        equal(session.used(), 0, "device memory in use")


@case(60)
def test_layers():
    """Containers of one image, as Docker makes them: an overlay each, over one file. It is probed once,
    for all, also by the next agent."""
    with Containers() as session:
        session.start_agent()
        kind = KINDS["root's"]
        image = session.image("image")
        os.mkdir(session.path("layers"))

        def layers(number):
            return session.path("layers/%d" % number)
        first = image.driver(kind, init=False, layers=layers(0))
        wait_for("its copy of the driver is probed", session.drivers)
        session.ended(first)
        job = Job(image.driver(kind, layers=layers(1)))
        check(session.known(job.pid)["complete"], "the second one is incomplete")
        session.kill_agent()
        session.start_agent()
        late = Job(image.driver(kind, layers=layers(2)))
        equal([session.known(j.pid)["complete"] for j in (job, late)], [True, True],
              "complete, with the next agent")
        equal(len(session.drivers()), 1, "drivers that are probed")
        equal(session.ask("attach", "--all")["attached"], 2, "attached")
        session.moved_twice(job, late, size=job.size + late.size)
        # A copy in a container's own layer is another file.
        shutil.copytree(image.root + LIBRARIES, layers(3) + "/upper" + LIBRARIES)
        other = image.driver(kind, init=False, layers=layers(3))
        wait_for("the copy is probed", lambda: len(session.drivers()) == 2)
        other("init", 0)
        own = Job(other)
        equal(session.known(own.pid)["bytes"], own.size, "bytes of its process")
        own.end(session)
        for each in (job, late):
            each.end(session)


@case(60)
def test_ranks_in_two_containers():
    """They share memory by descriptors, through a socket that both have, and nothing else: neither sees
    the other's processes, files or network. One is attached to, one brings the library."""
    with Containers() as session:
        session.start_agent()
        for names in (("root's", "root's"), ("a user's", "with a user namespace")):
            chosen = [kind for _, kind in kinds(*names)]
            if len(chosen) < 2:
                continue
            images = [session.probed_image("%s-%d" % (names[0][0], number), kind)
                      for number, kind in enumerate(chosen)]
            with sockets() as ends:
                drivers = [image.driver(kind, preload=bool(number), pass_fds=[end.fileno()])
                           for number, (image, kind, end) in enumerate(
                               zip(images, chosen, ends))]
                here, there = (end.fileno() for end in ends)
                owner = Job(drivers[0])
                fd = owner.driver("export", owner.handle)
                owner.driver("send", here, fd)
                owner.driver("close", fd)
                taken = drivers[1]("receive", there)
                importer = Job(drivers[1], handle=drivers[1]("import", taken))
                importer.driver("close", taken)
                own = Job(drivers[1])
            equal(session.known(importer.pid)["imported_bytes"], owner.size, "imported")
            equal({(h["pid"], h["kind"]) for h in session.ask(
                "holders", owner.pid, hex(owner.va))["holders"]} >= {
                    (owner.pid, "mapping"), (importer.pid, "mapping"), (importer.pid, "import")},
                True, "holders")
            session.takes_orders(importer)
            session.refused("offload", "--owner", "all", "--pid", owner.pid,
                            text="%d.*no control library" % owner.pid)
            session.ask("attach", owner.pid)
            for value in (0x11, 0x22):
                owner.fill(value)
                own.fill(value + 1)
                equal(session.ask("offload", "--owner", "all")["bytes"], 2 * owner.size, "moved")
                equal(session.used(), 0, "device memory in use")
                equal(session.ask("restore")["bytes"], 2 * owner.size, "restored")
                importer.verify(value)
                importer.fill(value + 2)  # they are one memory again
                owner.verify(value + 2)
                own.verify(value + 1)
            own.driver("unmap", own.va, own.size)
            own.driver("release", own.handle)
            importer.end(session)
            owner.end(session)
        equal([f for f in session.ask("check")["findings"]], [], "findings")


class Pod(Train):
    """A training job whose ranks are in containers of their own, with one network, as a Pod's."""

    def __init__(self, session, images, preload):  # pylint: disable=super-init-not-called
        self.nranks, self.seed, self.within = len(images), 1, True
        network = session.path("network")
        with open(network, "w"):
            pass
        subprocess.run(["unshare", "--net=" + network, "true"], check=True)
        kind = Kind(*[word for word in NAMESPACES if word != "--net"], network=network)
        self.ranks = []
        for rank, image in enumerate(images):
            image.add(program("prog_train"), "/usr/bin/prog_train")
            self.ranks.append(image.run(kind, [
                "/usr/bin/prog_train", NCCL, str(rank), str(len(images)),
                str(rank % session.device_count), "1", "0", "300"], preload=preload[rank]))
        self.meet()


@case(90)
def test_training_in_a_pod():
    """It is moved while it trains: threads are held in libraries that only their container has."""
    with Containers() as session:
        session.start_agent()
        images = [session.probed_image("rank-%d" % rank, KINDS["root's"]) for rank in range(2)]
        job = Pod(session, images, preload=(True, False))
        for pid in job.pids:
            check(session.known(pid)["complete"], "rank %d is incomplete" % pid)
        equal(session.ask("attach", job.pids[1])["attached"], 1, "attached")
        session.ready(*job.pids)
        for _ in range(2):
            before = job.status()
            moved = session.ask("offload", "--timeout", 20000)
            equal(sorted(p["pid"] for p in moved["processes"]), sorted(job.pids), "who takes part")
            check(moved["bytes"], "nothing was moved")
            equal(session.ask("restore")["bytes"], moved["bytes"], "restored")
            wait_for("it trains on", lambda last=before: all(
                now[0] > then[0] + 10 for now, then in zip(job.status(), last)), 30)
        pids = job.pids
        job.stop()
        job.finish()
        session.forgotten(*pids)
        equal(session.used(), 0, "device memory in use")


@case(60)
def test_what_ran_before_the_agent():
    with Containers() as session:
        jobs = []
        for name, kind in kinds():
            job = Job(session.image(name.replace(" ", "-")).driver(kind))
            job.fill(0x77)
            jobs.append(job)
        session.start_agent()
        for job in jobs:
            process = session.known(job.pid)
            equal((process["complete"], process["bytes"]), (False, 0), "before")
        answer = session.ask("attach", "--all")
        equal([p["error"] for p in answer["processes"]], [None] * len(jobs), "errors")
        equal([r["mappings"] for r in answer["read"]], [1] * len(jobs), "mappings that were read")

        def seen(job):
            process = session.process(job.pid)
            return process["control"], process["bytes"] + process["imported_bytes"]
        for job in jobs:
            equal(seen(job), ("ready", job.size), "after")
            # What it makes from now on is seen. Whether what it had is moved: test_attach.py.
            more = Job(job.driver, size=2 * MIB)
            equal(seen(job), ("ready", job.size + more.size), "and more")
            more.driver("unmap", more.va, more.size)
            more.driver("release", more.handle)
            job.verify(0x77)
            job.end(session)


@case(60)
def test_confined():
    """A root that cannot be written to and a /tmp without programs; a filter like Docker's."""
    with Containers() as session:
        session.start_agent()
        kind = KINDS["root's"]
        image = session.probed_image("image", kind)
        for preload, how in ((True, {"readonly": True, "noexec": True}),
                             (False, {"readonly": True, "noexec": True}), (True, {"filter": True})):
            job = Job(image.driver(kind, preload=preload, **how))
            if not preload:
                equal(session.ask("attach", job.pid)["attached"], 1, "attached")
            session.takes_orders(job)
            session.moved_twice(job, size=job.size)
            job.end(session)
        job = Job(image.driver(kind, filter=True))
        job.fill(0x3c)
        outcome = session.lien("attach", job.pid)
        words = " ".join(outcome.out.split())
        check(outcome.code == 1 and "refused: process %d is confined by seccomp" % job.pid in words
              and "LD_PRELOAD" in words and "seccomp=unconfined" in words, outcome)
        job.verify(0x3c)
        job.end(session)


@case(60)
def test_without_proc():
    """Handles cannot be translated there, so nothing is moved."""
    with Containers() as session:
        session.start_agent()
        for name, kind in kinds():
            image = session.probed_image(name.replace(" ", "-"), kind)
            job = Job(image.driver(kind, proc=False))
            outcome = session.lien("attach", job.pid)
            words = " ".join(outcome.out.split())
            check(outcome.code == 1 and
                  "process %d sees no /proc, through which the control library is loaded: mount it "
                  "in its container" % job.pid in words, outcome)
            job.end(session)
            job = Job(image.driver(kind, proc=False, preload=True))
            job.fill(0x2d)
            if kind.uid:  # nor can it tell there who gives orders
                session.refused("offload", "--owner", "all", "--pid", job.pid,
                                text="process %d cannot take part" % job.pid)
            else:
                session.takes_orders(job)
                session.refused("offload", "--owner", "all", "--pid", job.pid, text="process %d, "
                                "stage: it sees no /proc: mount one in its container" % job.pid)
            job.verify(0x2d)
            job.end(session)


if __name__ == "__main__":
    sys.exit(main())
