#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Handle values that the driver reuses, and libraries that get its functions late.

prog_late.c loads libraries while it runs. Each gets the driver's functions in its own way (late.c). The
software driver reuses the value that was freed last first.
"""

import os
import shutil
import sys

from lien_test import (
    CONTROL, LIEN, MIB, SOFTCUDA, Driver, Session, Skipped, case, check, equal, main, program, wait_for)

SIZE = 2 * MIB
WAYS = ["direct", "now", "dlsym", "proc", "proc_v1"]  # heap: not found by who comes later


def library(way):
    return os.path.join(os.path.abspath(os.environ["TEST_BIN"]), "late", "liblate_%s.so" % way)


class Job:
    """A process and its libraries, by way; `preloaded`: it was started by `lien run`."""

    def __init__(self, session, *ways, preloaded=True, **environment):
        prefix = [LIEN, "run", "--"] if preloaded else []
        self.session, self.libraries = session, {}
        self.driver = Driver(session.spawn([*prefix, program("prog_late")], **environment))
        self.pid = self.driver.pid
        for way in ways:
            self.load(way)

    def load(self, way):
        self.libraries[way] = self.driver("load", library(way))
        self.driver("init", self.libraries[way], 0)

    def __call__(self, command, way, *args):
        return self.driver(command, self.libraries[way], *args)

    def make(self, way, value):
        """(handle, address) of memory that is full of a value."""
        handle = self("create", way, SIZE, 0)
        va = self("show", way, SIZE, handle, 0)
        self("fill", way, va, SIZE, value)
        return handle, va

    def offload(self):
        self.session.ask("offload", "--owner", "all", "--pid", self.pid)

    def restore(self):
        self.session.ask("restore")

    def wake(self, way, handle):
        """A call starts its control thread: calls go on until it takes orders."""
        def is_ready():
            self("unmap", way, self("show", way, SIZE, handle, 0), SIZE)
            return self.session.process(self.pid)["control"] == "ready"
        if self.session.known(self.pid)["control"] != "ready":
            wait_for("process %d takes orders" % self.pid, is_ready)

    def rename(self, way, value=0x11):
        """Memory whose handle has been renamed. The driver's next new handle has the value that the application
        knows it by."""
        handle, va = self.make(way, value)
        self.wake(way, handle)
        self.offload()
        other = self("create", way, SIZE, 0)
        self.restore()
        check(other != handle, "a handle with two meanings")
        self("release", way, other)
        return handle, va

    def whole(self, way, handle, va, value=0x11):
        """The handle still means what is at the address, and that is as it was."""
        equal(self("check", way, va, SIZE, value), 0, "wrong bytes")
        alias = self("show", way, SIZE, handle, 0)
        equal(self("check", way, alias, SIZE, value), 0, "wrong bytes by handle")
        self("fill", way, alias, SIZE, value ^ 0xff)
        equal(self("check", way, va, SIZE, value ^ 0xff), 0, "not the same memory")
        self("fill", way, va, SIZE, value)
        self("unmap", way, alias, SIZE)


def separate(job, one, way_of_one, other, way_of_other):
    """Each of two handles means memory of its own."""
    check(one[0] != other[0], "one handle for two allocations")
    job.whole(way_of_one, *one)
    job.whole(way_of_other, *other)


# Preloaded: everything that is asked for is ours

@case(long=True)
def test_late_libraries():
    """A library that is loaded after a restore may get the functions in any way."""
    for way in WAYS + ["heap"]:
        with Session() as session:
            session.start_agent()
            job = Job(session, "direct")
            first = job.rename("direct")
            if way == "direct":
                job.load("now")
            else:
                job.load(way)
            later = "now" if way == "direct" else way
            second = (*job.make(later, 0x22), 0x22)
            separate(job, first, "direct", second, later)
            job.offload()
            job.restore()
            separate(job, first, "direct", second, later)
            for used, (handle, va, *_) in (("direct", first), (later, second)):
                job("unmap", used, va, SIZE)
                job("release", used, handle)
            equal(session.used(), 0, "device memory in use at the end, %s" % way)


@case()
def test_multicast():
    """A multicast object's handle is translated like any other."""
    with Session() as session:
        session.start_agent()
        job = Job(session, "direct")
        first = job.rename("direct")
        multicast = job("multicast", "direct", SIZE, 0)
        check(multicast != first[0], "one handle for memory and a multicast object")
        job.whole("direct", *first)
        fresh = job("create", "direct", SIZE, 0)
        job("bind", "direct", multicast, fresh, SIZE)  # neither is what the driver calls it
        job("release", "direct", multicast)
        job("release", "direct", fresh)
        job.whole("direct", *first)


@case()
def test_who_called():
    """The graph names the library that called, not the control library."""
    with Session() as session:
        session.start_agent()
        job = Job(session, *WAYS)
        for way in WAYS:
            job.make(way, 1)
        session.ready(job.pid)
        owners = {row["owner"]: row["allocations"] for row in session.ask("mem")["rows"]}
        equal(owners, {"late_" + way: 1 for way in WAYS}, "owners")
        sites = [row["key"] for row in session.ask("mem", "--by", "callsite")["rows"]]
        equal(len(sites), len(WAYS), "call sites")
        for way in WAYS:
            check(any("liblate_%s.so" % way in site for site in sites), way, sites)


@case()
def test_copy_of_the_library():
    """A copy of the control library that the agent has never seen, in a process that calls at once."""
    with Session() as session:
        session.start_agent()
        copy = session.path("liblien-control.so")
        shutil.copy(CONTROL, copy)
        job = Job(session, "direct", LIEN_CONTROL=copy)
        job.make("direct", 1)
        equal([row["owner"] for row in session.ask("mem")["rows"]], ["late_direct"], "owners")


@case()
def test_after_detach():
    """The library stays mapped and passes calls on, which are still the application's."""
    with Session() as session:
        session.start_agent()
        job = Job(session, "direct")
        job.make("direct", 1)
        session.ready(job.pid)
        session.ask("detach", job.pid)
        job.load("now")
        job.make("now", 2)
        job.make("direct", 3)
        owners = {row["owner"]: row["allocations"] for row in session.ask("mem")["rows"]}
        equal(owners, {"late_direct": 2, "late_now": 1}, "owners")


# Given the control library later: what is looked up from then on is ours

def attached(session, *ways):
    job = Job(session, *ways, preloaded=False)
    session.ask("attach", job.pid)
    return job


@case()
def test_late_lookups():
    """A library that was loaded before, and looks functions up after a restore."""
    for way in ("dlsym", "proc", "proc_v1", "heap"):
        with Session() as session:
            session.start_agent()
            job = attached(session, "direct", way)
            first = job.rename("direct")
            second = (*job.make(way, 0x22), 0x22)
            separate(job, first, "direct", second, way)
            job.offload()
            job.restore()
            separate(job, first, "direct", second, way)


@case()
def test_lazy_calls():
    """A library that was loaded before, with a local scope and calls that are not bound yet."""
    with Session() as session:
        session.start_agent()
        job = attached(session, "now", "direct")
        first = job.rename("now")
        second = (*job.make("direct", 0x22), 0x22)
        separate(job, first, "now", second, "direct")


def clash(session, job, way, handle):
    """The offload is refused, names the library that has the handle, and changes nothing."""
    said = session.refused("offload", "--owner", "all", text=r"process %d: late_%s has handle %#x from the driver"
                           " itself.* try again when late_%s has released it, or start the process with "
                           "`lien run`.*nothing was moved" % (job.pid, way, handle, way))
    equal(said.count("lien offload: "), 1, "lines of: " + said)


@case(long=True)
def test_late_libraries_of_attached():
    """They get the driver's own handles, which are names of other memory: nothing is moved until they are
    released."""
    for way in ("now", "dlsym", "proc", "proc_v1", "heap"):
        with Session() as session:
            session.start_agent()
            job = attached(session, "direct")
            first = job.rename("direct")
            job.load(way)
            handle, va = job.make(way, 0x22)
            equal(handle, first[0], "what the driver gave out again")
            clash(session, job, way, handle)
            job.whole("direct", *first)
            job.whole(way, handle, va, 0x22)
            job("release", way, handle)
            job("unmap", way, va, SIZE)
            # Nothing of it is left; now its functions are replaced, and it is one as any other.
            job.offload()
            job.restore()
            job.whole("direct", *first)
            if way != "heap":
                second = (*job.make(way, 0x33), 0x33)
                separate(job, first, "direct", second, way)


@case()
def test_retained_late():
    """It asks the driver for the handle of memory that another library made."""
    with Session() as session:
        session.start_agent()
        job = attached(session, "direct")
        # Two that change places: what the one is called, the other is.
        one, two = job.make("direct", 0x11), job.make("direct", 0x22)
        session.ready(job.pid)
        while True:
            job.offload()
            job.restore()
            job.load("now")
            if job("retain", "now", one[1]) != one[0]:
                break
            job("release", "now", one[0])
        clash(session, job, "now", two[0])
        job("release", "now", two[0])
        job.offload()
        job.restore()
        job.whole("direct", *one)
        job.whole("direct", *two, 0x22)


@case()
def test_loaded_while_away():
    """It gets a handle that is the name of memory that is away; the restore leaves it alone."""
    with Session() as session:
        session.start_agent()
        job = attached(session, "direct")
        first = job.make("direct", 0x11)
        session.ready(job.pid)
        job.offload()
        job.load("now")
        handle = job("create", "now", SIZE, 0)
        equal(handle, first[0], "what the driver gave out again")
        job.restore()
        va = job("show", "now", SIZE, handle, 0)
        job("fill", "now", va, SIZE, 0x22)
        job.whole("direct", *first)
        job.whole("now", handle, va, 0x22)
        clash(session, job, "now", handle)


@case()
def test_heap_pointers():
    """Pointers from before, on the heap, which are not found."""
    with Session() as session:
        session.start_agent()
        job = Job(session, "direct", "heap", preloaded=False)
        early = job.make("heap", 0x33)
        session.ask("attach", job.pid)
        job("unmap", "heap", early[1], SIZE)
        job("release", "heap", early[0])
        first = job.rename("direct")
        handle, va = job.make("heap", 0x22)
        equal(handle, first[0], "what the driver gave out again")
        clash(session, job, "heap", handle)
        job.whole("heap", handle, va, 0x22)
        job.whole("direct", *first)


@case()
def test_next_agent_knows():
    """The journal has which handles came from the driver itself."""
    with Session() as session:
        session.start_agent()
        job = attached(session, "direct")
        first = job.rename("direct")
        job.load("now")
        handle, _ = job.make("now", 0x22)
        equal(handle, first[0], "what the driver gave out again")
        session.kill_agent()
        session.start_agent()
        session.ready(job.pid)
        clash(session, job, "now", handle)


@case()
def test_loaded_during_an_offload():
    """Between the replacing of pointers and the copies: that offload fails, and the next one succeeds."""
    with Session() as session:
        busy = session.path("busy")
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = busy
        session.start_agent()
        job = attached(session, "direct")
        first = job.make("direct", 0x11)
        session.ready(job.pid)
        open(busy, "w").close()
        client = session.spawn([LIEN, "offload", "--owner", "all", "--timeout", "20000"])
        wait_for("it waits for the device", lambda: (
            session.ask("status")["transaction"] or {}).get("phase") == "drain")
        job.libraries["now"] = job.driver("load", library("now"))
        os.unlink(busy)
        equal(client.wait(), 1, "exit status")
        check("liblate_now.so has just looked up driver functions: try again" in client.said(), client.said())
        job.offload()
        job.restore()
        job.whole("direct", *first)


@case()
def test_sealed():
    """Pointers in sealed memory cannot be replaced: the offload is refused before it changes anything."""
    with Session() as session:
        session.start_agent()
        job = Job(session, "direct", "now", preloaded=False)
        first = job.make("now", 0x11)
        ok, said = job.driver.attempt("seal", job.libraries["now"])
        if said == "error 38 -":
            raise Skipped("this kernel has no mseal()")
        check(ok, said)
        session.ask("attach", job.pid)
        session.ready(job.pid)
        used = session.used()
        for _ in range(2):
            session.refused("offload", "--owner", "all", text="process %d, stage: cannot replace pointers in "
                            "liblate_now.so: Operation not permitted; nothing was moved" % job.pid)
            equal(session.used(), used, "device memory in use")
            job.whole("now", *first)


# Children

@case()
def test_child_of_an_idle_parent():
    """The parent's control thread runs, but it has made no context: its child may, and takes orders."""
    with Session() as session:
        session.start_agent()
        driver = Driver(session.spawn([LIEN, "run", "--", program("prog_late")]))
        late = driver("load", library("direct"))
        driver.refused("create", late, SIZE, 0)  # wakes the control thread
        session.ready(driver.pid)
        child = driver("fork")
        driver("init", late, 0)
        handle = driver("create", late, SIZE, 0)
        va = driver("show", late, SIZE, handle, 0)
        driver("fill", late, va, SIZE, 0x11)
        session.ready(child)
        session.ask("offload", "--owner", "all")
        equal(session.used(), 0, "device memory in use")
        other = driver("create", late, SIZE, 0)
        session.ask("restore")
        equal(driver("check", late, va, SIZE, 0x11), 0, "wrong bytes")
        driver("release", late, other)
        driver("release", late, handle)
        driver("unmap", late, va, SIZE)
        equal(session.used(), 0, "device memory in use")


@case()
def test_child_of_a_renamed_parent():
    """CUDA calls fail in it, as without lien; the program that it executes has names of its own."""
    with Session() as session:
        session.start_agent()
        job = Job(session, "direct")
        handle, _ = job.rename("direct")
        child = job.driver("fork")
        late = job.libraries["direct"]
        for command in (("create", late, SIZE, 0), ("release", late, handle), ("show", late, SIZE, handle, 0)):
            equal(job.driver.refused(*command), 3, "CUDA_ERROR_NOT_INITIALIZED of %s" % command[0])
        job.driver.process.send("exec %s" % program("prog_late"))
        equal(job.driver.process.line(), "ready %d" % child, "the new program")
        job.libraries.clear()
        job.pid = child
        job.load("now")
        first = job.rename("now")
        separate(job, first, "now", (*job.make("now", 0x22), 0x22), "now")


@case(long=True)
def test_forks_of_busy_threads():
    """Whatever locks the parent's threads hold at that moment."""
    with Session() as session:
        session.start_agent()
        idle = session.spawn([LIEN, "run", "--", program("prog_fork"), 200])
        idle.line()
        equal(idle.ask("go", 40), "ok 200", "children of a parent that has no context")
        used = session.spawn([LIEN, "run", "--", program("prog_fork"), 400, "init"])
        used.line()
        session.ready(used.pid)
        session.ask("offload", "--owner", "all")
        session.ask("restore")  # what was freed last is made first: the two handles change places
        equal(used.ask("go", 40), "ok 400", "children of a parent that has")


# What the linker says

def lookups(driver, place, name="cuMemCreate"):
    ok, found = driver.attempt("lookup", place, name)
    return "lien's" if ok and found[1] else "another" if ok else found


@case()
def test_lookups():
    with Session() as session:
        driver = Driver(session.spawn([LIEN, "run", "--", program("prog_late")]))
        libc = driver("load", "libc.so.6")
        # No driver: as if we were not there.
        for place in ("default", "next", "main", libc):
            check("error 2" in lookups(driver, place), place, lookups(driver, place))
        for place in ("default", "main", libc):
            equal(lookups(driver, place, "dlsym"), "lien's", "dlsym")
            equal(lookups(driver, place, "malloc"), "another", "malloc")
            check("error 2" in lookups(driver, place, "no_such_function"), "no_such_function")
        # It comes, goes, and comes again.
        for _ in range(3):
            cuda = driver("load", "libcuda.so.1")
            equal(lookups(driver, cuda), "lien's", "cuMemCreate")
            equal(lookups(driver, cuda, "cuGetProcAddress_v2"), "lien's", "cuGetProcAddress_v2")
            equal(lookups(driver, cuda, "cuMemUnmap"), "another", "cuMemUnmap")
            equal(lookups(driver, libc, "malloc"), "another", "malloc")
            check("error 2" in lookups(driver, libc), "cuMemCreate in libc")
            check("error 2" in lookups(driver, cuda, "cuMemCreateNever"), "cuMemCreateNever")
            driver("unload", cuda)
            with open("/proc/%d/maps" % driver.pid) as maps:
                check("libcuda.so" not in maps.read(), "it was kept, or loaded")
            check("error 2" in lookups(driver, "default"), "cuMemCreate of a driver that has gone")
        # With a library that uses it, it stays.
        late = driver("load", library("direct"))
        driver("init", late, 0)
        equal(lookups(driver, late), "lien's", "cuMemCreate")
        driver("create", late, SIZE, 0)
        driver("unload", late)
        equal(lookups(driver, driver("load", "libcuda.so.1")), "lien's", "cuMemCreate")
        versions = driver.attempt("lookup", libc, "dlsym", "GLIBC_2.2.5")
        check(versions[0] and versions[1][1], "dlvsym:", versions)


@case()
def test_two_drivers():
    """A function of another libcuda than the translated one is not replaced."""
    with Session() as session:
        folder = session.path("other")
        os.mkdir(folder)
        shutil.copy(os.path.join(SOFTCUDA, "libcuda.so.1"), os.path.join(folder, "libother.so"))
        driver = Driver(session.spawn([LIEN, "run", "--", program("prog_late")]))
        cuda = driver("load", "libcuda.so.1")
        other = driver("load", os.path.join(folder, "libother.so"))
        equal(lookups(driver, cuda), "lien's", "cuMemCreate")
        # By its soname it is the same library to the linker.
        equal(lookups(driver, other), "another", "cuMemCreate of another file")
        driver = Driver(session.spawn([LIEN, "run", "--", program("prog_late")]))
        other = driver("load", os.path.join(folder, "libother.so"))
        equal(lookups(driver, other), "lien's", "cuMemCreate of the only one")


if __name__ == "__main__":
    sys.exit(main())
