#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The picture of `lien graph --format svg`, made of what a fake agent answers for made-up jobs: is it
XML, does it tell the truth, does anything lie on top of anything?

LIEN names the program (default build/lien). Needs neither root nor a GPU. With --example it writes
docs/graph-8ranks.svg instead of testing; with --draw FOLDER all the pictures, to be looked at.
"""

import collections
import os
import re
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import graph_jobs
from cli_answers import make_graph
from test_cli_offline import GOLDEN
from cli_fixture import Context, long, run_cases, variants

EXAMPLE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "graph-8ranks.svg")
SPACE = "{http://www.w3.org/2000/svg}"
WIDEST = 1480
BUNDLE = re.compile(r"memory of (.*?), pid (\d+), (.*?) held by (.*?), pid (\d+), (.*?): (\d+) "
                    r"allocations?, (.*?), (.*?) offloaded; (\d+) handles and mappings; made by (.*)")
PART = re.compile(r"(.*), (.*?): (\d+) allocations?, (\d+) bytes")


def draw(context, reply):
    agent = context.agent(lambda r: [{"ok": True, "result": reply}])
    out, err = context.run("graph", "--format", "svg", TZ="UTC0")
    assert err == "" and agent.requests == [{"op": "graph"}], (err, agent.requests)
    agent.close()
    return out


def steady(picture):
    """Without what may differ between two runs: host and time."""
    picture, count = re.subn(r">GPU memory on [^<]*<", ">GPU memory on host<", picture)
    assert count == 1, "%d titles" % count
    picture, count = re.subn(r">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000<",
                             ">2026-01-01 12:00:00 +0000<", picture)
    assert count == 1, "%d times" % count
    return picture


def parse(picture):
    root = ElementTree.fromstring(picture.encode())
    assert root.tag == SPACE + "svg", root.tag
    return root


def texts(root):
    return [element.text for element in root.iter(SPACE + "text")]


def tips(root):
    return [element.text for element in root.iter(SPACE + "title")]


def size(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= unit:
            return "%.1f %s" % (count / unit, name)
    return "%.1f KiB" % (count / 1024) if count else "0"


def text_box(element):
    """Left, top, right, bottom, for a font like Helvetica."""
    font = int(element.get("font-size"))
    width = sum(.3 if c in " ijlt.,:;'|!()[]/fr\u00b7" else .55 if ord(c) < 128 else 1
                for c in element.text) * font
    x, y = int(element.get("x")), int(element.get("y"))
    left = x - {"middle": width / 2, "end": width}.get(element.get("text-anchor"), 0)
    return left, y - .72 * font, left + width, y


def check_layout(root):
    """All of it is on the sheet, and no text on another."""
    width, height = int(root.get("width")), int(root.get("height"))
    assert width <= WIDEST and root.get("viewBox") == "0 0 %d %d" % (width, height), width
    background = root.find(SPACE + "rect")
    assert background.get("width") == str(width) and background.get("height") == str(height)
    for box in root.iter(SPACE + "rect"):
        x, y, w, h = (float(box.get(k, 0)) for k in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height and w > 0 and h > 0, \
            box.attrib
    for path in root.iter(SPACE + "path"):
        numbers = [int(n) for n in re.findall(r"-?\d+", path.get("d"))]
        assert all(0 <= x <= width for x in numbers[::2]), path.attrib
        assert all(0 <= y <= height for y in numbers[1::2]), path.attrib
    boxes = sorted((text_box(e) + (e.text,) for e in root.iter(SPACE + "text")),
                   key=lambda b: b[1])
    for i, (left, top, right, bottom, text) in enumerate(boxes):
        assert left >= 0 and right <= width and bottom <= height, (text, left, right)
        for other in boxes[i + 1:]:
            if other[1] >= bottom:
                break
            assert other[2] <= left or other[0] >= right, "%r on %r" % (other[4], text)
    for element in root.iter(SPACE + "text"):
        assert int(element.get("font-size")) >= 11, element.attrib


def expected_bundles(reply):
    """By owner and importer, their devices where known: allocations, bytes, liens."""
    sums = collections.defaultdict(lambda: [0, 0, 0])
    homes = {p["pid"]: p["devices"] for p in reply["processes"]}
    for allocation in reply["allocations"]:
        owner = allocation["pid"] or 0
        liens = collections.Counter(
            h["pid"] for h in allocation["handles"] + allocation["mappings"]
            if h["pid"] != owner or not allocation["alive"])
        devices = {m["pid"]: m["access"][0]["device"] for m in allocation["mappings"]
                   if len(m["access"]) == 1}
        devices.update({pid: d[0] if d else None for pid, d in homes.items() if len(d) < 2})
        for pid, count in liens.items():
            sums[owner, allocation["device"], pid, devices[pid]][0] += 1
            sums[owner, allocation["device"], pid, devices[pid]][1] += allocation["bytes"]
            sums[owner, allocation["device"], pid, devices[pid]][2] += count
    return {k: (str(a), size(b), str(n)) for k, (a, b, n) in sums.items()}


def shown_bundles(root):
    """An arrow with two heads stands for both directions."""
    found = {}
    doubles = {group.find(SPACE + "title").text for group in root.iter(SPACE + "g")
               if len([p for p in group.iter(SPACE + "path") if p.get("d").endswith("Z")]) == 2}
    for tip in tips(root):
        match = BUNDLE.fullmatch(tip)
        if not match:
            continue
        gpus = [int(g[4:]) if g[4:].isdigit() else None for g in match.group(3, 6)]
        key = (int(match[2]), gpus[0], int(match[5]), gpus[1])
        for one in {key, key[2:] + key[:2]} if tip in doubles else {key}:
            assert one not in found, "%s is there twice" % (one,)
            found[one] = match.group(7, 8, 10)
    return found


def expected_parts(reply):
    sums = collections.defaultdict(lambda: [0, 0])
    for allocation in reply["allocations"]:
        if allocation.get("arena"):
            continue  # lien's own
        shared = allocation["exports"] or any(
            h["pid"] != allocation["pid"] for h in allocation["handles"] + allocation["mappings"])
        kind = allocation["state"]
        if kind == "on the device":
            kind = "exported" if shared else "local"
        if allocation["tag"]:
            kind += " · " + allocation["tag"]
        sums[allocation["owner"] or "unknown", kind][0] += 1
        sums[allocation["owner"] or "unknown", kind][1] += allocation["bytes"]
    return {k: tuple(v) for k, v in sums.items()}


def shown_parts(root):
    sums = collections.defaultdict(lambda: [0, 0])
    for tip in tips(root):
        match = None if BUNDLE.fullmatch(tip) else PART.fullmatch(tip)
        if match:
            sums[match[1], match[2]][0] += int(match[3])
            sums[match[1], match[2]][1] += int(match[4])
    return {k: tuple(v) for k, v in sums.items()}


def live_picture(session):
    """(texts, imports) as an agent draws them, checked against its graph: nothing changes in between."""
    outcome = session.lien("graph", "--format", "svg")
    assert outcome.code == 0, outcome
    root = parse(outcome.out)
    check_layout(root)
    graph = session.ask("graph")
    assert shown_parts(root) == expected_parts(graph), "memory in the picture"
    bundles = expected_bundles(graph)
    assert shown_bundles(root) == bundles, "imports in the picture"
    return texts(root), bundles


@long
def case_layout(context):
    """every job: XML, on the sheet, no text on another, at least 11 pixels high"""
    for name, make in graph_jobs.JOBS.items():
        try:
            check_layout(parse(draw(context, make())))
        except Exception as error:
            raise AssertionError("in the picture of %s" % name) from error


def case_truth(context):
    """every job: what is shown per library and per bundle is what the graph has"""
    for name, make in graph_jobs.JOBS.items():
        reply = make()
        root = parse(draw(context, reply))
        if name != "odd":
            assert shown_parts(root) == expected_parts(reply), (name, shown_parts(root))
        if name not in ("odd", "64"):  # of many processes the arrows are between GPUs
            expected = expected_bundles(reply)
            assert shown_bundles(root) == expected, (name, shown_bundles(root), expected)


@long
def case_eight_ranks(context):
    """8 ranks, 4 communicators: a card per GPU, one arrow per pair with count and size"""
    reply = graph_jobs.eight_ranks()
    root = parse(draw(context, reply))
    found = collections.Counter(texts(root))
    for rank in range(8):
        assert found["GPU %d" % rank] == 1, found
        assert found["rank %d" % rank] >= 2, found
        assert found["A %d/8" % rank] == 1 and found["pid %d \u00b7 python3" % (812 + rank)] == 1
    assert found["480 \u00b7 960.0 MiB"] == 28, found
    assert found["8 processes on 8 GPUs"] == 1 and found["26880 imports"] == 1, found
    assert found["%s on the GPUs" % size(sum(a["bytes"] for a in reply["allocations"]))] == 1
    assert found["4 communicators of 8 ranks, 8 here"] == 1, found
    assert found["16 registrations, 320.0 MiB"] == 1, found
    assert found["5ac1d2e0b7f0a100, 5ac1d2e0b7f0a101, 5ac1d2e0b7f0a102, 5ac1d2e0b7f0a103"] == 1


def case_uneven(context):
    """8 ranks, one dead, one away: said in words, arrows red and dashed"""
    root = parse(draw(context, graph_jobs.eight_ranks_uneven()))
    found = collections.Counter(texts(root))
    assert found["exited"] == 1 and found["held by the dead"] == 1, found
    assert found["7.6 GiB held by the dead"] == 1 and found["kept by"] == 1, found
    assert found["132.0 MiB offloaded"] == 1 and found["incomplete"] == 1, found
    assert found["A 3/8"] == found["B 3/4"] == found["G 0/2"] == 1, found
    red = dashed = 0
    for group in root.iter(SPACE + "g"):
        match = BUNDLE.fullmatch(group.find(SPACE + "title").text)
        line = match and group.find(SPACE + "path")
        if match:
            red += line.get("stroke") == "#b3261e"
            assert (line.get("stroke") == "#b3261e") == (match[2] == "4190035"), match[0]
            dashed += line.get("stroke-dasharray") is not None
            assert (line.get("stroke-dasharray") is not None) == (match[9] != "0"), match[0]
    assert red == 5 and dashed == 1, (red, dashed)


def case_many(context):
    """64 processes: arrows between GPUs, the rest is counted; 16 on one GPU: all are there"""
    found = texts(parse(draw(context, graph_jobs.sixty_four())))
    assert found.count("180 \u00b7 1.4 GiB") == 8, found
    assert "not drawn, between processes of one GPU: 1120 \u00b7 8.8 GiB" in found, found
    assert all("rank %d" % rank in found for rank in range(64)), found
    found = texts(parse(draw(context, graph_jobs.sixteen_on_one())))
    assert found.count("GPU 0") == 1 and "16 processes on 1 GPU" in found, found
    assert all("vllm-worker-%d" % i in found for i in range(16)), found
    many = graph_jobs.Job()
    for device in range(40):
        many.process(device + 1, [device])
    for device in range(40):
        many.memory(device + 1, device, 1 << 20, importers=[((device + 7) % 40 + 1,
                                                             (device + 7) % 40)])
    root = parse(draw(context, many.reply))
    check_layout(root)
    assert texts(root).count("others") >= 1, texts(root)


def case_narrow(context):
    """where count and size don't fit, the size alone is shown, never a part of it"""
    ring = graph_jobs.Job()
    for rank in range(16):
        ring.process(rank + 1, [rank])
    for rank in range(16):
        ring.memory(rank + 1, rank, 10235 << 20, count=100,
                    importers=[((rank + 1) % 16 + 1, (rank + 1) % 16)])
    found = texts(parse(draw(context, ring.reply)))
    assert found.count("999.5 GiB") == 16 + 3 * 16, found  # arrows; total, exported, imported
    assert not any("\u2026" in text for text in found), found


def case_hostile(context):
    """hostile names are escaped, cut and harmless; the unknown is shown as unknown"""
    picture = draw(context, graph_jobs.odd())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", picture), picture
    assert "<script" not in picture and "<b>" not in picture, picture
    root = parse(picture)
    assert {e.tag for e in root.iter()} == {SPACE + t for t in (
        "svg", "rect", "g", "title", "text", "path", "circle")}
    found = texts(root)
    assert any(t.startswith("<b>&\"'?[31m?") for t in found), found
    assert "owner unknown" in found and "GPU unknown" in found and "owns no memory" in found
    assert "on the moon" in found and "in host memory" in found, found
    assert "200.0 MiB elsewhere" in found and "A 5/4096" in found, found


def without_unknown(value):
    if isinstance(value, dict):
        return {k: without_unknown(v) for k, v in value.items()
                if k not in ("kind", "pool", "parent", "devices_by_uuid", "future")}
    return [without_unknown(v) for v in value] if isinstance(value, list) else value


def case_future(context):
    """unknown members and kinds change nothing"""
    reply = graph_jobs.eight_ranks_uneven()
    plain = draw(context, reply)
    for list_name in ("processes", "allocations", "communicators"):
        for one in reply[list_name]:
            one.update(future={"uuid": "GPU-1"}, kind="managed", parent=[1], pool=None)
    for allocation in reply["allocations"]:
        for holder in allocation["handles"] + allocation["mappings"]:
            holder["future"] = "x"
    reply["registrations"] = [{"future": 1}]
    assert steady(draw(context, reply)) == steady(plain)


def case_same(context):
    """the same graph gives the same picture, also to a file"""
    reply = graph_jobs.eight_ranks_uneven()
    picture = draw(context, reply)
    assert steady(picture) == steady(draw(context, reply))
    path = context.path("job.svg")
    context.agent(lambda r: [{"ok": True, "result": reply}])
    assert context.run("graph", "--format", "svg", "--output", path, TZ="UTC0") == ("", "")
    with open(path, encoding="utf-8") as file:
        assert steady(file.read()) == steady(picture)
    context.fails("graph", "--format", "svg", "--output", "/dev/full", words=["No space left"])


def case_title(context):
    """the title names the host and the time; of a recording, the file and the recording's time"""
    picture = draw(context, graph_jobs.empty())
    assert "GPU memory on %s" % os.uname().nodename in texts(parse(picture)), picture
    assert "0 processes on 0 GPUs" in picture and "no process holds memory of another" in picture
    for words, when in (((), "2026-11-20 "), (("--at", "+1"), "2026-11-20 ")):
        out, _ = context.run("graph", "--format", "svg", "--from", GOLDEN, *words, TZ="UTC0")
        assert any(text.startswith("GPU memory in pytorch-nccl") for text in texts(parse(out))), out
        assert any(text.startswith(when) for text in texts(parse(out))), texts(parse(out))


@long
def case_odd_results(context):
    """members missing or of another type: still XML"""
    odd = list(variants(make_graph(2, 1, 1, 1)))
    step = max(1, len(odd) // int(os.environ.get("ODD_RESULTS", "300")))
    reply = {}
    context.agent(lambda r: [{"ok": True, "result": reply["now"]}])
    for variant in odd[::step]:
        reply["now"] = variant
        parse(context.run("graph", "--format", "svg")[0])


def case_example(context):
    """docs/graph-8ranks.svg is what is drawn today (else: test_graph_svg.py --example)"""
    with open(EXAMPLE, encoding="utf-8") as file:
        assert file.read() == steady(draw(context, graph_jobs.eight_ranks()))


def write_pictures(folder):
    with tempfile.TemporaryDirectory() as directory:
        for name, make in graph_jobs.JOBS.items():
            with open(os.path.join(folder, name + ".svg"), "w", encoding="utf-8") as file:
                file.write(draw(Context(directory), make()))


def write_example():
    with tempfile.TemporaryDirectory() as directory:
        with open(EXAMPLE, "w", encoding="utf-8") as file:
            file.write(steady(draw(Context(directory), graph_jobs.eight_ranks())))


if __name__ == "__main__":
    if sys.argv[1:] == ["--example"]:
        write_example()
    elif sys.argv[1:2] == ["--draw"]:
        write_pictures(sys.argv[2])
    else:
        sys.exit(run_cases(globals()))
