#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""tools/deploy: what its files name is there, and the agent works with what they give it.

See lien_test.py for what it needs.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys

from in_containers import BOB, Containers, Image, Job, Kind
from lien_test import (
    CONTROL, LIEN, ROOT, SOFTCUDA, Driver, brief, case, check, children_of, equal, main, program,
    wait_for)

DEPLOY = os.path.join(ROOT, "tools", "deploy")
UNIT = os.path.join(DEPLOY, "lien-agent.service")
SOCKET = "/run/lien/agent.sock"
CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5, "CAP_SETPCAP": 8, "CAP_SYS_PTRACE": 19,
                "CAP_SYS_RESOURCE": 24, "CAP_PERFMON": 38, "CAP_BPF": 39,
                "CAP_CHECKPOINT_RESTORE": 40}
# What only a node of that kind has.
DRIVER = "/usr/local/nvidia/lib64"


def text_of(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def unit():
    """{name: [values]}"""
    found = {}
    for line in text_of(UNIT).splitlines():
        if re.match(r"\w+=", line):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def manifests():
    """By kind, or None."""
    try:
        import yaml  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("   skipped: Python has no yaml here")
        return None
    text = text_of(DEPLOY, "kubernetes-daemonset.yaml")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def known_to_the_agent(words, where):
    """Options that `lien agent --help` lists."""
    said = subprocess.run([LIEN, "agent", "--help"], capture_output=True, text=True,
                          check=True).stdout
    equal(words[0], "agent", where)
    for word in words[1:]:
        check(re.search(r"^  %s\b" % re.escape(word.split("=")[0]), said, re.M) or
              not word.startswith("-"), "%s: `lien agent` has no %s" % (where, word))
    return said


@case()
def test_unit_is_right():
    found = unit()
    words = shlex.split(found["ExecStart"][0])
    said = known_to_the_agent(words[1:], "ExecStart")
    check(SOCKET in said, "another socket by default: %s" % said)
    equal("/run/" + found["RuntimeDirectory"][0], os.path.dirname(SOCKET), "RuntimeDirectory")
    equal(found["RuntimeDirectoryPreserve"], ["yes"], "what the next agent needs")
    kept = re.search(r"#define KEPT(.*?)\n\n", text_of(ROOT, "agent", "core", "privileges.c"), re.S)[1]
    given = set(" ".join(found["CapabilityBoundingSet"]).split())
    equal(sorted(given), sorted({*re.findall(r"BIT\((\w+)\)", kept), "CAP_SETPCAP"}),
          "CapabilityBoundingSet and what the agent keeps")
    equal(given - set(CAPABILITIES), set(), "capabilities that this test does not know")


@case()
def test_unit_is_installed():
    """Where it says that the program is; and systemd has nothing to say against it."""
    with Containers() as session:
        place = session.path("installed")
        subprocess.run(["make", "-s", "-C", ROOT, "-o", "all", "install", "PREFIX=" + place,
                        "BUILD=" + os.path.relpath(os.path.dirname(LIEN), ROOT)],
                       check=True, capture_output=True, timeout=60)
        installed = place + "/lib/systemd/system/lien-agent.service"
        path = shlex.split(re.search(r"^ExecStart=(.*)", text_of(installed), re.M)[1])[0]
        equal(path, place + "/bin/lien", "ExecStart")
        check(os.access(path, os.X_OK), path, "is not there")
        if not shutil.which("systemd-analyze"):
            print("   skipped: there is no systemd-analyze here")
            return
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", installed],
                              capture_output=True, text=True, check=False, timeout=30)
        said = [line for line in done.stderr.splitlines() if "lien-agent.service" in line]
        equal((done.returncode, said), (0, []), "systemd-analyze verify")


def another_users_job(session):
    """Seen from its first call on, given the control library, moved: what an agent is there for."""
    driver = Driver(session.spawn(["setpriv", "--reuid", BOB, "--regid", BOB, "--clear-groups",
                                   program("prog_driver")]))
    driver("init", 0)
    job = Job(driver)
    equal(session.known(job.pid)["complete"], True, "complete")
    equal(session.ask("attach", job.pid)["attached"], 1, "attached")
    session.moved_twice(job, size=job.size)
    equal(session.ask("check")["open_files_known"], True, "open files")
    return job


# What a machine may have mounted where the kernel shows its tracepoints. Nothing, on a minimal one.
TRACING = {"nothing": "for at in tracing debug; do [ ! -d /sys/kernel/$at ] || mount -t tmpfs none /sys/kernel/$at; done",
           "tracefs": "mount -t tracefs tracefs /sys/kernel/tracing",
           "debugfs": "mount -t debugfs debugfs /sys/kernel/debug"}


def confined_agent(tracing):
    """The agent needs nothing of TRACING, and may not mount it."""
    with Containers() as session:
        numbers = ",".join("+cap_%d" % CAPABILITIES[name]
                           for name in " ".join(unit()["CapabilityBoundingSet"]).split())
        script = """
set -e
%s
mount --bind "$1" "$1"
mount -o remount,bind,ro /
mount -o remount,bind,ro /sys
mount -t tmpfs tmpfs /home
shift
exec "$@"
""" % tracing
        session.agent = session.spawn([
            "unshare", "--mount", "sh", "-c", script, "sh", session.folder, "setpriv",
            "--bounding-set=-all," + numbers, "--inh-caps=-all", "--no-new-privs",
            LIEN, "agent", "--no-prepare", "--no-attach"])
        wait_for("the agent is ready", lambda: " ready: " in session.agent.said() or
                 session.agent.popen.poll() is not None, 20)
        check(session.agent.popen.poll() is None, "it ended: %s" % brief(session.agent.said()))
        status = session.ask("status")
        equal((status["journal"]["problem"], status["journal"]["pinned"] is None), (None, False),
              "the journal")
        another_users_job(session).end(session)


@case(120)
def test_agent_confined_as_in_the_unit():
    """The capabilities that it has there, and a file system that it cannot write to: by other means
    than systemd's, which need not run here."""
    for mounted, script in TRACING.items():
        print("   %s is mounted" % mounted)
        confined_agent(script)


@case()
def test_image():
    """Files are where the build puts them; what `docker run` mounts is what the DaemonSet does."""
    text = text_of(DEPLOY, "Dockerfile")
    copied = re.search(r"^COPY (.*) (\S+)$", text, re.M)
    equal(sorted(copied[1].split()), sorted([os.path.basename(LIEN), "lien-replay", os.path.basename(CONTROL)]),
          "COPY")
    equal(re.search(r'^ENTRYPOINT \["(.*)"\]', text, re.M)[1], copied[2] + "lien", "ENTRYPOINT")
    known_to_the_agent(re.findall(r'"(.*?)"', re.search(r"^CMD (.*)", text, re.M)[1]), "CMD")
    line = re.search(r"^#\s+docker run ((?:.*\\\n)*.*)", text, re.M)[1]
    words = re.sub(r"\\\n#\s*", "", line).split()
    check("--privileged" in words and "--pid host" in " ".join(words), words)
    mounted = {tuple(words[at + 1].split(":")) for at, word in enumerate(words) if word == "-v"}
    docs = text_of(ROOT, "docs", "containers.md")
    shown = re.sub(r"\\\n\s*", "", re.search(r"^    docker run ((?:.*\\\n)*.*)", docs, re.M)[1])
    equal(shown.split(), words, "docs/containers.md and Dockerfile")
    found = manifests()
    if found:
        pod = found["DaemonSet"]["spec"]["template"]["spec"]
        places = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
        equal({(places[mount["name"]], mount["mountPath"])
               for mount in pod["containers"][0]["volumeMounts"]
               if mount["mountPath"] != DRIVER}, mounted, "mounted by Kubernetes and Docker")


@case()
def test_manifest_is_right():
    found = manifests()
    if not found:
        return
    daemons, namespace = found["DaemonSet"], found["Namespace"]["metadata"]["name"]
    pod = daemons["spec"]["template"]["spec"]
    container, = pod["containers"]
    equal(daemons["metadata"]["namespace"], namespace, "namespace")
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    equal(daemons["spec"]["selector"]["matchLabels"], labels, "labels")
    equal((pod["hostPID"], container["securityContext"]), (True, {"privileged": True}), "rights")
    known_to_the_agent(container["args"], "args")
    equal(sorted(mount["name"] for mount in container["volumeMounts"]),
          sorted(volume["name"] for volume in pod["volumes"]), "volumes")
    probe = container["readinessProbe"]["exec"]["command"]
    check(os.path.exists(os.path.join(ROOT, "tools", "cli", "cmd_%s.c" % probe[1])), "no command", probe)
    check(DRIVER in text_of(ROOT, "loader", "discover", "libraries.c"), "the agent does not look into", DRIVER)


@case(60)
def test_agent_in_its_pod():
    """A root with two files and their libc, and what the manifest mounts: the next Pod goes on."""
    found = manifests()
    if not found:
        return
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    places = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)  # goes with the namespace
    os.makedirs(os.path.dirname(SOCKET))
    with Containers(LIEN_SOCKET=SOCKET) as session:
        session.socket = SOCKET
        binds = [[SOFTCUDA if mount["mountPath"] == DRIVER else places[mount["name"]],
                  mount["mountPath"]] for mount in container["volumeMounts"]]
        image = Image(session, "agent", {"/opt/lien/lien": LIEN,
                                         "/opt/lien/liblien-control.so": CONTROL},
                      [os.path.dirname(SOCKET), DRIVER])
        kind = Kind("--mount", "--net", "--ipc", "--uts")

        def start():
            agent = image.run(kind, ["/opt/lien/lien", *container["args"]], {}, binds=binds,
                              sys=True)
            wait_for("the agent is ready", lambda: " ready: " in agent.said() or
                     agent.popen.poll() is not None, 20)
            check(agent.popen.poll() is None, "it ended: %s" % brief(agent.said()))
            return agent
        agent = start()
        job = another_users_job(session)
        os.kill(children_of(agent.pid)[0], 9)
        agent.wait()
        agent = start()
        equal(session.process(job.pid)["complete"], True, "complete, to the next Pod")
        session.moved_twice(job, size=job.size)
        job.end(session)
        os.kill(children_of(agent.pid)[0], 15)
        equal(agent.wait(), 0, "exit status of the agent")


if __name__ == "__main__":
    sys.exit(main())
