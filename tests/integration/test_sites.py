#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien mem --by`, call sites, devices by UUID, and what NVML says: real BPF programs, real processes,
the software CUDA driver, and a stand-in for NVML.

See lien_test.py for what it needs. Prints a line per case, and "N passed, N failed" at the end.
"""

import os
import re
import subprocess
import sys

from lien_test import (
    MIB, ROOT, SOFTCUDA, SOFTNCCL, Session, case, check, equal, main, wait_for)


def build(session, name, source, *flags):
    return session.compile(name, source, "-O1", "-g0", "-shared", "-fPIC", *flags)


def rows(session, by, *args):
    return session.ask("mem", "--by", by, *args)["rows"]


def sites(session, size):
    """The keys of the rows with that many bytes."""
    return [row["key"] for row in rows(session, "callsite") if row["bytes"] == size]


def uuid_of(device):
    """As softcuda makes them up."""
    return "GPU-6c69656e-2073-6f66-7463-7564610000%02x" % device


NAMED = r"cuMemAlloc_v2 from %s outer::inner\+0x[0-9a-f]+"


@case()
def test_call_sites_have_names():
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        driver("alloc", 3 * MIB)
        driver("nccl", build(session, "libcaller.so", "caller.c"))
        driver("alloc", 5 * MIB)
        driver("alloc", 5 * MIB)
        wait_for("its libraries are known", lambda: "libcaller" in "".join(sites(session, 10 * MIB)))
        equal(len(sites(session, 10 * MIB)), 1, "rows of both calls from one place")
        check(re.fullmatch(NAMED % r"libcaller\.so", sites(session, 10 * MIB)[0]),
              sites(session, 10 * MIB))
        wait_for("its libraries are known", lambda: "prog_driver" in sites(session, 3 * MIB)[0])
        key = sites(session, 3 * MIB)[0]
        check(re.fullmatch(r"cuMemAlloc_v2 from prog_driver do_alloc\+0x[0-9a-f]+", key), key)
        sizes = [row["bytes"] for row in rows(session, "callsite")]
        equal(sizes, sorted(sizes, reverse=True), "the largest first")
        text = session.lien("mem", "--by", "callsite").out
        check("10.0 MiB in 2 allocations of device memory: cuMemAlloc_v2 from libcaller.so "
              "outer::inner+0x" in " ".join(text.split()), text)


@case()
def test_deleted_before_anybody_asked():
    with Session() as session:
        session.start_agent()
        library = build(session, "libgone.so", "caller.c")
        driver = session.driver(control=False)
        driver("nccl", library)
        os.unlink(library)
        driver("alloc", 5 * MIB)
        check(re.fullmatch(NAMED % r"libgone\.so", sites(session, 5 * MIB)[0]),
              sites(session, 5 * MIB))


@case()
def test_stripped_library_has_offsets():
    with Session() as session:
        session.start_agent()
        named, stripped = session.path("libnamed.so"), session.path("libstripped.so")
        build(session, "libnamed.so", "caller.c")
        subprocess.run(["strip", "-o", stripped, named], check=True)
        for library, size in ((named, 5 * MIB), (stripped, 7 * MIB)):
            driver = session.driver(control=False)
            driver("nccl", library)
            driver("alloc", size)
        symbols = subprocess.run(["nm", named], capture_output=True, text=True, check=True).stdout
        start = int(re.search(r"([0-9a-f]+) t _ZN5outer5inner", symbols)[1], 16)
        into = int(re.search(r"inner\+0x([0-9a-f]+)", sites(session, 5 * MIB)[0])[1], 16)
        equal(sites(session, 7 * MIB), ["cuMemAlloc_v2 from libstripped.so+0x%x" % (start + into)],
              "call site in a stripped library")


@case()
def test_named_after_the_owner_has_died():
    with Session() as session:
        session.start_agent()
        library = build(session, "libgone.so", "caller.c")
        owner, importer = session.driver(control=False), session.driver(control=False)
        owner("nccl", library)
        handle, _ = owner("make", 6 * MIB, 0)
        fd = importer("getfd", owner.pid, owner("export", handle))
        importer("show", 6 * MIB, importer("import", fd), 0)
        session.ask("ps")  # the agent has met the library: the ring rests for a millisecond
        os.unlink(library)
        owner.end()
        wait_for("the owner has gone", lambda: session.process(owner.pid) is None)
        pattern = r"cuMemCreate from libgone\.so outer::inner\+0x[0-9a-f]+"
        check(re.fullmatch(pattern, sites(session, 6 * MIB)[0]), sites(session, 6 * MIB))
        equal([row["key"] for row in rows(session, "rank") if row["kind"] == "device"],
              ["process %d, which has exited" % owner.pid], "whose it was")

        # Its file is let go, with its names read, when no process maps it.
        def open_files():
            folder = "/proc/%d/fd" % session.agent.pid
            return [os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder)
                    if os.path.lexists(os.path.join(folder, fd))]
        wait_for("the file is closed", lambda: not any("libgone" in f for f in open_files()))
        check(re.fullmatch(pattern, sites(session, 6 * MIB)[0]), sites(session, 6 * MIB))


@case()
def test_call_site_in_a_container():
    with Session() as session:
        session.start_agent()
        library = build(session, "libinside.so", "caller.c")
        place = session.path("inside")
        os.mkdir(place)
        script = 'mount -t tmpfs none %s && cp %s %s && exec "$@"' % (place, library, place)
        driver = session.driver(control=False, prefix=(
            "unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"))
        driver("nccl", os.path.join(place, "libinside.so"))
        check(not os.path.exists(os.path.join(place, "libinside.so")), "it is seen outside")
        driver("alloc", 5 * MIB)
        check(re.fullmatch(NAMED % r"libinside\.so", sites(session, 5 * MIB)[0]),
              sites(session, 5 * MIB))


@case()
def test_by_owner_and_pid():
    with Session() as session:
        session.start_agent()
        drivers = [session.driver(), session.driver()]
        for driver in drivers:
            driver("make", 2 * MIB, 0)
        drivers[0]("nccl", SOFTNCCL)
        drivers[0]("make", 8 * MIB, 0)
        session.ready(*(driver.pid for driver in drivers))
        found = [(row["key"], row["kind"], row["allocations"], row["bytes"], row["offload_frees"])
                 for row in rows(session, "owner")]
        equal(found[1:], [("prog_driver", "device", 2, 4 * MIB, 4 * MIB)], "the smaller one")
        equal(found[0][2:], (1, 8 * MIB, 8 * MIB), "the larger one")
        one = session.ask("mem", "--by", "owner", "--pid", drivers[1].pid)
        equal([(row["key"], row["bytes"]) for row in one["rows"]], [("prog_driver", 2 * MIB)],
              "of one process")
        equal((one["bytes"], one["by"]), (2 * MIB, "owner"), "total of one process")
        equal(session.ask("mem")["bytes"], 12 * MIB, "total")
        check("no communicator" in session.lien("mem", "--by", "rank").out, "by rank")
        session.refused("mem", "--by", "colour", code=2, text="--by 'colour' is not one of owner, rank")


@case()
def test_devices_by_uuid():
    with Session() as session:
        session.start_agent()
        second = session.driver(CUDA_VISIBLE_DEVICES="1")
        both = session.driver(CUDA_VISIBLE_DEVICES="1,0")
        second("make", 2 * MIB, 0)
        both("make", 4 * MIB, 0)
        both("make", 8 * MIB, 1)
        session.ready(second.pid, both.pid)
        found = {row["key"]: row["bytes"] for row in rows(session, "device")}
        equal(found, {uuid_of(0): 8 * MIB, uuid_of(1): 6 * MIB}, "by device")
        gpus = {gpu["uuid"]: [(user["pid"], user["ordinal"], user["by"])
                              for user in gpu["processes"]] for gpu in session.ask("ps")["gpus"]}
        equal(gpus, {uuid_of(1): [(second.pid, 0, "driver"), (both.pid, 0, "driver")],
                     uuid_of(0): [(both.pid, 1, "driver")]}, "gpus")
        text = " ".join(session.lien("ps").out.split())
        check("? %d as 0, %d as 0 %s" % (second.pid, both.pid, uuid_of(1)) in text, text)


@case()
def test_devices_without_control_library():
    with Session() as session:
        session.start_agent()
        unknown = session.driver(control=False, CUDA_VISIBLE_DEVICES="1")
        unknown("make", 2 * MIB, 0)
        found = [row["key"] for row in rows(session, "device")]
        equal(found, ["device 0 of process %d" % unknown.pid], "a number says nothing")
        check(not session.ask("ps")["gpus"], "a device that nobody has named")
        # Not understood by softcuda, which therefore shows no device: the agent reads it all the
        # same.
        named = session.driver(control=False, init=False, CUDA_VISIBLE_DEVICES="%s,1" % uuid_of(1))
        named.attempt("cuinit", 0)
        text = "%s,%s" % (uuid_of(1), uuid_of(0))
        other = session.driver(control=False, init=False, CUDA_VISIBLE_DEVICES=text)
        other.attempt("cuinit", 0)
        session.known(other.pid)
        gpus = {gpu["uuid"]: [(user["pid"], user["ordinal"], user["by"])
                              for user in gpu["processes"]] for gpu in session.ask("ps")["gpus"]}
        equal(gpus, {uuid_of(1): [(other.pid, 0, "environment")],
                     uuid_of(0): [(other.pid, 1, "environment")]}, "gpus")


@case()
def test_figures_of_nvml():
    with Session() as session:
        os.mkdir(session.path("nvml"))
        build(session, "nvml/libnvidia-ml.so.1", "nvml.c")
        figures = session.path("figures")
        open(figures, "w").close()
        session.start_agent(LD_LIBRARY_PATH="%s:%s" % (SOFTCUDA, session.path("nvml")),
                            TEST_NVML=figures)
        driver = session.driver()
        driver("make", 4 * MIB, 1)  # index 0: the stand-in counts backwards
        session.ready(driver.pid)
        with open(figures, "w") as file:
            file.write("0 %d %d\n1 %d %d\n1 4000000 77\n" % (
                driver.pid, 504 * MIB, driver.pid, 100 * MIB))
            file.write("".join("0 %d 1\n" % pid for pid in range(5000000, 5000040)))

        def explained():
            result = session.ask("mem", "--explain")
            gpus = {gpu["index"]: gpu for gpu in result["gpus"]}
            return gpus if len(gpus[0]["processes"]) > 1 else None
        gpus = wait_for("NVML's new figures", explained)
        equal(sorted(gpus), [0, 1], "indices")
        equal([gpus[0][key] for key in ("uuid", "total_bytes", "used_bytes")],
              [uuid_of(1), 1 << 30, 5 * MIB], "device 0")
        equal(gpus[0]["processes"][0], {
            "pid": driver.pid, "ordinal": 1, "by": "driver", "traced_bytes": 4 * MIB,
            "total_bytes": 504 * MIB, "unexplained_bytes": 500 * MIB}, "a process on its device")
        equal(len(gpus[0]["processes"]), 41, "processes of device 0")
        equal(gpus[1]["processes"][1], {
            "pid": 4000000, "ordinal": None, "by": None, "traced_bytes": 0, "total_bytes": 77,
            "unexplained_bytes": 77}, "a process that was not traced")
        equal([row["key"] for row in rows(session, "device")], ["GPU 0 (%s)" % uuid_of(1)],
              "by device")
        lines = [line.split() for line in session.lien("ps").out.splitlines()]
        check("0 5.0 MiB 1000.0 MiB 1.0 GiB {} as 1 {}".format(driver.pid, uuid_of(1)).split() in lines, lines)
        equal(session.lien("ps", "--gpu", "1").out.split()[:4], ["none", "of", "the", "selected"], "GPU 1")
        equal(session.ask("ps", "--gpu", "0")["processes"][0]["pid"], driver.pid, "GPU 0")
        text = session.lien("mem", "--explain", "--pid", driver.pid).out
        check(re.search(r"%d +1 +GPU 0 .* 4\.0 MiB +500\.0 MiB +504\.0 MiB" % driver.pid, text),
              text)


@case()
def test_without_nvml():
    with Session() as session:
        session.start_agent()
        driver = session.driver(control=False)
        driver("make", 4 * MIB, 0)
        result = session.ask("mem", "--explain")
        equal((result["nvml"], result["pending"]), (None, False), "NVML")
        equal([(gpu["uuid"], gpu["processes"]) for gpu in result["gpus"]], [(None, [
            {"pid": driver.pid, "ordinal": 0, "traced_bytes": 4 * MIB, "total_bytes": None,
             "unexplained_bytes": None}])], "what is traced")
        text = session.lien("mem", "--explain").out
        check("NVML (libnvidia-ml.so.1, a part of the driver) is missing" in
              " ".join(text.split()), text)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
