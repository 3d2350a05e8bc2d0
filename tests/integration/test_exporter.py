#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""lien-exporter, which serves `lien metrics` over HTTP, and the dashboard that is made from it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import openmetrics
from lien_test import (
    LIEN, ROOT, Session, case, check, equal, main, recording)
from users import ALICE, BOB, Shared, with_memory

EXPORTER = os.path.join(os.path.dirname(LIEN), "lien-exporter")
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
DASHBOARD = ROOT + "/tools/deploy/lien-dashboard.json"


class Exporter:
    def __init__(self, session, *args, uid=None):
        argv = [EXPORTER, "127.0.0.1:0", *args]
        self.process = session.spawn_as(uid, argv) if uid else session.spawn(argv)
        line = self.process.line(20)
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/metrics", line or "")
        check(match, "lien-exporter: %s %s" % (line, self.process.said()))
        self.port = int(match[1])

    def ask(self, path="/metrics", method="GET", **headers):
        """(status, the type of the content, the text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers["Content-Type"], text

    def scrape(self):
        status, kind, text = self.ask(Accept=OPEN + ",text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
        equal((status, kind), (200, OPEN), text)
        return openmetrics.read(text)


def names_of(text):
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}


@case()
def test_serves_what_lien_metrics_prints():
    with Session() as session:
        session.start_agent()
        job = session.replay(recording("basic"))
        session.ready(*job.ranks)
        session.ask("offload")
        exporter = Exporter(session)
        found, printed = exporter.scrape(), openmetrics.read(session.lien("metrics").out)
        equal(sorted(found), sorted(printed), "families")
        for name in ("lien_memory_bytes", "lien_imported_bytes", "lien_transactions", "lien_moved_bytes"):
            equal(found[name].samples, printed[name].samples, name)
        status, kind, text = exporter.ask()
        equal((status, kind), (200, PLAIN), "without Accept")
        equal(names_of(text), names_of(session.lien("metrics", "--format", "prometheus").out), "names")
        equal(exporter.ask(method="HEAD")[0], 200, "HEAD")
        equal(exporter.ask("/")[0::2], (404, "the metrics are at /metrics\n"), "/")
        equal(exporter.ask(method="POST")[0], 405, "POST")
        exporter.process.signal(signal.SIGTERM)
        equal(exporter.process.wait(20), 0, "exit code")


@case()
def test_one_request_for_each_scrape():
    with Session() as session:
        session.start_agent()
        exporter = Exporter(session)
        before = session.ask("status")["loop"]["requests"]
        for _ in range(3):
            exporter.scrape()
        equal(session.ask("status")["loop"]["requests"], before + 3 + 1, "requests, and that of `status`")
        for path in ("/", "/metrics/x"):
            exporter.ask(path)
        exporter.ask(method="POST")
        equal(session.ask("status")["loop"]["requests"], before + 3 + 2, "requests")


@case()
def test_without_an_agent():
    with Session() as session:
        exporter = Exporter(session, "--timeout", "300")
        status, kind, text = exporter.ask()
        equal(status, 503, "status")
        check(kind.startswith("text/plain") and session.socket in text and "lien agent" in text, text)
        session.start_agent()
        exporter.scrape()
        session.agent.signal(signal.SIGSTOP)
        status, _, text = exporter.ask()
        session.agent.signal(signal.SIGCONT)
        equal(status, 503, "the agent does not answer")
        check("300 ms" in text, text)
        exporter.scrape()
        session.stop_agent()
        equal(exporter.ask()[0], 503, "the agent has ended")
        session.start_agent()
        exporter.scrape()  # at once, by a connection of its own


@case()
def test_unprivileged():
    """It serves what its user may see."""
    with Shared() as session:
        session.start_agent("--metrics-user", str(BOB))
        driver = session.driver()
        with_memory(driver, 1)
        session.ready(driver.pid)
        for uid, rows in ((ALICE, 0), (BOB, 2)):
            found = Exporter(session, uid=uid).scrape()
            equal(len(found["lien_memory_bytes"].samples), rows, "of uid %d: rows" % uid)
            equal(sum(found["lien_node_memory_bytes"].having(state="device")), 2 << 20, "of the node")


@case()
def test_odd_clients():
    with Session() as session:
        session.start_agent()
        exporter = Exporter(session)
        idle = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(8)]
        for rubbish in (b"\r\n\r\n", b"GET\r\n\r\n", b"\0" * 4096 + b"\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n",
                        b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n",
                        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"):
            with socket.create_connection(("127.0.0.1", exporter.port), timeout=20) as odd:
                try:
                    odd.sendall(rubbish)
                except OSError:
                    pass  # it hangs up
                exporter.scrape()
        for one in idle:
            one.close()


@case()
def test_addresses():
    with Session() as session:
        def refused(text, *args):
            done = subprocess.run([EXPORTER, *args], capture_output=True, text=True, timeout=20,
                                  env=session.env(), check=False)
            equal((done.returncode, done.stdout), (2, ""), args)
            check(text in done.stderr and done.stderr.count("\n") == 1, done.stderr)
        for wrong in ("here:1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:http", "[::1", "[::1]9485", "", ":1"):
            refused("'%s' is not an address" % wrong, wrong)
        refused("'--frobnicate'", "--frobnicate")
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = "127.0.0.1:%d" % other.getsockname()[1]
            done = subprocess.run([EXPORTER, address], capture_output=True, text=True, timeout=20, check=False)
            equal((done.returncode, done.stderr),
                  (1, "lien-exporter: cannot listen on %s: Address already in use\n" % address), "a port in use")


@case()
def test_dashboard():
    """Its panels ask for metrics that exist, by labels that these have."""
    with open(DASHBOARD) as file:
        dashboard = json.load(file)
    queries = [(panel["title"], target) for panel in dashboard["panels"] for target in panel["targets"]]
    check(len(queries) > 20, queries)
    with open(ROOT + "/docs/metrics.md") as file:
        labels = {name: set(re.findall("`([a-z]+)`", row)) for name, row in re.findall(
            r"^\| `(lien_[a-z_]+)` \| \w+ \| (.*?) \|", file.read(), re.M)}
    for name in ("lien_imported_bytes",):  # "the same"
        labels[name] = labels["lien_memory_bytes"]
    with Session() as session:
        session.start_agent("--host-limit", "1G")
        job = session.replay(recording("basic"))
        session.ready(*job.ranks)
        text = session.lien("metrics", "--format", "prometheus").out
    exist = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | names_of(text)
    for title, target in queries:
        expression = target["expr"]
        names = re.findall(r"\blien_\w+", expression)
        check(names, title, expression)
        equal([name for name in names if name not in exist], [], title)
        used = set(re.findall(r"by \(([^)]*)\)", expression)) | {"instance"}
        used = {word for words in used for word in words.split(", ")}
        used |= set(re.findall(r"[{,](\w+)!?=", expression))
        used |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        for name in names:
            known = labels[re.sub("_(bucket|sum|count)$", "", name)] | {"instance", "le"}
            equal(used - known, set(), "%s: labels that %s lacks" % (title, name))
    equal(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]), "ids")


if __name__ == "__main__":
    if not os.path.exists(EXPORTER):
        print("lien-exporter was not built: libmicrohttpd's header is missing")
        sys.exit(77)
    sys.exit(main())
