# SPDX-License-Identifier: BSD-2-Clause
"""Sessions in which several users have processes. Users are numbers that need not be in
/etc/passwd."""

import json
import os
import subprocess
import sys

from lien_test import LIEN, MIB, ROOT, Driver, Session, check, program

ALICE, BOB, CAROL = 54321, 54322, 54323


class Shared(Session):
    """Whose folder and devices other users may use."""

    def __init__(self, **more):
        super().__init__(**more)
        os.chmod(self.folder, 0o755)
        os.mkdir(self.devices, 0o755)
        self.first = None

    def start_agent(self, *args, **environment):
        agent = super().start_agent(*args, **environment)
        if not self.first:  # root makes the devices
            self.first = self.driver(control=False)
            for number in range(self.device_count):
                os.chmod(os.path.join(self.devices, str(number)), 0o1777)
        return agent

    def of_user(self, uid, **more):
        """A driver of that user."""
        process = self.spawn_as(uid, [LIEN, "run", "--", program("prog_driver")], **more)
        driver = Driver(process)
        driver("init", 0)
        return driver

    def spawn_as(self, uid, argv, **environment):
        return self.spawn([sys.executable, "-c",
                           "import os,sys; os.setgid(%d); os.setgroups([]); os.setuid(%d); "
                           "os.execv(sys.argv[1], sys.argv[1:])" % (uid, uid), *argv], **environment)

    def lien_as(self, uid, *args):
        def drop():
            os.setgid(uid)
            os.setgroups([])
            os.setuid(uid)
        return subprocess.run([LIEN, *map(str, args)], env=self.env(), preexec_fn=drop, text=True,
                              capture_output=True, timeout=60, check=False)

    def ask_as(self, uid, *args):
        outcome = self.lien_as(uid, args[0], "--json", *args[1:])
        # `check` ends with 1 where it finds something, and an offload where nothing can be moved
        done = outcome.returncode == 0 or args[0] == "check" or "nothing was moved" in outcome.stderr
        check(done, "%s as %d: %s%s" % (
            args, uid, outcome.stdout, outcome.stderr))
        return json.loads(outcome.stdout)

    def refused_as(self, uid, text, *args):
        outcome = self.lien_as(uid, *args)
        check(outcome.returncode in (1, 2) and text in outcome.stderr, "%s as %d: %d %s%s" % (
            args, uid, outcome.returncode, outcome.stdout, outcome.stderr))
        return outcome.stderr


def with_memory(driver, value):
    handle, va = driver("make", 2 * MIB, 0)
    driver("fill", va, 2 * MIB, value)
    return handle, va


def impostor(session, how, **more):
    """A process with such a library, of another user; root's is honest."""
    folder = session.path("impostor")
    library = folder + "/liblien-control.so"
    if not os.path.exists(library):
        os.mkdir(folder, 0o755)
        subprocess.run([os.environ.get("CC") or "cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall",
                        "-Werror", "-shared", "-fPIC", "-pthread", "-Iinclude",
                        "tests/integration/impostor.c", "-o", library],
                       cwd=ROOT, check=True, timeout=60)
    process = session.spawn_as(BOB, ["/usr/bin/env", "LD_PRELOAD=" + library, "IMPOSTOR=" + how,
                                     *("%s=%s" % pair for pair in more.items()),
                                     program("prog_driver")])
    driver = Driver(process)
    driver("init", 0)
    with_memory(driver, 1)
    return driver
