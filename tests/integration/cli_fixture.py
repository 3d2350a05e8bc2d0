# SPDX-License-Identifier: BSD-2-Clause
"""A fake agent, and how test_cli*.py run `lien` against it."""

import functools
import json
import os
import socket
import tempfile
import threading
import time

from cli_answers import PROGRESS, RESULTS
from lien_test import LIEN, case, main, run

COLUMNS = 80


class Agent:
    """Listens on a socket; `answer` maps a request to what is sent back, bytes or JSON objects."""

    running = []

    def __init__(self, directory, answer=None, split=False):
        self.path = os.path.join(directory, "agent.sock")
        self.answer = answer or self.canned
        self.split = split
        self.requests = []
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()
        Agent.running.append(self)

    @staticmethod
    def canned(request):
        before = PROGRESS if request["op"] in ("offload", "restore") else []
        return before + [{"ok": True, "result": RESULTS[request["op"]]}]

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            for line in connection.makefile("rb"):
                request = json.loads(line)
                self.requests.append(request)
                reply = self.answer(request)
                if reply is None:
                    break
                if not isinstance(reply, bytes):
                    reply = b"".join(json.dumps(r).encode() + b"\n" for r in reply)
                if self.split:
                    for i in range(0, len(reply), 1000):
                        connection.sendall(reply[i:i + 1000])
                else:
                    connection.sendall(reply)
                if reply[-1:] != b"\n":
                    break
        except OSError:
            pass
        connection.close()

    def close(self):
        # close() alone would leave the thread in accept(), on a number that the next agent gets.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()
        Agent.running.remove(self)


class Context:
    def __init__(self, directory):
        self.directory = directory
        self.environment = {k: v for k, v in os.environ.items()
                            if k not in ("LIEN_SOCKET", "LIEN_CONTROL", "LD_PRELOAD")}
        self.environment["LIEN_SOCKET"] = os.path.join(directory, "none.sock")
        self.environment["COLUMNS"] = str(COLUMNS)

    def agent(self, answer=None, **options):
        agent = Agent(self.directory, answer, **options)
        self.environment["LIEN_SOCKET"] = agent.path
        return agent

    def path(self, name):
        return os.path.join(self.directory, name)

    def run(self, *arguments, code=0, **environment):
        done = run([LIEN, *arguments], 120, {**self.environment, **environment},
                   errors="surrogateescape")
        assert done.code == code or code is None, str(done)
        assert code or "Sanitizer" not in done.err and "runtime error" not in done.err, str(done)
        return done.out, done.err

    def fails(self, *arguments, code=1, words=(), **environment):
        """Fails with one line that begins with the command's name and has these words."""
        out, err = self.run(*arguments, code=code, **environment)
        if arguments[0] not in ("run", "top") and (
                "--json" in arguments or "--json=line" in arguments):
            said = json.loads(out)
            assert list(said) == ["error"] and said["error"] in err, (out, err)
        else:
            assert out == "", out
        assert err.endswith("\n") and err.count("\n") == 1, err
        assert err.startswith("lien %s: " % arguments[0]), err
        for word in words:
            assert word in err, "%r is not in %r" % (word, err)
        return err


def fits(text):
    for line in text.splitlines():
        assert len(line) <= COLUMNS, "%d columns: %s" % (len(line), line)
        assert line == line.rstrip(), "blanks at the end: %r" % line
        assert "\x1b" not in line, line
    return text


def variants(value):
    """The same reply with one member missing or of another type, for every member."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            for other in (None, 3, -1, 1 << 62, "x" * 300, [], {}, [None], [[]], [{}], 1.5):
                yield {**value, key: other}
            for variant in variants(value[key]):
                yield {**value, key: variant}
    elif isinstance(value, list) and value:
        for variant in variants(value[0]):
            yield [variant] + value[1:]


class Stream(Agent):
    """Keeps the connection open after the reply, sends its parts and then waits."""

    def __init__(self, directory, parts, end=False, forever=False):
        self.parts, self.end, self.forever = parts, end, forever
        super().__init__(directory)

    def serve(self, connection):
        try:
            request = connection.recv(65536)
            if not request:  # it only wanted to know whether we are there
                return
            self.requests.append(json.loads(request))
            connection.sendall(b'{"ok": true, "result": {"format": 3}}\n' + self.parts[0])
            for part in self.parts[1:]:
                time.sleep(0.05)
                connection.sendall(part)
            while self.forever:
                connection.sendall(self.parts[0])
            if not self.end:
                connection.recv(1)
        except OSError:
            pass
        connection.close()


def _in_a_folder(function):
    @functools.wraps(function)
    def run():
        with tempfile.TemporaryDirectory(prefix="lien-cli-") as folder:
            try:
                function(Context(folder))
            finally:
                for agent in Agent.running[:]:
                    agent.close()
    run.__name__ = function.__name__.removeprefix("case_")
    return run


def long(function):
    """A case of `make check-long`."""
    function.long = True
    return function


def run_cases(cases):
    """Runs the functions named case_*; the exit code."""
    for name, function in cases.items():
        if name.startswith("case_"):
            case(long=hasattr(function, "long"))(_in_a_folder(function))
    return main(agents=False)
