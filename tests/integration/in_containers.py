# SPDX-License-Identifier: BSD-2-Clause
"""What the tests in containers share: kinds of containers, images to make them of (container.py),
and jobs in them."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys

from lien_test import (
    CONTROL, MIB, ROOT, SOFTCUDA, Driver, Process, Session, children_of, equal, program, wait_for)
from train_job import SYNC, Train

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


def why_no_overlay():
    with open("/proc/filesystems") as known:
        return None if "\toverlay\n" in known.read() else "the kernel has no overlay file system"


class Image:
    """A root directory with files, {place: path outside}, and the libraries that these need."""

    def __init__(self, session, name, files, folders=()):
        self.session, self.root = session, session.path(name)
        needed = subprocess.run(["ldd", *files.values()], env=session.env(), check=True,
                                capture_output=True, text=True).stdout
        for word in needed.split():
            if re.fullmatch(r"/(usr/)?lib\S*[^:]", word):
                self.add(word, word)
        for place, path in files.items():
            self.add(path, place)
        for folder in ("/proc", "/sys", "/tmp", *folders):
            os.makedirs(self.root + folder)

    def add(self, path, place):
        os.makedirs(os.path.dirname(self.root + place), exist_ok=True)
        shutil.copy(path, self.root + place)

    def run(self, kind, argv, environment, *, pass_fds=(), **options):
        """A container of this image: its first process, as Process has unshare's."""
        session = self.session
        inside = {"root": self.root, "layers": None, "binds": [], "proc": True, "sys": False,
                  "readonly": False, "noexec": False, "filter": False, "user": kind.user,
                  "environment": environment, **options}
        session.count += 1
        process = Process(
            [*kind.argv(), PYTHON, session.path("container.py"), json.dumps(inside), *argv],
            session.env(), session.path("%d-container.log" % session.count), pass_fds=pass_fds)
        session.processes.append(process)
        return process


class JobImage(Image):
    def __init__(self, session, name):
        super().__init__(session, name, {
            LIBRARIES + "/libcuda.so.1": os.path.join(SOFTCUDA, "libcuda.so.1"),
            "/usr/bin/prog_driver": program("prog_driver"), INSIDE: CONTROL}, [session.devices])

    def job(self, kind, argv, preload=False, bind=(), **more):
        environment = {name: value for name, value in self.session.environment.items()
                       if name.startswith("LIEN_SOFTCUDA_")}
        environment["LD_LIBRARY_PATH"] = LIBRARIES
        if preload:
            environment["LD_PRELOAD"] = INSIDE
        devices = self.session.devices
        return self.run(kind, argv, environment, binds=[[devices, devices], *bind], **more)

    def driver(self, kind, init=True, **more):
        driver = Driver(self.job(kind, ["/usr/bin/prog_driver"], **more))
        equal(driver.inner_pid, 1, "its pid inside")
        driver.pid = children_of(driver.process.pid)[0]
        if init:
            driver("init", 0)
        return driver


class Containers(Session):
    """With devices that all containers have in common."""

    def __init__(self, **environment):
        super().__init__(fresh=True, **environment)
        os.chmod(self.folder, 0o755)
        shutil.copy(os.path.join(ROOT, "tests", "integration", "container.py"), self.folder)
        first = self.driver(control=False)  # root makes the devices
        os.chmod(self.devices, 0o755)
        first.end()

    def image(self, name):
        return JobImage(self, name)

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
        """It makes calls meanwhile, as jobs do: a new copy of the library is woken at one."""
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
            self.ranks.append(image.job(kind, [
                "/usr/bin/prog_train", NCCL, str(rank), str(len(images)),
                str(rank % session.device_count), "1", "0", "300"], preload=preload[rank]))
        self.meet()


__all__ = [name for name in dir() if not name.startswith("_")]
