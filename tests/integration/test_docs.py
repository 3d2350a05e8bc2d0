#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What README and docs show of the recording is what the commands print, and their links lead somewhere.

    $ lien ... --from tests/data/...
    the output; a line `...` stands for what was left out

    test_docs.py --write      puts in what the commands print now
"""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIEN = os.path.abspath(os.environ.get("LIEN") or ROOT / "build/lien")
LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([^)\s]*))?\)")
README_LINES = 150  # what a new user reads
SHOWN = re.compile(r"^    \$ (lien .* --from tests/data/.*)\n((?:    .*\n|\n(?=    [^$]))*)", re.M)


def printed(command):
    words = shlex.split(command)
    done = subprocess.run([LIEN, *words[1:]], capture_output=True, text=True, cwd=ROOT, timeout=60,
                          env={**os.environ, "COLUMNS": "100"})
    return done.stdout + done.stderr


def indented(text):
    return "".join("    " + line if line.strip() else line for line in text.splitlines(True))


def differs(shown, now):
    """None, or the first line that is shown and not printed."""
    at = 0
    lines = now.splitlines()
    skipping = False
    for line in shown.splitlines():
        line = line.strip()
        if line == "...":
            skipping = True
            continue
        if not line:
            continue
        while at < len(lines) and (not lines[at].strip() or
                                   (skipping and lines[at].strip() != line)):
            at += 1
        if at == len(lines) or lines[at].strip() != line:
            return line
        at += 1
        skipping = False
    rest = [line for line in lines[at:] if line.strip()]
    return "nothing more, but: " + rest[0] if rest and not skipping else None


def anchors(path):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(path):
    for name, anchor in LINK.findall(path.read_text()):
        target = path.parent / name if name else path
        if not target.exists():
            yield "%s is not there" % name
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield "%s has no heading #%s" % (name or "it", anchor)


def main():
    write = sys.argv[1:] == ["--write"]
    passed = failed = 0
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > README_LINES:
        print("FAILED README.md: %d lines, more than %d: move something to docs/" % (lines, README_LINES))
    passed, failed = passed + (lines <= README_LINES), failed + (lines > README_LINES)
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        dead = list(dead_links(path))
        for why in dead:
            print("FAILED %s: a link: %s" % (path.relative_to(ROOT), why))
        passed, failed = passed + (not dead), failed + len(dead)
        text = path.read_text()
        for command, shown in SHOWN.findall(text):
            now = printed(command)
            wrong = differs(shown, now)
            if wrong is None:
                passed += 1
                continue
            failed += 1
            print("FAILED %s: `%s` does not print: %s" % (path.relative_to(ROOT), command, wrong))
            if write:
                text = text.replace(shown, indented(now).rstrip("\n") + "\n", 1)
        if write:
            path.write_text(text)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
