#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A process that starts a set-user-id program in the middle of an injection: nothing is written into
that program, at any of the injection's steps. No agent takes part."""

import os

from lien_test import case, check, equal, main
from inject import Session, injector, ready

USER = 54324
CALLS_MAX = 400
AT_ONCE = 6


class Attempt:
    """An injection, and the start of the program before the injector's call of this number."""

    def __init__(self, session, number, files):
        self.number = number
        starter, victim, suid = files
        self.process = ready(session.spawn([victim, suid]))
        self.injector = injector(self.process.pid, env={
            "LD_PRELOAD": starter, "CALL": str(number), "WHO": str(self.process.pid),
            "PROGRAM": suid})

    def started(self):
        """False: the injector has made no such call."""
        with self.injector as other:
            said = other.communicate(timeout=60)[0]
        if said.startswith("ok ") and not pending(self.process.pid):
            self.process.end()
            return False
        equal(self.process.line(), "program 0", "the program, at call %d" % self.number)
        self.process.send("")
        answer = self.process.line()
        check(answer.startswith("ok ") and int(answer.split()[1]) > 3,
              "at call %d the program says: %s; the injector said: %s" % (
                  self.number, answer, said))
        self.process.end()
        return True


@case(long=True)
def test_set_user_id_program_at_each_call():
    with Session() as session:
        os.chmod(session.folder, 0o755)
        if os.statvfs(session.folder).f_flag & os.ST_NOSUID:
            print("   skipped: set-user-id programs do not work in %s" % session.folder)
            return
        files = (session.compile("libstarter.so", "exec_starter.c", "-shared", "-fPIC"),
                 session.compile("victim", "exec_victim.c", "-DUSER=%d" % USER, "-pthread"),
                 session.compile("program", "exec_program.c"))
        os.chmod(files[2], 0o4755)
        started = 0
        for first in range(0, CALLS_MAX, AT_ONCE):  # an injector waits most of the time
            attempts = [Attempt(session, first + number, files) for number in range(AT_ONCE)]
            found = [attempt.started() for attempt in attempts]
            started += sum(found)
            if not all(found):
                break
        else:
            check(False, "more than %d calls" % CALLS_MAX)
        check(started > 20, "at %d calls only" % started)
    print("   at each of %d calls" % started)


def pending(pid):
    """Whether it has been told to start its program, or has."""
    with open("/proc/%d/status" % pid) as status:
        text = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
    return int(text["ShdPnd"], 16) & 1 << 9 or text["Name"] == "program"


if __name__ == "__main__":
    raise SystemExit(main())
