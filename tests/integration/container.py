# SPDX-License-Identifier: BSD-2-Clause
"""The inside of a container, as a runtime makes it: what unshare(1) starts in new namespaces.

    container.py OPTIONS PROGRAM...

OPTIONS is JSON: `root`, the directory that becomes the root; `layers`, null or a folder, with which
the root becomes the lower layer of an overlay; `binds`, pairs of what is mounted inside, and where;
`proc`, `sys`, `readonly`, `noexec` (of /tmp), `filter` (Docker's, more or less); `user`, null or who
makes a user namespace in which no id is mapped; `environment`.
"""

import ctypes
import json
import os
import struct
import sys

CLONE_NEWUSER = 0x10000000
MS_RDONLY, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 8, 32, 4096, 16384
MNT_DETACH = 2
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_EPERM = 0x7fff0000, 0x00050001
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
SYS_PIVOT_ROOT = 155
# ptrace, mount, mbind, set_mempolicy, get_mempolicy, keyctl, unshare, move_pages, perf_event_open,
# setns, process_vm_readv, kcmp, bpf, userfaultfd, io_uring_setup, pidfd_getfd
REFUSED = (101, 165, 237, 238, 239, 250, 272, 279, 298, 308, 310, 312, 321, 323, 425, 438)

libc = ctypes.CDLL(None, use_errno=True)


def must(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def mount(source, target, kind, flags, data=None):
    must(libc.mount(source.encode(), target.encode(), kind, flags, data), target)


def overlay(lower, folder):
    upper, work, merged = (os.path.join(folder, name) for name in ("upper", "work", "merged"))
    for place in (upper, work, merged):
        os.makedirs(place, exist_ok=True)
    mount("overlay", merged, b"overlay", 0,
          ("lowerdir=%s,upperdir=%s,workdir=%s" % (lower, upper, work)).encode())
    return merged


def confine(refused=REFUSED):
    code = [(LOAD, 0, 0, 0)]
    code += [(EQUAL, len(refused) - at, 0, number) for at, number in enumerate(refused)]
    code += [(RETURN, 0, 0, RET_ALLOW), (RETURN, 0, 0, RET_EPERM)]
    image = b"".join(struct.pack("<HBBI", *line) for line in code)
    held = ctypes.create_string_buffer(image, len(image))
    program = struct.pack("<H6xQ", len(code), ctypes.addressof(held))
    must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    must(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0), "seccomp")


def main():
    options, argv = json.loads(sys.argv[1]), sys.argv[2:]
    root = options["root"]
    if options["layers"]:
        root = overlay(root, options["layers"])
    else:
        mount(root, root, None, MS_BIND | MS_REC)
    if options["proc"]:
        mount("proc", root + "/proc", b"proc", 0)
    if options["sys"]:
        mount("sysfs", root + "/sys", b"sysfs", 0)
    for source, target in options["binds"]:
        mount(source, root + target, None, MS_BIND | MS_REC)
    if options["noexec"]:
        mount(root + "/tmp", root + "/tmp", None, MS_BIND)
        mount("none", root + "/tmp", None, MS_REMOUNT | MS_BIND | MS_NOEXEC)
    if options["readonly"]:
        mount("none", root, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chdir(root)
    must(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    must(libc.umount2(b".", MNT_DETACH), "the old root")
    os.chdir("/")
    if options["user"] is not None:
        os.setgroups([])
        os.setgid(options["user"])
        os.setuid(options["user"])
        must(libc.unshare(CLONE_NEWUSER), "a user namespace")
    if options["filter"]:
        confine()
    os.execve(argv[0], argv, options["environment"])


if __name__ == "__main__":
    main()
