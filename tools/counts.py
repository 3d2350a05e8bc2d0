#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How large lien is and how it hangs together; run it in the repository's root, after `make`.

Per top-level folder of the product, for all but tools, and for all, of the .c and .h files: all lines, and
those of code (neither comment nor blank); functions, those that are not static (also per 1,000 lines), and
those longer than 60 lines; files longer than 400. A function ends at a `}` in the first column, as clang-format
has it; those that macros make are not counted.

Then the circles: sets of files that all reach each other by references to functions of other files, as `nm`
sees them in the objects. BPF programs have none, because they are one object. Last, how often files other
than calls.h name a single call."""

import pathlib
import re
import subprocess
from typing import Dict, Iterator, List, Set, Tuple

TOPS = ["bpf", "agent", "loader", "include", "control", "tools"]
OBJECTS = pathlib.Path("build/obj")
LONG_FUNCTION, LONG_FILE = 60, 400
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')', re.S)
CALLS = pathlib.Path("include/lien/calls.h")


def sources(top: str) -> List[pathlib.Path]:
    return sorted(path for path in pathlib.Path(top).rglob("*.[ch]"))


def functions(lines: List[str]) -> Iterator[Tuple[bool, int]]:
    """Of each function: whether it is static, and its lines with its signature's."""
    begin = None
    for number, line in enumerate(lines):
        if line == "{":
            first = number
            while first and re.match(r"[^}#/]", lines[first - 1]) and not lines[first - 1].endswith((";", "*/")):
                first -= 1
            begin, static = first, any("static " in text for text in lines[first:number])
        elif line == "}" and begin is not None:
            yield static, number - begin + 1
            begin = None


def count(top: str) -> List[int]:
    total = [0] * 6
    for path in sources(top):
        text = path.read_text()
        lines = text.splitlines()
        bare = COMMENT.sub(lambda found: found[1] or "\n" * found[0].count("\n"), text)
        found = list(functions(lines))
        total = [sum(pair) for pair in zip(total, [
            len(lines), sum(1 for line in bare.splitlines() if line.strip()), len(found),
            sum(not static for static, _ in found), sum(size > LONG_FUNCTION for _, size in found),
            len(lines) > LONG_FILE])]
    return total


def uses() -> Dict[str, Set[str]]:
    """Which files' functions each file refers to. The control library is a program of its own."""
    objects = {str(path): path.relative_to(OBJECTS) for top in TOPS + ["pic"] for path in (OBJECTS / top).rglob("*.o")}
    objects = {path: source.relative_to("pic") if source.parts[0] == "pic" else source
               for path, source in objects.items()}
    out = subprocess.run(["nm", "-A", *objects], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    symbols: Dict[str, List[Tuple[str, str]]] = {}
    for path, rest in (line.split(":", 1) for line in out.splitlines()):
        source = objects[path].with_suffix(".c")
        if source.exists():  # else an object of a file that is gone
            kind, name = rest.split()[-2:]
            symbols.setdefault(str(source), []).append((kind, name))
    owners: Dict[str, List[str]] = {}
    for source, names in symbols.items():
        for kind, name in names:
            if kind == "T":
                owners.setdefault(name, []).append(source)
    return {source: {owner for kind, name in names if kind == "U" for owner in owners.get(name, [])
                     if (owner.split("/")[0] == "control") == (source.split("/")[0] == "control")}
            for source, names in symbols.items()}


def circles(edges: Dict[str, Set[str]]) -> List[List[str]]:
    def reach(start: str) -> Set[str]:
        seen: Set[str] = set()
        todo = [start]
        while todo:
            for follower in edges.get(todo.pop(), ()):
                if follower not in seen:
                    seen.add(follower)
                    todo.append(follower)
        return seen

    reached = {source: reach(source) for source in edges}
    found = {tuple(sorted(other for other in reached[source] if source in reached.get(other, ())))
             for source in edges if source in reached[source]}
    return sorted((list(circle) for circle in found if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def main():
    print("%-9s %7s %7s %9s %10s %9s %10s %10s" % (
        "", "lines", "code", "functions", "not static", "per 1,000", "> 60 lines", "files > 400"))
    counts = {top: count(top) for top in TOPS}
    counts["but tools"] = [sum(column) for column in zip(*(counts[top] for top in TOPS[:-1]))]
    counts["all"] = [sum(pair) for pair in zip(counts["but tools"], counts["tools"])]
    for top, (lines, code, made, open_, long, large) in counts.items():
        print("%-9s %7d %7d %9d %10d %9.1f %10d %11d" % (
            top, lines, code, made, open_, 1000 * open_ / lines, long, large))

    print("\ncircles of calls between files (one line each: files, by folder)")
    for circle in circles(uses()):
        folders: Dict[str, List[str]] = {}
        for source in circle:
            folders.setdefault(str(pathlib.Path(source).parent), []).append(pathlib.Path(source).stem)
        print("%7d  %s" % (len(circle), "; ".join("%s: %s" % (folder, " ".join(names))
                                                 for folder, names in sorted(folders.items()))))

    named = {path: len(re.findall(r"\bLIEN_CALL_[A-Z]", path.read_text()))
             for top in TOPS for path in sources(top) if path != CALLS}
    print("\nnames of single calls: %d in %d files" % (
        sum(named.values()), sum(1 for times in named.values() if times)))


if __name__ == "__main__":
    main()
