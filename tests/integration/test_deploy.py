#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""tools/deploy: everything that its files name exists, and the agent works with what they give it.

See lien_test.py for what it needs.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys

from in_containers import BOB, Containers, Image, Job, Kind
from lien_test import (
    CONTROL, FIXTURES, LIEN, MIB, ROOT, SOFTCUDA, Driver, Skipped, brief, case, check, children_of, equal, main,
    program, wait_for)

from nccl_rank import unique_id
from test_agent_ras import Adopted, Server, rank_of
from test_packages import made, session_with, version_here

DEPLOY = os.path.join(ROOT, "tools", "deploy")
UNIT = os.path.join(DEPLOY, "lien-agent.service")
SOCKET = "/run/lien/agent.sock"
CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2, "CAP_SETPCAP": 8, "CAP_SYS_PTRACE": 19,
                "CAP_SYS_ADMIN": 21, "CAP_SYS_RESOURCE": 24, "CAP_PERFMON": 38, "CAP_BPF": 39,
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
    equal(sorted(given), sorted({*re.findall(r"BIT\((\w+)\)", kept), "CAP_SETPCAP", "CAP_SYS_ADMIN"}),
          "CapabilityBoundingSet and what the agent keeps")
    equal(given - set(CAPABILITIES), set(), "capabilities that this test does not know")


@case()
def test_uninstall():
    """It leaves nothing of what was installed."""
    with Containers() as session:
        place = session.path("installed")

        def files():
            return [name for _, _, names in os.walk(place) for name in names]
        for target in "install", "uninstall":
            subprocess.run(["make", "-s", "-C", ROOT, "-o", "all", target, "PREFIX=" + place,
                            "BUILD=" + os.path.relpath(os.path.dirname(LIEN), ROOT)],
                           check=True, capture_output=True, timeout=60)
            check(bool(files()) == (target == "install"), target, files())


@case()
def test_unit_is_installed():
    """It is where it says that the program is, and systemd does not complain."""
    with Containers() as session:
        place = session.path("installed")
        subprocess.run(["make", "-s", "-C", ROOT, "-o", "all", "install", "PREFIX=" + place,
                        "BUILD=" + os.path.relpath(os.path.dirname(LIEN), ROOT)],
                       check=True, capture_output=True, timeout=60)
        has_exporter = os.path.exists(os.path.join(os.path.dirname(LIEN), "lien-exporter"))
        for name, program in [("lien-agent", "lien")] + [("lien-exporter", "lien-exporter")] * has_exporter:
            installed = "%s/lib/systemd/system/%s.service" % (place, name)
            path = shlex.split(re.search(r"^ExecStart=(.*)", text_of(installed), re.M)[1])[0]
            equal(path, place + "/bin/" + program, "ExecStart")
            check(os.access(path, os.X_OK), path, "is not there")
            if not shutil.which("systemd-analyze"):
                raise Skipped("there is no systemd-analyze here")
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", installed],
                                  capture_output=True, text=True, check=False, timeout=30)
            said = [line for line in done.stderr.splitlines() if name + ".service" in line]
            equal((done.returncode, said), (0, []), "systemd-analyze verify")


# systemd as init of a pid namespace, with its own /run and its own part of the cgroups. Nothing of the
# machine's is started: only the unit, and the private socket that systemctl talks to.
SYSTEMD = "/lib/systemd/systemd"
INIT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
units=/run/systemd/system
mkdir -p $units/lien-agent.service.d
cp "$1" $units/lien-agent.service
mkdir /run/program  # PrivateTmp and ProtectHome may hide where they lie
cp "$2" "$4" /run/program
cat > $units/lien-agent.service.d/test.conf <<EOF
[Unit]
DefaultDependencies=no
[Service]
ExecStart=
ExecStart=/run/program/lien agent --on-stop keep --no-prepare
StandardOutput=append:$3
StandardError=append:$3
EOF
printf '[Unit]\nDefaultDependencies=no\n' > $units/lien-test.target
exec %s --system --unit=lien-test.target --log-target=console --show-status=no
""" % SYSTEMD


@case()
def test_unit_under_systemd():
    """What it forbids, the agent does not need: it attaches, moves memory, and asks the RAS of a job in a
    network namespace of its own; and the next one knows what it knew."""
    if not os.path.exists(SYSTEMD):
        raise Skipped("there is no systemd here")
    with Containers() as session:
        log = session.path("agent.log")
        outer = session.spawn(["unshare", "-m", "-p", "-f", "-C", "--kill-child", "--mount-proc", "sh", "-c", INIT,
                               "sh", UNIT, LIEN, log, CONTROL], container="lien-test")
        init = wait_for("systemd is started", lambda: children_of(outer.pid))[0]
        root = "/proc/%d/root" % init
        wait_for("systemd answers", lambda: os.path.exists(root + "/run/systemd/private"))
        enter = ["nsenter", "-t", str(init), "-p", "-m"]

        def systemctl(*words):
            done = subprocess.run([*enter, "systemctl", *words], capture_output=True, text=True, timeout=60,
                                  check=False)
            check(done.returncode == 0, words, done.stdout + done.stderr,
                  text_of(log) if os.path.exists(log) else outer.said())
            return done.stdout
        server = Server(session, "--unshare", prefix=enter)
        inside = wait_for("the server is started", lambda: children_of(server.process.pid))[0]
        rank = Adopted(session, ["nsenter", "-t", inside, "-n", *enter])
        comm = rank.made("init-rank", 1, 0, unique_id(0xaa))
        server.say("json", {"hash": rank.hash(comm), "size": 1, "ranks": [rank_of(rank, 0, pid=rank.inner_pid)]})
        systemctl("start", "lien-agent")
        session.environment["LIEN_SOCKET"] = root + SOCKET
        wait_for("the agent is ready", lambda: " ready: " in text_of(log))
        equal(session.ask("status")["journal"]["problem"], None, "the journal")
        rank.call("all_reduce", comm)
        late = wait_for("RAS has answered", lambda: [
            entry for entry in session.ask("comms")["late"] if entry["ras"] == "answered"] or
            [entry for entry in session.ask("comms")["late"] if entry["problem"]])
        equal([(entry["pid"], entry["ras"], entry["problem"]) for entry in late],
              [(rank.inner_pid, "answered", None)], "NCCL's RAS")
        driver = Driver(session.spawn([*enter, program("prog_driver")]))
        driver("init", 0)
        va = driver("make", 2 * MIB, 0)[1]
        driver("fill", va, 2 * MIB, 0x35)
        wait_for("it is known", lambda: session.process(driver.inner_pid))
        equal(session.ask("attach", driver.inner_pid)["attached"], 1, "attached")
        equal(session.ask("offload", "--owner", "all", "--pid", driver.inner_pid)["bytes"], 2 * MIB, "offload")
        first = session.ask("status")["pid"]
        systemctl("restart", "lien-agent")
        wait_for("the next agent is ready", lambda: text_of(log).count(" ready: ") == 2)
        check(session.ask("status")["pid"] != first, "the same agent")
        session.ready(driver.inner_pid)
        equal(session.ask("restore")["bytes"], 2 * MIB, "restore by the next one")
        equal(driver("check", va, 2 * MIB, 0x35), 0, "wrong bytes")
        systemctl("stop", "lien-agent")
        check("Result=success" in systemctl("show", "-p", "Result", "lien-agent"), "how it ended")


@case()
def test_client_library_is_installed():
    """With it, its header and what pkg-config says, others make programs that ask the agent: also in a library
    of theirs, and against a staged installation."""
    with Containers() as session:
        place, stage = session.path("prefix"), session.path("stage")
        subprocess.run(["make", "-s", "-C", ROOT, "-o", "all", "install", "PREFIX=" + place, "DESTDIR=" + stage,
                        "BUILD=" + os.path.relpath(os.path.dirname(LIEN), ROOT)],
                       check=True, capture_output=True, timeout=60)
        check(not os.path.exists(place), "DESTDIR is not where it went")
        os.rename(stage + place, place)
        flags = shlex.split(subprocess.run(
            ["pkg-config", "--cflags", "--libs", "lien"], check=True, capture_output=True, text=True, timeout=20,
            env={**os.environ, "PKG_CONFIG_PATH": place + "/lib/pkgconfig"}).stdout)
        check("-llien" in flags and "-ljansson" in flags, flags)
        compiler, source = os.environ.get("CC") or "cc", os.path.join(FIXTURES, "client.c")
        session.start_agent()
        driver = session.driver()
        driver("make", 2 * MIB, 0)
        session.ready(driver.pid)
        for more in ([], ["-shared", "-fPIC", "-Wl,-z,defs"]):
            made = session.path("client")
            subprocess.run([compiler, "-Wall", "-Werror", "-std=c11", *more, source, "-o", made, *flags],
                           check=True, timeout=60)
            if not more:
                done = subprocess.run([made], capture_output=True, text=True, env=session.env(), check=False,
                                      timeout=20)
                equal((done.returncode, done.stdout.split()), (0, [str(driver.pid)]), "its answer")


def another_users_job(session):
    """It is seen from its first call on, given the control library, and moved."""
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
                 session.agent.popen.poll() is not None)
        check(session.agent.popen.poll() is None, "it ended: %s" % brief(session.agent.said()))
        status = session.ask("status")
        equal((status["journal"]["problem"], status["journal"]["pinned"] is None), (None, False),
              "the journal")
        another_users_job(session).end(session)


@case()
def test_agent_confined_as_in_the_unit():
    """The capabilities that it has there, and a file system that it cannot write to: by other means
    than systemd's, which need not run here."""
    for mounted, script in TRACING.items():
        print("   %s is mounted" % mounted)
        confined_agent(script)


def instruction(name):
    """The arguments of the Dockerfile's one line that begins so."""
    found = re.findall(r"^%s (.*)$" % name, text_of(DEPLOY, "Dockerfile"), re.M)
    equal(len(found), 1, "lines with " + name)
    return found[0]


def listed(name):
    """Such a line in JSON's form."""
    return re.findall(r'"(.*?)"', instruction(name))


@case()
def test_image():
    """Files are where the build puts them; what `docker run` mounts is what the DaemonSet does."""
    text = text_of(DEPLOY, "Dockerfile")
    known_to_the_agent(listed("CMD"), "CMD")
    folder = re.search(r"^#\s+docker build .* (\S+)$", text, re.M)[1]
    docs = text_of(ROOT, "docs", "containers.md")
    check("make deb && " + re.search(r"^#\s+(docker build .*)$", text, re.M)[1] in docs, "docs/containers.md")
    check(re.search(r"^DEB\s+\?= \$\(BUILD\)/%s$" % os.path.basename(folder), text_of(ROOT, "Makefile"), re.M),
          "`make deb` has another folder than", folder)
    line = re.search(r"^#\s+docker run ((?:.*\\\n)*.*)", text, re.M)[1]
    words = re.sub(r"\\\n#\s*", "", line).split()
    check("--privileged" in words and "--pid host" in " ".join(words), words)
    mounted = {tuple(words[at + 1].split(":")) for at, word in enumerate(words) if word == "-v"}
    shown = re.sub(r"\\\n\s*", "", re.search(r"^    docker run ((?:.*\\\n)*.*)", docs, re.M)[1])
    equal(shown.split(), words, "docs/containers.md and Dockerfile")
    found = manifests()
    if found:
        pod = found["DaemonSet"]["spec"]["template"]["spec"]
        places = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
        equal({(places[mount["name"]], mount["mountPath"])
               for mount in pod["containers"][0]["volumeMounts"]
               if mount["mountPath"] != DRIVER}, mounted, "mounted by Kubernetes and Docker")


@case(long=True)
def test_image_is_of_the_packages():
    """COPY and RUN, in a root of their own without a network and with no more of the machine's than dpkg needs; then
    ENTRYPOINT is there, of a package, and finds the control library."""
    *patterns, place = instruction("COPY").split()
    packages = made()
    copied = {os.path.basename(path): path for pattern in patterns for path in packages.values()
              if fnmatch.fnmatch(os.path.basename(path), pattern)}
    equal(sorted(name.split("_")[0] for name in copied), ["lien", "lien-control"], "COPY")
    with session_with("none") as (_, root):
        os.makedirs(root.merged + place)
        for path in copied.values():
            shutil.copy(path, root.merged + place)
        root("unshare", "-n", "/bin/sh", "-c", instruction("RUN"))
        check(not os.path.exists(root.merged + place.rstrip("/")), place, "is left")
        entry, = listed("ENTRYPOINT")
        equal(root("dpkg", "-S", entry).split(), ["lien:", entry], "whose ENTRYPOINT is")
        equal(root(entry, "--version").split(), ["lien", version_here()], "ENTRYPOINT --version")
        equal(root(entry, "run", "--", "sh", "-c", "echo $LD_PRELOAD").strip(), "/usr/lib/lien/liblien-control.so",
              "the control library")
        equal(root("sh", "-c", "command -v lien").strip(), entry, "`lien`, as the DaemonSet's probe calls it")


@case()
def test_manifest_is_right():
    found = manifests()
    if not found:
        raise Skipped("Python has no yaml here")
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


@case(long=True)
def test_agent_in_its_pod():
    """A root with what the packages bring and libc, and what the manifest mounts: the next Pod goes on."""
    found = manifests()
    if not found:
        raise Skipped("Python has no yaml here")
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    places = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)  # goes with the namespace
    os.makedirs(os.path.dirname(SOCKET))
    with Containers(LIEN_SOCKET=SOCKET) as session:
        session.socket = SOCKET
        binds = [[SOFTCUDA if mount["mountPath"] == DRIVER else places[mount["name"]],
                  mount["mountPath"]] for mount in container["volumeMounts"]]
        for package in "lien", "lien-control":
            subprocess.run(["dpkg-deb", "-x", made()[package], session.path("packages")], check=True)
        entry, = listed("ENTRYPOINT")
        image = Image(session, "agent", {place: session.path("packages") + place
                                         for place in (entry, "/usr/lib/lien/liblien-control.so")},
                      [os.path.dirname(SOCKET), DRIVER])
        kind = Kind("--mount", "--net", "--ipc", "--uts")

        def start():
            agent = image.run(kind, [entry, *container["args"]], {}, binds=binds,
                              sys=True)
            wait_for("the agent is ready", lambda: " ready: " in agent.said() or
                     agent.popen.poll() is not None)
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
