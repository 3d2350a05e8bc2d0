# SPDX-License-Identifier: BSD-2-Clause
"""How users start processes on the nodes of a lab: sshd on each, with keys made for the test, and Slurm
(munged and slurmd on each, slurmctld on the first). All of it runs in the nodes alone."""

import contextlib
import os
import re
import shutil
import subprocess

from lab import INTERFACE, PATH, LabTrain
from lien_test import LIEN, Skipped, check, program, wait_for
from train_job import SYNC

SSHD = "/usr/sbin/sshd"
SSH = (SSHD, "ssh", "ssh-keygen")
SLURM = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue")


def needs(*names):
    for name in names:
        if not shutil.which(name, path=PATH):
            raise Skipped("%s is not installed" % name)


class Ssh:
    """Root of any node reaches all by `ssh NAME`."""

    def __init__(self, lab, banner=None):
        needs(*SSH)
        os.mkdir(lab.path("ssh"))
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", lab.path("ssh", key)],
                           check=True)
        with open(lab.path("ssh", "sshd_config"), "w") as config:
            config.write("HostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\nPidFile none\n"
                         "PermitRootLogin yes\nSetEnv PATH=%s\nMaxStartups 100\n" % (
                             lab.path("ssh", "host"), lab.path("ssh", "user.pub"), PATH))
            if banner:
                config.write("Banner %s\n" % banner)
        with open(lab.path("etc", "ssh_config"), "w") as config:
            config.write("BatchMode yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
                         "LogLevel ERROR\nConnectTimeout 10\nIdentityFile %s\n" % lab.path("ssh", "user"))
        self.lab = lab
        for node in lab:
            self.start(node)

    def start(self, node):
        """Also after the node was booted anew."""
        os.makedirs(node.outside("/run/sshd"), mode=0o755, exist_ok=True)
        node.spawn([SSHD, "-D", "-e", "-f", self.lab.path("ssh", "sshd_config")])
        wait_for("sshd of %s answers" % node.name, lambda: node.run(
            ["ssh", node.name, "true"]).code == 0)


class Slurm:
    def __init__(self, lab):
        needs(*SLURM)
        self.lab = lab
        os.mkdir(lab.path("slurm"))
        os.mkdir(lab.path("slurm", "state"))
        with open(lab.path("slurm", "munge.key"), "wb") as key:
            key.write(os.urandom(128))
        os.chmod(key.name, 0o400)
        self.conf = lab.path("slurm", "slurm.conf")
        with open(self.conf, "w") as conf:
            conf.write("""
ClusterName=lab
SlurmctldHost=%(first)s
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=%(folder)s/state
SlurmdSpoolDir=%(folder)s/spool-%%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=%(folder)s/slurmctld.log
SlurmdLogFile=%(folder)s/slurmd-%%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=300
NodeName=%(names)s CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
""" % {"first": lab[0].name, "folder": lab.path("slurm"), "names": lab.names})
        for node in lab:
            node.environment.update(SLURM_CONF=self.conf)
            self.start_node(node)
        lab[0].spawn(["slurmctld", "-D", "-f", self.conf])
        wait_for("slurmctld has all nodes", self._all_idle, step=0.2)

    def start_node(self, node):
        for folder in ("/run/munge", self.lab.path("slurm", "munge-" + node.name)):
            os.makedirs(node.outside(folder), mode=0o755, exist_ok=True)
        own = self.lab.path("slurm", "munge-" + node.name)
        node.spawn(["munged", "--foreground", "--force", "--key-file=" + self.lab.path("slurm", "munge.key"),
                    "--log-file=%s/log" % own, "--seed-file=%s/seed" % own, "--pid-file=%s/pid" % own])
        wait_for("munged of %s" % node.name, lambda: os.path.exists(
            node.outside("/run/munge/munge.socket.2")))
        node.spawn(["slurmd", "-D", "-f", self.conf])

    def _all_idle(self):
        done = self.lab[0].run(["sinfo", "-h", "-N", "-o", "%t"])
        return done.out.split() == ["idle"] * len(self.lab)

    def allocate(self, hours=1):
        """A job that holds all nodes; its id."""
        script = self.lab.path("slurm", "hold.sh")
        with open(script, "w") as file:
            file.write("#!/bin/sh\nexec sleep %d\n" % (3600 * hours))
        done = self.lab[0].run(["sbatch", "-N", len(self.lab), "--parsable", "-o", "/dev/null", script])
        check(re.fullmatch(r"\d+\s*", done.out), done)
        job = int(done.out)
        wait_for("job %d runs" % job, lambda: self.state(job) == "R", step=0.1)
        return job

    def state(self, job):
        return self.lab[0].run(["squeue", "-h", "-j", job, "-o", "%t"]).out.strip()

    def cancel(self, job):
        self.lab[0].run(["scancel", job])


class SlurmTrain(LabTrain):
    """A training job whose ranks srun starts, as steps of a Slurm job."""

    def __init__(self, lab, job, each=2, seed=1, iterations=0,  # pylint: disable=super-init-not-called
                 pace=300, **environment):
        self.lab, self.each, self.within, self.job = lab, each, True, job
        self.nranks, self.seed = each * len(lab), seed
        self.ranks = [
            lab[0].spawn(
                ["srun", "--jobid", job, "--overlap", "-N1", "-n1", "-w", self.node(rank).name, "--unbuffered",
                 LIEN, "run", "--", program("prog_train"), SYNC, rank, self.nranks, rank % each, seed,
                 iterations, pace],
                NCCL_SOCKET_IFNAME=INTERFACE, **environment)
            for rank in range(self.nranks)]
        self.meet()




@contextlib.contextmanager
def slurm_training(lab):
    """As lab.training(), with a job of Slurm. Yields the number of that one, too."""
    slurm = Slurm(lab)
    lab.start_agents()
    number = slurm.allocate()
    job = SlurmTrain(lab, number)
    job.ready()
    yield number, job
    job.stop()
    job.finish()
    slurm.cancel(number)
