#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Jobs in containers (container.py): in namespaces of their own, with a root that has its own
copies of the driver, libc and the program, and neither lien nor its agent's socket.

See lien_test.py for what it needs.
"""

import os
import shutil
import sys
import tty

from in_containers import (
    KINDS, LIBRARIES, Containers, Job, Pod, kinds, sockets, why_no_overlay)
from lien_test import MIB, Skipped, case, check, equal, main, wait_for


@case()
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
        session.freed()


@case(long=True)
def test_layers():
    """Containers of one image, as Docker makes them: an overlay each, over one file. It is probed
    once, for all, also by the next agent."""
    if why_no_overlay():
        raise Skipped(why_no_overlay())
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


def share(images, chosen, preload=(False, False)):
    """Two ranks in containers of these kinds: the second one imports what the first one has."""
    with sockets() as ends:
        drivers = [image.driver(kind, preload=library, pass_fds=[end.fileno()])
                   for image, kind, library, end in zip(images, chosen, preload, ends)]
        here, there = (end.fileno() for end in ends)
        owner = Job(drivers[0])
        fd = owner.driver("export", owner.handle)
        owner.driver("send", here, fd)
        owner.driver("close", fd)
        taken = drivers[1]("receive", there)
        importer = Job(drivers[1], handle=drivers[1]("import", taken))
        importer.driver("close", taken)
    return owner, importer


@case(long=True)
def test_ranks_in_two_containers():
    """They share memory by descriptors, through a socket that both have, and nothing else; neither sees the other's
    processes, files or network. One is attached to, one brings the library."""
    with Containers() as session:
        session.start_agent()
        for names in (("root's", "root's"), ("a user's", "with a user namespace")):
            chosen = [kind for _, kind in kinds(*names)]
            if len(chosen) < 2:
                continue
            images = [session.probed_image("%s-%d" % (names[0][0], number), kind)
                      for number, kind in enumerate(chosen)]
            owner, importer = share(images, chosen, (False, True))
            own = Job(importer.driver)
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


@case()
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
                now[0] > then[0] + 10 for now, then in zip(job.status(), last)))
        pids = job.pids
        job.stop()
        job.finish()
        session.forgotten(*pids)
        session.freed()


@case(long=True)
def test_what_ran_before_the_agent():
    """Containers of each kind, and pairs of ranks that have shared memory before: all is adopted, moved
    and still shared."""
    with Containers() as session:
        jobs, pairs = [], []
        for name, kind in kinds():
            jobs.append(Job(session.image(name.replace(" ", "-")).driver(kind)))
        for names in (("root's", "root's"), ("a user's", "with a user namespace")):
            chosen = [kind for _, kind in kinds(*names)]
            if len(chosen) == 2:
                pairs.append(share([session.image("pair-%d-%d" % (len(pairs), number))
                                    for number in range(2)], chosen))
        owners = [owner for owner, _ in pairs]
        importers = [importer for _, importer in pairs]
        for number, job in enumerate(jobs + owners):
            job.fill(0x40 + number)
        session.start_agent()
        for job in jobs + owners + importers:
            process = session.known(job.pid)
            equal((process["complete"], process["bytes"]), (False, 0), "before")
        answer = session.ask("attach", "--all")
        equal([(p["error"], p["mappings"], p["complete"]) for p in answer["processes"]],
              [(None, 1, True)] * len(jobs + owners + importers), "errors, mappings, complete")
        adoption = answer["adoption"]
        equal((adoption["error"], adoption["matched"], adoption["unmatched"]),
              (None, len(pairs), 0), "adoption")
        for owner, importer in pairs:
            holders = session.ask("holders", importer.pid, hex(importer.va))
            equal(holders["allocation"]["pid"], owner.pid, "owner")
        size = sum(job.size for job in jobs + owners)
        for value in (0x40, 0x60):
            answer = session.ask("offload", "--owner", "all")
            equal((answer["bytes"], answer["left"]), (size, []), "moved")
            equal(session.used(), 0, "device memory in use")
            equal(session.ask("restore")["bytes"], size, "restored")
            for number, job in enumerate(jobs + owners):
                job.verify(value + number)
                job.fill(0x60 + number)
            for number, importer in enumerate(importers, len(jobs)):
                importer.verify(0x60 + number)  # they are one memory again
        for job in jobs:  # what it makes from now on is seen
            more = Job(job.driver, size=2 * MIB)
            equal(session.process(job.pid)["bytes"], job.size + more.size, "and more")
            more.driver("unmap", more.va, more.size)
            more.driver("release", more.handle)
        for job in jobs + importers + owners:
            job.end(session)
        session.freed()


@case()
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


@case(long=True)
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


GPU = "GPU-11111111-2222-3333-4444-555555555555"


def driver_folder(session, name, plant):
    """What the user of a container has there as /proc/driver: plant(path) makes the file that tells
    a GPU's name."""
    folder = session.path(name)
    gpu = folder + "/nvidia/gpus/0000:01:00.0"
    os.makedirs(gpu)
    plant(gpu + "/information")
    return [folder, "/proc/driver"]


def terminal_of(pid):
    with open("/proc/%d/stat" % pid) as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[4])


@case(long=True)
def test_files_that_a_container_plants():
    """Where the driver names its GPUs, a container has pipes, terminals and links: the agent reads only files, and none
    outside that container."""
    with Containers() as session:
        secret = session.path("root's.fifo")
        os.mkfifo(secret, 0o600)
        pipe = os.open(secret, os.O_RDWR | os.O_NONBLOCK)
        own = session.path("user's.fifo")
        os.mkfifo(own, 0o666)
        own_pipe = os.open(own, os.O_RDWR | os.O_NONBLOCK)
        master, slave = os.openpty()
        tty.setraw(slave)
        os.chmod(os.ttyname(slave), 0o666)
        outside = session.path("outside")
        told = "Model: \t\t H200\nGPU UUID: \t\t %s\n" % GPU

        def file(path):
            with open(path, "w") as information:
                information.write(told)
        file(outside)

        def link_to(target):
            return lambda path: os.symlink(target, path)

        def empty(path):
            with open(path, "w"):
                pass
        session.start_agent()
        for name, kind in kinds("a user's", "root's"):
            image = session.probed_image(name.replace(" ", "-"), kind)
            for what, plant, binds, read in (
                    ("a file", file, [], True), ("a link", link_to(outside), [], False),
                    ("a link to a pipe", link_to(secret), [], False),
                    ("a pipe", empty, [own], False),
                    ("a terminal", empty, [os.ttyname(slave)], False),
                    ("a link to nothing", link_to("information"), [], False)):
                os.write(pipe, b"root's")
                os.write(own_pipe, b"user's")
                os.write(master, b"GPU UUID: %s\n" % GPU.encode())
                place = driver_folder(session, "%s %s" % (name, what), plant)
                inside = place[1] + "/nvidia/gpus/0000:01:00.0/information"
                job = Job(image.driver(kind, bind=[place, *[[path, inside] for path in binds]]))
                session.known(job.pid)
                names = [gpu["uuid"] for gpu in session.ask("mem", "--explain")["gpus"]]
                equal(GPU in names, read, "%s, %s: the name is known, of %s" % (name, what, names))
                equal(terminal_of(session.agent.pid), 0, "the agent's controlling terminal")
                equal((os.read(pipe, 100), os.read(own_pipe, 100), os.read(slave, 100)[:3]),
                      (b"root's", b"user's", b"GPU"), "what was to be read, after %s" % what)
                job.end(session)
        os.close(slave)
        os.close(master)
        session.ask("ps")


if __name__ == "__main__":
    sys.exit(main())
