# SPDX-License-Identifier: BSD-2-Clause
"""A program on a terminal: what its screen shows, and keys for it.

The terminal understands only what its description (terminfo) has: moving the cursor, clearing, and
reverse. tic of ncurses-bin compiles that.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import threading
import time

from lien_shared.process import GUARD

DESCRIPTION = r"""lien-test|the terminal of lien's tests,
	cols#80, lines#24,
	clear=\E[H\E[2J, cup=\E[%i%p1%d;%p2%dH, rev=\E[7m, sgr0=\E[m,
	kcuu1=\E[A, kcud1=\E[B, kpp=\E[5~, knp=\E[6~, khome=\E[H, kend=\E[F,
"""
KEYS = {"up": "\x1b[A", "down": "\x1b[B", "pgup": "\x1b[5~", "pgdn": "\x1b[6~", "home": "\x1b[H",
        "end": "\x1b[F", "enter": "\r", "esc": "\x1b", "ctrl-c": "\x03"}
SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


def describe(directory):
    """The environment with which a program finds the terminal's description."""
    source = os.path.join(directory, "terminal.ti")
    with open(source, "w", encoding="utf-8") as file:
        file.write(DESCRIPTION)
    subprocess.run(["tic", "-x", "-o", os.path.join(directory, "terminfo"), source], check=True)
    return {"TERM": "lien-test", "TERMINFO": os.path.join(directory, "terminfo")}


class Terminal:
    def __init__(self, argv, env, columns=80, lines=24):
        self.master, slave = pty.openpty()
        self.changed = threading.Condition()
        self.text = ""
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.resize(columns, lines)
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True, preexec_fn=self._control)
        threading.Thread(target=self._read, daemon=True).start()

    @staticmethod
    def _control():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, columns, lines):
        with self.changed:
            self.columns, self.lines = columns, lines
            self.cells = [[" "] * columns for _ in range(lines)]
            self.reversed = set()
            self.row = self.column = 0
            self.attribute = False
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self):
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            with self.changed:
                self.text += data.decode("ascii", "replace")
                self._show()
                self.changed.notify_all()

    def _show(self):
        while self.text:
            if self.text[0] == "\x1b":
                match = SEQUENCE.match(self.text)
                if not match:
                    if len(self.text) < 16:
                        return  # the rest is to come
                    raise ValueError("the terminal has no %r" % self.text[:16])
                self._command(match[1], match[2])
                self.text = self.text[match.end():]
                continue
            self._put(self.text[0])
            self.text = self.text[1:]

    def _command(self, numbers, letter):
        values = [int(n) for n in numbers.split(";") if n]
        if letter == "H":
            self.row, self.column = [v - 1 for v in values] or [0, 0]
        elif letter == "J":
            self.cells = [[" "] * self.columns for _ in range(self.lines)]
            self.reversed = set()
        elif letter == "m":
            self.attribute = 7 in values

    def _put(self, letter):
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.row = min(self.row + 1, self.lines - 1)
        elif letter == "\b":
            self.column -= 1
        elif self.row < self.lines and self.column < self.columns:
            self.cells[self.row][self.column] = letter
            (self.reversed.add if self.attribute else self.reversed.discard)(self.row)
            self.column += 1

    def screen(self):
        return ["".join(row).rstrip() for row in self.cells]

    def selected(self):
        """The lines shown in reverse."""
        return [self.screen()[row] for row in sorted(self.reversed)]

    def wait(self, condition, what, limit=GUARD):
        """Until condition(self) is true of the screen."""
        end = time.monotonic() + limit
        with self.changed:
            while not condition(self):
                left = end - time.monotonic()
                assert left > 0, "not within %d s: %s\n%s" % (limit, what, "\n".join(self.screen()))
                self.changed.wait(left)

    def shows(self, *words):
        self.wait(lambda t: all(any(w in line for line in t.screen()) for w in words), words)

    def shows_not(self, word):
        self.wait(lambda t: not any(word in line for line in t.screen()), "gone: " + word)

    def key(self, *names):
        for name in names:
            os.write(self.master, KEYS.get(name, name).encode())

    def ended(self, limit=GUARD):
        """The exit code; the terminal must be as it was."""
        code = self.process.wait(limit)
        while select.select([self.master], [], [], 0.2)[0]:
            time.sleep(0.05)
            if not self.text:
                break
        after = termios.tcgetattr(self.slave)
        assert after == self.before, "the terminal was not put back: %s" % after
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)
