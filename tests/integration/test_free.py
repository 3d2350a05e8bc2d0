#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien offload --free`: as little as makes room for somebody else. What is chosen is tests/unit/test_free.c's and
test_plan_free.c's; this is about what users see, and that the memory is really free."""

import json
import os
import sys

from lien_test import LIEN, MIB, Session, case, check, equal, main, start_pairs, wait_for
from move import PAIRS, WHOLE, runs_as_before

SIZES = (2, 16, 4, 8)  # MiB


def with_memory(session, device=0):
    driver = session.driver(init=False)
    driver("init", device)
    places = []
    for number, size in enumerate(SIZES):
        places.append(driver("make", size * MIB, device)[1])
        driver("fill", places[-1], size * MIB, 0x50 + number)
    return driver, places


def whole(driver, places):
    for number, (size, va) in enumerate(zip(SIZES, places)):
        equal(driver("check", va, size * MIB, 0x50 + number), 0, "bytes of %d" % number)


@case()
def test_as_much_as_was_asked():
    with Session() as session:
        session.start_agent()
        driver, places = with_memory(session)
        session.ready(driver.pid)
        used = session.used()

        def free(size, moved, more):
            for dry in ("--dry-run",), ():
                answer = session.ask("offload", "--owner", "all", "--free", size, *dry)
                equal(answer["outcome"], "dry run" if dry else "done", "outcome")
                equal(answer["bytes"], moved * MIB, "bytes")
                gpu, = answer["free"]
                equal((gpu["pid"], gpu["device"], gpu["bytes"], gpu["movable_bytes"]),
                      (driver.pid, 0, moved * MIB, (moved + more) * MIB), "the GPU's")
            equal(used - session.used(), moved * MIB, "device memory that is free")
            return gpu

        equal(free("3M", 4, 26)["allocations"], 1, "allocations")
        session.ask("restore")
        equal(free("20M", 20, 10)["asked_bytes"], 20 * MIB, "asked")
        # What is away already is not counted: it makes as much free once more.
        used -= 20 * MIB
        free("1", 2, 8)
        used -= 2 * MIB
        session.refused("offload", "--owner", "all", "--free", "9M",
                        text="only 8.0 MiB of device 0 of process %d can be freed, not 9.0 MiB: ask for less" % driver.pid)
        equal(session.used(), used, "nothing was moved")
        session.refused("offload", "--free", "1M", text="nothing can be freed: no memory")
        equal(session.ask("restore")["bytes"], 22 * MIB, "restored")
        whole(driver, places)
        out = session.lien("offload", "--owner", "all", "--free", "5M").out
        check(" device 0 of process %d: 5.0 MiB asked for, 8.0 MiB moved (1 allocation), 22.0 MiB more could be moved"
              % driver.pid in " ".join(out.split()) and "left on" not in out, out)
        session.ask("restore")
        whole(driver, places)


@case()
def test_each_gpu():
    with Session(devices=2) as session:
        session.start_agent()
        drivers = [with_memory(session, device) for device in range(2)]
        drivers[0][0]("make", 32 * MIB, 0)
        session.ready(*(driver.pid for driver, _ in drivers))
        answer = session.ask("offload", "--owner", "all", "--free", "16M")
        equal(sorted((gpu["device"], gpu["bytes"], len(gpu["uuid"])) for gpu in answer["free"]),
              [(0, 16 * MIB, 40), (1, 16 * MIB, 40)], "GPUs")
        session.ask("restore")
        session.refused("offload", "--owner", "all", "--free", "40M", text="only 30.0 MiB of device 1 of process %d can be "
                        "freed, not 40.0 MiB" % drivers[1][0].pid)
        answer = session.ask("offload", "--owner", "all", "--free", "40M", "--gpu", "0")
        equal(session.used(1), 30 * MIB, "in use on the other GPU")
        check(answer["bytes"] >= 40 * MIB, answer)
        session.ask("restore")
        for driver, places in drivers:
            whole(driver, places)


@case()
def test_what_is_shared():
    """It moves in all processes that share it; if one is not selected, it stays, as long as the rest is enough."""
    with Session() as session:
        session.start_agent()
        job = start_pairs(session, PAIRS)
        session.ready(*job.ranks)
        answer = session.ask("offload", "--free", "5M", "--gpu", "0")
        equal(answer["bytes"], 6 * MIB, "bytes")
        moved = {part["pid"]: (part["allocations"], part["imports"]) for part in answer["processes"]}
        session.ask("restore")
        runs_as_before(session, job)
        session.refused("offload", "--free", "5M", "--pid", job.ranks[0], text="nothing of device 0 of process %d can be "
                        "freed, not 5.0 MiB: .*more cannot be moved: 2.0 MiB of process %d .* add --pid" %
                        (job.ranks[0], job.ranks[0]))
        answer = session.ask("offload", "--free", "5M", "--pid", job.ranks[0], "--with-closure")
        equal({part["pid"]: (part["allocations"], part["imports"]) for part in answer["processes"]}, moved, "processes")
        session.ask("restore")
        runs_as_before(session, job)
        equal(WHOLE["bytes"], session.used(), "in use")
        job.quit()


@case()
def test_job_that_changes_meanwhile():
    """The offload is planned again when the job is at rest, and then takes in no other process."""
    with Session() as session:
        session.environment["LIEN_SOFTCUDA_BUSY_FILE"] = session.path("busy")
        session.start_agent()
        driver, places = with_memory(session)
        other, elsewhere = with_memory(session)
        session.ready(driver.pid, other.pid)
        open(session.path("busy"), "w").close()
        offload = session.spawn([LIEN, "offload", "--owner", "all", "--free", "20M", "--json=line", "--timeout", "20000"])
        wait_for("it drains", lambda: (session.ask("status")["transaction"] or {}).get("phase") == "drain")
        # The one that is not held makes what would be better to move: it was not asked to stop.
        other("make", 20 * MIB, 0)
        os.unlink(session.path("busy"))
        answer = json.loads(offload.line(20))
        equal(offload.wait(20), 0, offload.said())
        equal([part["pid"] for part in answer["processes"]], [driver.pid], "processes")
        equal(answer["bytes"], 20 * MIB, "bytes")
        session.ask("restore")
        whole(driver, places)
        whole(other, elsewhere)


@case()
def test_wrong_sizes():
    with Session() as session:
        session.start_agent()
        for size in ("0", "-1", "1.5G", "10Q", "x", "99999999999999999999"):
            session.refused("offload", "--free", size, code=2, text="--free '%s' is not a size" % size)
        session.refused("offload", "--free", "1G", "--strict", code=2, text="cannot be combined")
        for value in ("0", "-4", "true", '"1G"', "1.5"):
            answer = json.loads(session.request('{"op": "offload", "free_bytes": %s}\n' % value))
            equal((answer["ok"], answer["code"], answer["error"]), (False, "invalid", "free_bytes must be a positive number"),
                  value)
        answer = json.loads(session.request('{"op": "offload", "free_bytes": 1, "strict": true}\n'))
        check("exclude each other" in answer["error"], answer)


if __name__ == "__main__":
    sys.exit(main())
