# SPDX-License-Identifier: BSD-2-Clause
"""What calls that pass handles cost by way of the control library, beside the driver's own: no agent
runs, and nothing is renamed."""

from lien_test import CONTROL, Session, program

THREADS = (1, 2, 4)
COUNTS = {"pair": 3000, "query": 500000}


def translated(rounds):
    """{kind: {threads: [ns of the driver's call, ns of ours]}}: the least of the rounds."""
    found = {}
    with Session() as session:
        processes = [session.spawn([program("prog_handles", "tests/bench")], LD_PRELOAD=preload)
                     for preload in (None, CONTROL)]
        for _ in range(rounds):
            for kind, count in COUNTS.items():
                for threads in THREADS:
                    for number, process in enumerate(processes):
                        ns = float(process.ask("%s %d %d" % (kind, threads, count // threads), 120))
                        best = found.setdefault(kind, {}).setdefault(threads, [ns, ns])
                        best[number] = min(best[number], ns)
    return found
