# SPDX-License-Identifier: BSD-2-Clause
"""What a kernel boots into: an initramfs of busybox, this Python, lien, the software driver and the tests."""

import os
import re
import stat
import subprocess
import sys
import sysconfig

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUSYBOX = ("/bin/busybox", "/usr/bin/busybox")
INIT = os.path.join(ROOT, "tests", "kernels", "init")
# Folders of Python's library without which the tests do.
UNUSED = re.compile("site-packages|dist-packages|test|tests|idlelib|ensurepip|lib2to3|tkinter|turtledemo|pydoc_data"
                    "|distutils|config-.*")


class NoBusybox(Exception):
    pass


class Archive:
    """A cpio archive in the "newc" format, which the kernel unpacks (its Documentation/driver-api/early-userspace/
    buffer-format.rst)."""

    def __init__(self, file):
        self.file = file
        self.known = set()

    def _entry(self, path, mode, data=b"", device=(0, 0), mtime=0):
        name = path.lstrip("/").encode() + b"\0"
        fields = (len(self.known), mode, 0, 0, 1, mtime, len(data), 0, 0, *device, len(name), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        self.file.write(header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4))

    def _new(self, path):
        if path in self.known or path == "/":
            return False
        self.folder(os.path.dirname(path))
        self.known.add(path)
        return True

    def folder(self, path):
        if self._new(path):
            self._entry(path, stat.S_IFDIR | 0o755)

    def console(self, path):
        if self._new(path):
            self._entry(path, stat.S_IFCHR | 0o600, device=(5, 1))

    def link(self, path, target):
        if self._new(path):
            self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def add(self, source, path=None):
        """A file, and every link on the way to it, at their places here unless path says otherwise."""
        path = path or os.path.abspath(source)
        if os.path.islink(source):
            target = os.readlink(source)
            self.add(os.path.join(os.path.dirname(source), target), os.path.join(os.path.dirname(path), target))
            self.link(path, target)
        elif self._new(path):
            with open(source, "rb") as file:
                data = file.read()
            found = os.stat(source)
            # Python compares the time of a source with the one in what it has compiled from it.
            self._entry(path, stat.S_IFREG | stat.S_IMODE(found.st_mode), data, mtime=int(found.st_mtime))

    def tree(self, source, path, wanted=lambda name: True):
        for name in sorted(os.listdir(source)):
            inner = os.path.join(source, name)
            if not wanted(name):
                continue
            if os.path.isdir(inner):
                self.tree(inner, os.path.join(path, name), wanted)
            else:
                self.add(inner, os.path.join(path, name))

    def end(self):
        self._entry("TRAILER!!!", 0)


def libraries(*files):
    """The shared libraries that they need, and the one that glibc opens by itself when a thread is ended."""
    said = subprocess.run(["ldd", *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    found = set(re.findall(r"(/\S+) \(0x", said.stdout))
    folders = {os.path.dirname(path) for path in found if os.path.basename(path) == "libc.so.6"}
    unwinders = (os.path.join(folder, "libgcc_s.so.1") for folder in folders)
    return sorted(found | set(filter(os.path.exists, unwinders)))


def add_python(archive):
    archive.add(os.path.realpath(sys.executable))
    archive.link("/bin/python3", os.path.realpath(sys.executable))
    library = sysconfig.get_path("stdlib")
    archive.tree(library, library, lambda name: not UNUSED.fullmatch(name) and ".opt-" not in name)
    modules = os.path.join(library, "lib-dynload")
    used = [os.path.realpath(sys.executable)] + [
        os.path.join(modules, name) for name in os.listdir(modules) if name.endswith(".so")]
    for path in libraries(*used):
        archive.add(path)


def add_tests(archive, build):
    """lien as in its repository, in /lien, with what tests/integration/lien_test.py needs."""
    for name in ("lien", "liblien-control.so", "softcuda/libcuda.so.1", "tests/integration/alone/libnccl.so.2",
                 "tests/integration/prog_train", "tests/integration/prog_driver",
                 "tests/integration/sync/libnccl.so.2"):
        source = os.path.join(build, name)
        archive.add(source, os.path.join("/lien/build", name))
        for path in libraries(source):
            if path.startswith(("/lib", "/usr")):
                archive.add(path)
    for folder in ("tests/integration", "tests/kernels", "tests/lien_shared", "include/lien"):
        archive.tree(os.path.join(ROOT, folder), os.path.join("/lien", folder),
                     lambda name: name.endswith((".py", ".h")))


def make(path, build):
    """Writes it; returns its path."""
    busybox = next((name for name in BUSYBOX if os.path.exists(name)), None)
    if not busybox:
        raise NoBusybox("busybox is not installed (Debian: busybox-static)")
    with open(path + ".new", "wb") as file:
        archive = Archive(file)
        for folder in ("/dev", "/proc", "/sys", "/tmp", "/run", "/root"):
            archive.folder(folder)
        archive.console("/dev/console")
        archive.add(busybox, "/bin/busybox")
        archive.add(INIT, "/init")
        add_python(archive)
        add_tests(archive, build)
        archive.end()
    os.replace(path + ".new", path)
    return path
