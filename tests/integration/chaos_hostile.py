#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A user who floods whatever the agent keeps for all: until killed.

    chaos_hostile.py SEED FOLDER LIEN PROG_DRIVER LIBCUDA

The environment says where the agent and the driver are.
"""

import contextlib
import mmap
import os
import random
import shutil
import socket
import subprocess
import sys
import time

QUESTIONS = [b'{"op":"check"}\n', b'{"op":"mem","by":"stack"}\n', b'{"op":"graph"}\n', b'{"op":"ps"}\n',
             b'{"op":"offload","dry_run":true,"owner":"all"}\n', b'{"op":"holders","pid":1,"address":1}\n',
             b'{"op":"restore"}\n', b'{"op":"mem"', b"\0\n", b"[" * 5000 + b"\n"]


class Hostile:
    def __init__(self, seed, folder, lien, prog_driver, libcuda):
        self.rng = random.Random(seed)
        self.folder, self.lien, self.prog_driver, self.libcuda = folder, lien, prog_driver, libcuda
        self.open, self.mapped, self.copies = [], [], 0

    def do_ask(self):
        """Many questions at once over many connections, of which few answers are read."""
        for _ in range(self.rng.randint(1, 40)):
            with contextlib.suppress(OSError):
                connection = socket.socket(socket.AF_UNIX)
                self.open.append(connection)
                connection.setblocking(False)
                connection.connect(os.environ["LIEN_SOCKET"])
                connection.send(b"".join(self.rng.choices(QUESTIONS, k=self.rng.randint(1, 400))))
        time.sleep(self.rng.random() * 0.5)
        for connection in self.open:
            with contextlib.suppress(OSError):
                if self.rng.random() < 0.3:
                    connection.recv(1 << 16)

    def do_hang_up(self):
        for connection in self.open:
            connection.close()
        self.open.clear()

    def do_map(self):
        """Files that pass for the driver."""
        for _ in range(self.rng.randint(1, 20)):
            self.copies += 1
            place = os.path.join(self.folder, str(self.copies % 200))
            os.makedirs(place, exist_ok=True)
            path = os.path.join(place, "libcuda.so.1")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            shutil.copy(self.libcuda, path)
            with open(path, "rb") as file:
                self.mapped.append(mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE,
                                             mmap.PROT_READ | mmap.PROT_EXEC))
        if len(self.mapped) > 150:
            self.mapped.clear()

    def do_calls(self):
        """Threads, exports and allocations without number."""
        with subprocess.Popen([self.lien, "run", "--", self.prog_driver], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            process.stdin.write("init 0\ncreate 2097152 0\n")
            process.stdin.flush()
            handle = [process.stdout.readline() for _ in range(3)][2].split()[-1:] or ["0"]
            process.communicate("\n".join([
                *["thread"] * self.rng.randint(1, 300), "many 16 0",
                "export-often %s %d" % (*handle, self.rng.randint(1, 3000))]) + "\n")

    def run(self):
        steps = [self.do_ask, self.do_ask, self.do_hang_up, self.do_map, self.do_calls]
        while os.getppid() != 1:
            self.rng.choice(steps)()
            time.sleep(self.rng.random() * 0.2)


if __name__ == "__main__":
    Hostile(int(sys.argv[1]), *sys.argv[2:]).run()
