# SPDX-License-Identifier: BSD-2-Clause
"""A lab of several nodes on one machine: each has network, mount, pid, IPC and host name namespaces of its
own, joined by veth and a bridge that is in a namespace as well, an agent, a /run, devices and the software
driver. Nothing of it is in the namespaces of the machine.

    with Lab(3) as lab:
        with training(lab, 2) as job:   # agents, and two ranks on each node
            lab[0].ask("ps")            # `lien` in a node
            lab[1].cut()                # its link; join() mends it

launchers.py has sshd and Slurm for it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from lien_test import (
    BUILD, GUARD, LIEN, ROOT, Failure, Process, Session, Skipped, alive, check, children_of, program, run, wait_for)
from train_job import SYNC, Train

INTERFACE = "eth0"
NETWORK = "10.77.0."
PATH = BUILD + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def must(argv, **more):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, **more)
    check(not done.returncode, "%s: %s" % (" ".join(argv), done.stderr + done.stdout))
    return done.stdout


class Inside(Process):
    """A process in a node: nsenter's child, to which signals go. nsenter stops when it does."""

    @property
    def inner(self):
        """Our pid of it, or None."""
        children = children_of(self.pid) if alive(self.pid) else []
        return children[0] if children else None

    def signal(self, number):
        for pid in (self.inner, self.pid if number == signal.SIGCONT else None):
            if pid:
                kill(pid, number)


def kill(pid, number=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Node(Session):
    """A session in a node. Pids that `lien` and the job say are the node's; those of Process are ours."""

    def __init__(self, lab, number, devices, memory, binds):
        super().__init__(devices, memory, fresh=True)
        shutil.rmtree(self.folder)
        self.lab, self.number = lab, number
        self.name, self.address = "node%d" % (number + 1), NETWORK + str(number + 1)
        self.folder = lab.path(self.name)
        os.mkdir(self.folder)
        self.devices = "/run/devices"  # the same everywhere, for what is started from elsewhere
        self.socket = "/run/lien/agent.sock"
        self.environment["LIEN_SOFTCUDA_DIR"] = self.devices
        self.environment.pop("LIEN_SOCKET")
        self.environment["HOME"] = "/root"
        self.environment["PATH"] = PATH
        self.binds = binds
        self.holder = self.first = None
        self.boot()

    def boot(self):
        self.holder = Process(
            ["unshare", "--fork", "--kill-child", "--mount", "--pid", "--net", "--ipc", "--uts", PYTHON,
             os.path.join(ROOT, "tests", "integration", "node.py"),
             json.dumps({"name": self.name, "binds": self.binds})],
            self.environment, self.path("node.log"))
        line = self.holder.line(20)
        check(line == "ready", "%s: %s" % (self.name, self.holder.said()))
        self.first = children_of(self.holder.pid)[0]
        self.lab.wire(self)
        # The others may still know the one from before.
        self.ip("link", "set", INTERFACE, "address", "02:00:00:00:00:%02x" % self.number)
        self.ip("addr", "add", self.address + "/24", "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            self.ip("link", "set", interface, "up")

    @property
    def enter(self):
        return ["nsenter", "--target", str(self.first), "--mount", "--pid", "--net", "--ipc", "--uts",
                "--wd=/", "--"]

    def ip(self, *args):
        must(["nsenter", "--target", str(self.first), "--net", "--", "ip", *args])

    def outside(self, path):
        """Where a file of the node's is for us."""
        return "/proc/%d/root%s" % (self.first, path)

    def spawn(self, argv, env=None, **environment):
        """A process in the node."""
        self.count += 1
        log = self.path("%d-%s.log" % (self.count, os.path.basename(str(argv[0]))))
        process = Inside([*self.enter, *argv], env if env is not None else self.env(**environment), log)
        self.processes.append(process)
        return process

    def run(self, argv, limit=GUARD, text=None, **environment):
        return run([*self.enter, *argv], limit, self.env(**environment), text)

    def lien(self, *args, limit=GUARD, env=None, text=None, **environment):
        return run([*self.enter, LIEN, *args], limit, env or self.env(**environment), text)

    def share_devices(self):
        """Root has made them; other users may use them, too."""
        self.driver(control=False).end()
        os.chmod(self.outside(self.devices), 0o755)
        for number in range(self.device_count):
            os.chmod(self.outside(os.path.join(self.devices, str(number))), 0o1777)

    def is_alive(self, pid):
        """A pid of the node's."""
        try:
            with open(self.outside("/proc/%d/stat" % pid)) as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False

    def processes_of(self, program_name, word):
        """Our pids of the node's processes of that program that have such an argument."""
        inside, found = os.readlink("/proc/%d/ns/pid" % self.first), []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open("/proc/%s/cmdline" % entry, "rb") as file:
                    words = [argument.decode(errors="replace") for argument in file.read().split(b"\0")]
                if os.path.basename(words[0]) == program_name and word in words and \
                        os.readlink("/proc/%s/ns/pid" % entry) == inside:
                    found.append(int(entry))
        return found

    def used(self, device=None):
        total = 0
        for number in range(self.device_count) if device is None else [device]:
            place = self.outside(os.path.join(self.devices, str(number)))
            # os.path.ismount() takes a path without the links of /proc.
            if os.path.exists(place) and os.stat(place).st_dev != os.stat(self.outside("/run")).st_dev:
                fs = os.statvfs(place)
                total += (fs.f_blocks - fs.f_bfree) * fs.f_frsize
        return total

    def kill_agent(self):
        self.agent.signal(signal.SIGKILL)
        self.agent.wait()
        self.agent = None

    def cut(self):
        self.lab.link(self, "down")

    def join(self):
        self.lab.link(self, "up")

    def close(self):
        """As a power cut: all of the node's processes go with its first, and its mounts with them."""
        kill(self.first)
        for process in [*self.processes, self.holder]:
            process.end()
        self.processes, self.agent = [], None

    def reboot(self):
        """After close(): nothing runs there."""
        self.boot()
        self.lab.desk.write(self.lab)


class Desk(Session):
    """A place outside of all nodes, for a coordinator that reaches them without a network: the launcher `on`
    goes into their namespaces."""

    def __init__(self, lab):
        super().__init__(fresh=True)
        shutil.rmtree(self.folder)
        self.folder = lab.path("desk")
        os.mkdir(self.folder)
        self.environment["HOME"] = self.folder
        for name in [name for name in self.environment if name.startswith("LIEN_")]:
            del self.environment[name]
        self.on = self.path("on")
        self.write(lab)

    def write(self, lab):
        """Where the nodes are now."""
        with open(self.on, "w") as file:
            file.write("#!/bin/sh\n# on NODE COMMAND...\ncase $1 in\n%s*) echo no node $1 >&2; exit 1 ;;\nesac\n"
                       "export PATH=%s HOME=/root\nshift\nexec nsenter --target $pid --mount --pid --net --ipc "
                       "--uts --wd=/ -- \"$@\"\n" % (
                           "".join("%s) pid=%d ;;\n" % (node.name, node.first) for node in lab), PATH))
        os.chmod(self.on, 0o755)

    def run(self, argv, limit=GUARD, text=None, **environment):
        return run(argv, limit, self.env(**environment), text)


class Lab:
    """Nodes node1, node2, ...; each has so many devices, of so much memory."""

    def __init__(self, nodes=3, devices=2, memory="512M"):
        self.folder = tempfile.mkdtemp(prefix="lien-lab-")
        os.chmod(self.folder, 0o755)
        self.nodes = []
        self.desk = None
        self.closing = []
        self.switch = Process(["unshare", "--net", "--kill-child", "--fork", "sleep", "infinity"])
        self.bridge = wait_for("the switch", self._switch_pid)
        try:
            try:
                self._switch("link", "add", "bridge", "type", "bridge")
            except Failure as failure:
                raise Skipped("no bridges here: %s" % failure) from None
            self._switch("link", "set", "bridge", "up")
            binds = self._files(nodes)
            for number in range(nodes):
                self.nodes.append(Node(self, number, devices, memory, binds))
            self.desk = Desk(self)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        problems = []
        try:
            for end in reversed(self.closing):
                end()
            problems = [node.stop_agent(quiet=True) for node in self.nodes]
        finally:
            self.close()
        problems = [problem for problem in problems if problem]
        if problems and not kind:
            check(False, "; ".join(problems))
        if problems:
            print("   (%s)" % "; ".join(problems))

    def __getitem__(self, number):
        return self.nodes[number]

    def __iter__(self):
        return iter(self.nodes)

    def __len__(self):
        return len(self.nodes)

    @property
    def names(self):
        return ",".join(node.name for node in self.nodes)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def close(self):
        for node in self.nodes:
            node.close()
        for process in self.desk.processes if self.desk else ():
            process.end()
        self.switch.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self, count):
        """What nodes have in /etc instead of the machine's: pairs to be mounted."""
        os.mkdir(self.path("etc"))
        for name in ("passwd", "group", "shadow"):
            shutil.copy("/etc/" + name, self.path("etc", name))
        with open(self.path("etc", "hosts"), "w") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            for number in range(1, count + 1):
                hosts.write("%s%d node%d\n" % (NETWORK, number, number))
        binds = [[self.path("etc", name), "/etc/" + name] for name in os.listdir(self.path("etc"))]
        if os.path.exists("/etc/ssh/ssh_config"):
            with open(self.path("etc", "ssh_config"), "w"):
                binds.append([self.path("etc", "ssh_config"), "/etc/ssh/ssh_config"])
        return binds

    def _switch_pid(self):
        def network(pid):
            return os.stat("/proc/%s/ns/net" % pid).st_ino
        child = children_of(self.switch.pid)
        return child[0] if child and network(child[0]) != network("self") else None

    def _switch(self, *args):
        must(["nsenter", "--target", str(self.bridge), "--net", "--", "ip", *args])

    def wire(self, node):
        def is_gone():
            with contextlib.suppress(Failure):
                self._switch("link", "show", node.name)
                return False
            return True
        wait_for("the old link of %s has gone" % node.name, is_gone)  # some time after its namespace
        self._switch("link", "add", node.name, "type", "veth", "peer", "name", INTERFACE, "netns",
                     str(node.first))
        self._switch("link", "set", node.name, "master", "bridge", "up")

    def link(self, node, state):
        self._switch("link", "set", node.name, state)

    def start_agents(self, *args, **environment):
        for node in self.nodes:
            node.start_agent(*args, "--library", SYNC, **environment)

    def used(self):
        return sum(node.used() for node in self.nodes)


class LabTrain(Train):
    """A training job with so many ranks on each node."""

    def __init__(self, lab, each=2, seed=1, iterations=0,  # pylint: disable=super-init-not-called
                 pace=300, control=True, library=SYNC, prefix=(), **environment):
        self.lab, self.each, self.within = lab, each, True
        self.nranks, self.seed = each * len(lab), seed
        self.ranks = [
            self.node(rank).spawn(
                [*prefix, *([LIEN, "run", "--"] if control else []), program("prog_train"), library, rank, self.nranks,
                 rank % each % self.node(rank).device_count, seed, iterations, pace],
                NCCL_SOCKET_IFNAME=INTERFACE, **environment)
            for rank in range(self.nranks)]
        self.meet()

    def node(self, rank):
        return self.lab[rank // self.each]

    def pids_on(self, node):
        """Of the ranks there, as the node says them."""
        return [pid for rank, pid in enumerate(self.said_pids) if self.node(rank) is node]

    def living_on(self, node):
        return [pid for pid in self.pids_on(node) if node.is_alive(pid)]

    def kill(self, rank, number=signal.SIGKILL):
        """A signal to a rank, however it was started."""
        self.node(rank).run(["kill", "-%d" % number, self.said_pids[rank]])

    def ready(self):
        """Waits until all take orders."""
        for node in self.lab:
            node.ready(*self.pids_on(node))


@contextlib.contextmanager
def training(lab, each=2, **more):
    """Agents on all nodes, and a job with so many ranks on each that takes orders. When the block is over, it is
    stopped, and its results are compared with what they must be."""
    lab.start_agents()
    job = LabTrain(lab, each, **more)
    job.ready()
    yield job
    job.stop()
    job.finish()
