#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Tries lien in other kernels than the one that is there: Debian's, under qemu without KVM. Each boots into an
initramfs (initramfs.py), runs the cases (guest.py) and turns itself off.

    check_kernels.py [--only CASE]... [--image FILE]... [KERNEL...]

What is downloaded and what the kernels say stays in $BUILD/kernels. Prints what the cases say, and "N passed, N
failed[, N skipped]" at the end; a kernel that cannot be had is skipped. Exit status 77: none could be had.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import initramfs
import packages

KERNELS = {"6.1": "bookworm", "6.12": "bookworm-backports"}  # Debian's suite
QEMU = "qemu-system-x86_64"
LIMIT_S = 500
MEMORY_MIB = 2048
CONSOLE_LINES = 60


def boot(image, archive, console, only):
    """What the cases in it say, a line at a time."""
    words = ["console=ttyS0", "quiet", "panic=-1", *("only=" + name for name in only)]
    argv = [QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB), "-nodefaults",
            "-no-reboot", "-display", "none", "-kernel", image, "-initrd", archive, "-append", " ".join(words),
            "-serial", "file:" + console, "-serial", "stdio"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace") as machine:
        late = threading.Timer(LIMIT_S, machine.kill)
        late.start()
        try:
            yield from (line.rstrip("\r\n") for line in machine.stdout)
        finally:
            late.cancel()
            machine.kill()


def counts(lines):
    """(passed, failed) in a kernel that has said all, else None."""
    said = re.search(r"^(\d+) passed, (\d+) failed\nexit status [01]$", "\n".join(lines), re.M)
    return (int(said[1]), int(said[2])) if said else None


def try_kernel(name, image, archive, folder, only):
    """(passed, failed)"""
    console = os.path.join(folder, "console-%s.log" % name)
    began, lines = time.monotonic(), []
    for line in boot(image, archive, console, only):
        lines.append(line)
        print("%s: %s" % (name, line), flush=True)
    took = time.monotonic() - began
    passed, failed = counts(lines) or (0, 0)
    if failed or not passed:
        if not failed:
            failed = 1
            print("%s: FAILED: it did not say how any case ended%s" % (
                name, ", within %d s" % LIMIT_S if took >= LIMIT_S else ""))
        with open(console, errors="replace") as file:
            print("%s: the end of %s:" % (name, console))
            print("".join("    " + line for line in file.readlines()[-CONSOLE_LINES:]))
    print("%s: %.0f s" % (name, took), flush=True)
    return passed, failed


def chosen(options, folder):
    """(name, path of the image), or (name, why there is none)"""
    for name in options.kernels or ([] if options.image else KERNELS):
        try:
            yield name, packages.image(name, KERNELS[name], folder), None
        except packages.Unavailable as why:
            yield name, None, str(why)
    for path in options.image:
        yield os.path.basename(path).removeprefix("vmlinuz-"), path, None


def parsed():
    parser = argparse.ArgumentParser(description="Tries lien in other kernels, under qemu.")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="of Debian's: " + ", ".join(KERNELS))
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a kernel of any other origin")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only these cases")
    options = parser.parse_args()
    for name in options.kernels:
        if name not in KERNELS:
            parser.error("no kernel %s: one of %s" % (name, ", ".join(KERNELS)))
    return options


def main():
    options = parsed()
    build = os.path.abspath(os.environ.get("BUILD") or os.path.join(initramfs.ROOT, "build"))
    folder = os.path.join(build, "kernels")
    os.makedirs(folder, exist_ok=True)
    if not shutil.which(QEMU):
        print("skipped: %s is not installed" % QEMU)
        return 77
    try:
        archive = initramfs.make(os.path.join(folder, "initramfs.cpio"), build)
    except initramfs.NoBusybox as error:
        print("skipped: %s" % error)
        return 77
    passed = failed = 0
    missing = []
    for name, image, why in chosen(options, folder):
        if why:
            missing.append("kernel %s cannot be had: %s" % (name, why))
            print("skipped: " + missing[-1], flush=True)
            continue
        ok, bad = try_kernel(name, image, archive, folder, options.only)
        passed, failed = passed + ok, failed + bad
    if not passed and not failed:
        return 77
    print("%d passed, %d failed%s" % (passed, failed, ", %d skipped" % len(missing) if missing else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
