#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The Debian packages: made by `make deb`, installed, used, upgraded and removed in a root of their own, an
overlay over this machine's. Nothing on the machine itself changes.

See lien_test.py for what it needs.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile

from in_containers import why_no_overlay
from lien_test import (
    GUARD, LIEN, MIB, ROOT, Driver, Session, Skipped, case, check, children_of, equal, main, program, run, unmount_below,
    wait_for)

PACKAGES = ["liblien-dev", "lien", "lien-control"]
NEXT = "9.9"  # another version, to upgrade to
SYSTEMD = "/lib/systemd/systemd"
# What dpkg and its scripts keep of their own.
DPKGS = ("/var/lib/dpkg/", "/var/log/", "/var/cache/", "/tmp/")

# The root in namespaces of its own; as init either systemd, which starts the unit alone, or nothing that a
# package could ask.
INSIDE = r"""
set -e
cd "$1"
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs run
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t bpf bpf sys/fs/bpf
mount --rbind /dev dev
mount --bind "$2" "$1$2"
mount --bind "$3" "$1$3"
mount -t cgroup2 cgroup2 sys/fs/cgroup
pivot_root . mnt
umount -l mnt
if [ "$4" = systemd ]; then
	units=/run/systemd/system
	mkdir -p $units/lien-agent.service.d
	cat > $units/lien-agent.service.d/test.conf <<EOF
[Unit]
DefaultDependencies=no
[Service]
ExecStart=
ExecStart=/usr/bin/lien agent --on-stop keep --no-prepare
StandardError=append:$3/agent.log
EOF
	printf '[Unit]\nDefaultDependencies=no\n' > $units/lien-test.target
	exec /lib/systemd/systemd --system --unit=lien-test.target --log-target=console --show-status=no
fi
touch /run/started
exec sleep infinity
"""


class Root:
    def __init__(self, session, init):
        if why_no_overlay():
            raise Skipped(why_no_overlay())
        layers = session.path("layers")
        os.mkdir(layers)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", layers], check=True)
        self.upper, self.merged = layers + "/upper", layers + "/merged"
        for name in ("upper", "work", "merged"):
            os.mkdir(os.path.join(layers, name))
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", "lowerdir=/,upperdir=%s,workdir=%s/work" % (
            self.upper, layers), self.merged], check=True)
        for rest in ("/usr/sbin/policy-rc.d", "/usr/local/bin/lien"):  # of an image, of the machine
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.merged + rest)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.merged + "/var/lib/man-db/auto-update")  # takes long
        for folder in (ROOT, session.folder):
            os.makedirs(self.merged + folder, exist_ok=True)
        outer = session.spawn(["unshare", "-m", "-p", "-f", "-C", "--kill-child", "sh", "-c", INSIDE, "sh",
                               self.merged, ROOT, session.folder, init], container="lien-test")

        def ready():
            check(outer.popen.poll() is None, "no root: " + outer.said())
            found = children_of(outer.pid)
            started = "/run/systemd/private" if init == "systemd" else "/run/started"
            return found and os.path.exists("/proc/%d/root%s" % (found[0], started)) and found[0]
        self.init = wait_for("the root is there", ready)
        self.before = set(self.files())
        self.enter = ["nsenter", "-t", str(self.init), "-m", "-p", "-r", "-w"]

    def files(self):
        """What differs from the machine's, except directories and what dpkg keeps for itself."""
        for folder, _, names in os.walk(self.upper):
            for name in names:
                path = os.path.join(folder, name)[len(self.upper):]
                if not path.startswith(DPKGS):
                    yield path

    def left(self):
        return sorted(set(self.files()) - self.before)

    def attempt(self, *argv, **environment):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **environment}
        return run([*self.enter, *argv], 60, env)

    def __call__(self, *argv, **environment):
        done = self.attempt(*argv, **environment)
        check(done.code == 0, done)
        return done.out

    def dpkg(self, *argv):
        return self("dpkg", "--force-unsafe-io", *argv)


_made = []


def made():
    """{package: file}; made once."""
    if not shutil.which("dpkg-deb") or not shutil.which("dpkg-shlibdeps"):
        raise Skipped("there is no dpkg-dev here")
    if not _made:
        _made.append(tempfile.mkdtemp(prefix="lien-test-"))
        os.chmod(_made[0], 0o755)
        subprocess.run(["make", "-s", "-C", ROOT, "-o", "all", "deb", "DEB=" + _made[0] + "/deb",
                        "BUILD=" + os.path.relpath(os.path.dirname(LIEN), ROOT)],
                       check=True, capture_output=True, timeout=GUARD)
    place = _made[0] + "/deb"
    found = {file.split("_")[0]: os.path.join(place, file) for file in os.listdir(place)}
    equal(sorted(found), PACKAGES, "packages")
    return found


def versions(session):
    """Two of them, to upgrade, where a root has them: {package: file} each."""
    first, then = {}, {}
    for package, path in made().items():
        first[package] = shutil.copy(path, session.folder)
        place = session.path(package)
        subprocess.run(["dpkg-deb", "-R", path, place], check=True)
        subprocess.run(["sed", "-i", "s/^Version: .*/Version: %s/; s/(= .*)/(= %s)/" % (NEXT, NEXT),
                        place + "/DEBIAN/control"], check=True)
        then[package] = place + ".deb"
        subprocess.run(["dpkg-deb", "-Znone", "-b", place, then[package]], check=True, capture_output=True)
    return first, then


def field(path, name):
    return subprocess.run(["dpkg-deb", "-f", path, name], check=True, capture_output=True, text=True).stdout.strip()


def version_here():
    with open(os.path.join(ROOT, "include", "lien", "version.h")) as file:
        return re.search(r'LIEN_VERSION "(.*)"', file.read())[1]


def numbers(text):
    return tuple(map(int, text.split(".")))


@contextlib.contextmanager
def session_with(init):
    with Session() as session:
        os.chmod(session.folder, 0o755)
        try:
            yield session, Root(session, init)
        finally:
            for process in session.processes:
                process.end()
            unmount_below(session.folder)


@case(long=True)
def test_what_is_in_them():
    """Each file is where Debian has its like, in one package, with its checksum; none needs a newer glibc than
    promised."""
    with open(os.path.join(ROOT, "tests", "check_symbols.sh")) as file:
        floors = re.findall(r'^check "\$\d" (\S+)$', file.read(), re.M)
    with Session() as session:
        owners = {}
        packages = made()
        for package, path in packages.items():
            equal(field(path, "Version"), version_here(), "version of " + package)
            place = session.path(package)
            subprocess.run(["dpkg-deb", "-R", path, place], check=True)
            with open(place + "/DEBIAN/md5sums") as file:
                sums = [line.split()[1] for line in file]
            files = [os.path.relpath(os.path.join(folder, name), place) for folder, _, names in os.walk(place)
                     for name in names if not folder.endswith("/DEBIAN")]
            links = [name for name in files if os.path.islink(os.path.join(place, name))]
            equal(sorted(sums), sorted(set(files) - set(links)), "md5sums of " + package)
            for name in links:
                check(os.path.exists(os.path.join(place, name)), "a link to nothing:", name)
            subprocess.run(["md5sum", "--quiet", "-c", "DEBIAN/md5sums"], cwd=place, check=True)
            check("usr/share/doc/%s/copyright" % package in files, "no copyright file in", package)
            glibc = re.findall(r"libc6 \(>= (\S+)\)", field(path, "Depends"))
            equal(glibc, {"lien": floors[:1], "lien-control": floors[1:]}.get(package, []), "glibc of " + package)
            for name in files:
                check(name.startswith("usr/") and name not in owners, name, owners.get(name))
                owners[name] = package
                with open(os.path.join(place, name), "rb") as file:
                    data = file.read()
                if data[:4] != b"\x7fELF":
                    check(b"/usr/local/" not in data or not name.endswith((".service", ".pc")), name)
                    continue
                dump = subprocess.run(["objdump", "-p", os.path.join(place, name)], check=True, capture_output=True,
                                      text=True).stdout
                newest = max(map(numbers, re.findall(r"GLIBC_([\d.]+)", dump)))
                check(newest <= numbers(glibc[0]), name, newest)
        for name, package in {"usr/bin/lien": "lien", "usr/bin/lien-replay": "lien",
                              "usr/share/man/man1/lien.1.gz": "lien",
                              "usr/share/bash-completion/completions/lien": "lien",
                              "usr/share/zsh/vendor-completions/_lien": "lien",
                              "usr/share/fish/vendor_completions.d/lien.fish": "lien",
                              "usr/lib/systemd/system/lien-agent.service": "lien",
                              "usr/lib/lien/liblien-control.so": "lien-control",
                              "usr/lib/lien/softcuda/libcuda.so.1": "lien",
                              "usr/lib/python3/dist-packages/lien/__init__.py": "lien-control",
                              "usr/include/lien/client.h": "liblien-dev", "usr/lib/liblien.a": "liblien-dev",
                              "usr/lib/pkgconfig/lien.pc": "liblien-dev"}.items():
            equal(owners.get(name), package, "who has " + name)
        if "usr/bin/lien-exporter" in owners:
            check("libmicrohttpd" in field(packages["lien"], "Recommends"), field(packages["lien"], "Recommends"))
            check("libmicrohttpd" not in field(packages["lien"], "Depends"), field(packages["lien"], "Depends"))


@case(long=True)
def test_install_upgrade_remove():
    """Where no systemd runs, as in a container: all of it works from there, and nothing is left."""
    with session_with("none") as (session, root):
        first, then = versions(session)
        root.dpkg("-i", *first.values())
        equal(root("lien", "--version").split(), ["lien", version_here()], "lien --version")
        check("GPU memory" in root("man", "-P", "cat", "lien"), "the manual")
        check("Usage" in root("lien-replay", "--help"), "lien-replay")
        equal(root("lien", "run", "--", "sh", "-c", "echo $LD_PRELOAD").strip(), "/usr/lib/lien/liblien-control.so",
              "what lien run preloads")
        found = root("/usr/bin/python3", "-c", "import lien, importlib.metadata as m;"
                     "print(lien.__file__, lien.__version__, m.version('lien'))").split()
        equal(found, ["/usr/lib/python3/dist-packages/lien/__init__.py", version_here(), version_here()],
              "import lien")
        check("-llien" in root("pkg-config", "--libs", "lien"), "pkg-config")
        equal(root("dpkg", "--verify", *PACKAGES), "", "dpkg --verify")
        root.dpkg("-i", *then.values())
        shown = "${Version} ${db:Status-Status}\n"
        equal(set(root("dpkg-query", "-W", "-f", shown, *PACKAGES).splitlines()), {NEXT + " installed"}, "upgraded")
        refused = root.attempt("dpkg", "-r", "lien-control")
        check(refused.code != 0 and "depends on lien-control" in refused.err, "the agent without it", refused)
        root.dpkg("-r", *PACKAGES)
        root.dpkg("-P", *PACKAGES)
        equal(root.left(), [], "left")
        equal(root.attempt("dpkg-query", "-W", *PACKAGES).out, "", "what dpkg knows")


@case(long=True)
def test_under_systemd():
    """The agent starts when it is installed. An upgrade restarts it, while memory is offloaded; a removal is
    refused until that is back, and then takes lien out of running jobs, which go on."""
    if not os.path.exists(SYSTEMD):
        raise Skipped("there is no systemd here")
    with session_with("systemd") as (session, root):
        first, then = versions(session)

        def answers():
            return root.attempt("lien", "status").code == 0

        def refused(*why):
            done = root.attempt("dpkg", "-r", "lien")
            check(done.code != 0 and "lien restore" in done.err, *why, done)
        root.dpkg("-i", *first.values())
        equal(root("systemctl", "is-enabled", "lien-agent").strip(), "enabled", "at boot")
        equal(root.attempt("systemctl", "is-enabled", "lien-exporter").out.strip(), "disabled", "the exporter")
        wait_for("the agent answers", answers)
        driver = Driver(session.spawn([*root.enter, program("prog_driver")]))
        driver("init", 0)
        va = driver("make", 2 * MIB, 0)[1]
        driver("fill", va, 2 * MIB, 0x35)
        pid = str(driver.inner_pid)
        wait_for("it is known", lambda: '"pid": %s' % pid in root("lien", "ps", "--json"))
        root("lien", "attach", pid)
        check("2.0 MiB" in root("lien", "offload", "--owner", "all", "--pid", pid), "offload")
        agent = root("systemctl", "show", "-p", "MainPID", "lien-agent")
        root.dpkg("-i", *then.values())
        check(root("systemctl", "show", "-p", "MainPID", "lien-agent") != agent, "the agent of before")
        wait_for("the next one answers", answers)
        refused("while it is offloaded")
        check(answers(), "the agent was stopped")
        root("systemctl", "stop", "lien-agent")
        refused("without an agent")
        root("systemctl", "restart", "lien-agent")
        wait_for("one answers", answers)
        check("2.0 MiB" in root("lien", "restore"), "restore")
        equal(driver("check", va, 2 * MIB, 0x35), 0, "wrong bytes")
        root.dpkg("-r", *PACKAGES)
        equal(root.attempt("pgrep", "-x", "lien").out, "", "the agent runs")
        pinned = "/proc/%d/root/sys/fs/bpf/lien" % root.init
        equal(os.listdir(pinned) if os.path.exists(pinned) else [], [], "what is pinned")
        equal(driver("check", va, 2 * MIB, 0x35), 0, "wrong bytes after the removal")
        root.dpkg("-P", *PACKAGES)
        equal(root.left(), [], "left")


if __name__ == "__main__":
    raise SystemExit(main())
