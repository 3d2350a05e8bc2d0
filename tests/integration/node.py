# SPDX-License-Identifier: BSD-2-Clause
"""The first process of a node of the lab (lab.py), in new namespaces that unshare(1) has made.

    node.py OPTIONS

OPTIONS is JSON: `name`, the host's; `binds`, pairs of what is mounted, and where. /run, and the file
system of pinned BPF objects, are the node's own. It says "ready". When it is killed, the node is
gone, as after a power cut.
"""

import json
import signal
import socket
import sys

from container import MS_BIND, MS_REC, mount

MS_PRIVATE = 1 << 18


def main():
    options = json.loads(sys.argv[1])
    socket.sethostname(options["name"])
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", b"proc", 0)
    mount("tmpfs", "/run", b"tmpfs", 0, b"mode=755")
    mount("bpf", "/sys/fs/bpf", b"bpf", 0)
    for source, target in options["binds"]:
        mount(source, target, None, MS_BIND)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries
    print("ready", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
