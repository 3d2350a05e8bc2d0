#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""`lien completion`: each shell completes every command and option that the help shows.

See lien_test.py for what it needs.
"""

import os
import re
import shlex
import shutil
import subprocess

from lien_test import LIEN, ROOT, Session, Skipped, case, check, equal, main, run

# Asks the function that `complete -p` names, as bash does: words split at =.
ASK_BASH = r"""
source "$1"
shift
[[ $(complete -p lien) == *" -F "* ]] || exit 3
function=$(complete -p lien | sed 's/.* -F \([^ ]*\) .*/\1/')
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$function lien "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""

# Tab is pressed in a terminal, until what it lists matches a pattern.
ASK_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; print rea''dy"
zpty -r -m shell line '*ready*'
zpty -n -w shell "$2"$'\t\t'
zpty -r -m shell line "$3"
"""


def script(session, shell):
    path = session.path({"zsh": "_lien"}.get(shell, "lien." + shell))
    done = session.lien("completion", shell)
    check(done.code == 0 and not done.err, done)
    with open(path, "w") as file:
        file.write(done.out)
    return path


def needs(shell):
    if not shutil.which(shell):
        raise Skipped("there is no %s here" % shell)


def env(session):
    return session.env(PATH=os.path.dirname(LIEN) + ":" + os.environ["PATH"], HOME=session.folder)


def commands():
    """{command: its options}"""
    listed = subprocess.run([LIEN, "--help"], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^  (\w+) ", re.search(r"Commands:\n(.*?)\n\n", listed, re.S)[1], re.M)
    options = {}
    for command in found:
        said = subprocess.run([LIEN, command, "--help"], check=True, capture_output=True, text=True).stdout
        options[command] = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.M))
    return options


class Bash:
    def __init__(self, session):
        needs("bash")
        self.path, self.session = script(session, "bash"), session

    def __call__(self, line, cwd=None):
        """What could be the last word of the line."""
        words = [word for part in line.split(" ") for word in re.split("(=)", part) if word] or [""]
        if line.endswith((" ", "=")):
            words += [""] if line.endswith(" ") else []
        done = subprocess.run(["bash", "--norc", "-c", ASK_BASH, "bash", self.path, *words], capture_output=True,
                              text=True, check=False, env=env(self.session), cwd=cwd or self.session.folder, timeout=20)
        equal((done.returncode, done.stderr), (0, ""), line)
        return sorted(word for word in done.stdout.split("\n") if word)


class Fish:
    def __init__(self, session):
        needs("fish")
        self.path, self.session = script(session, "fish"), session

    def __call__(self, line):
        done = subprocess.run(["fish", "--no-config", "-c", "source %s; complete -C %s" % (
            self.path, shlex.quote(line))], capture_output=True, text=True, check=False, env=env(self.session),
            cwd=self.session.folder, timeout=20)
        equal((done.returncode, done.stderr), (0, ""), line)
        return sorted(found.split("\t")[0] for found in done.stdout.splitlines())


def knows_all(ask):
    known = commands()
    check(len(known) > 20, known)
    equal(set(ask("lien ")), {*known, "help"}, "commands")
    for command, options in known.items():
        equal(set(ask("lien %s --" % command)), options, "options of lien " + command)
        check(command in ask("lien help " + command[0]), "lien help", command)


def knows_values(ask):
    equal(ask("lien offload --on-use "), ["ignore", "restore", "wait"], "choices")
    equal(ask("lien offload --on-use w"), ["wait"], "one choice")
    equal(ask("lien completion "), ["bash", "fish", "zsh"], "shells")
    equal(ask("lien status "), [], "a command without arguments")
    equal(ask("lien offload --timeout "), [], "a number")


@case()
def test_bash():
    with Session() as session:
        ask = Bash(session)
        knows_all(ask)
        knows_values(ask)
        equal(ask("lien offload --on-use="), ["ignore", "restore", "wait"], "choices behind =")
        equal(ask("lien offload --on-use=r"), ["restore"], "a choice behind =")
        equal(ask("lien ps --json=l"), ["line"], "--json=")
        equal(ask("lien --v"), ["--version"], "lien's own options")
        with open(session.path("a job.lien"), "w"):
            equal(ask("lien ps --from a"), ["a job.lien"], "a file")
            equal(ask("lien replay a"), ["a job.lien"], "a file as argument")
        check("sh" in ask("lien run -- s"), "programs")
        equal(ask("lien attach "), [], "pids without an agent")


@case()
def test_pids():
    with Session() as session:
        ask = Bash(session)
        session.start_agent()
        driver = session.driver()
        session.known(driver.pid)
        for line in "lien attach ", "lien offload --pid ", "lien holders ":
            equal(ask(line), [str(driver.pid)], line)


@case()
def test_fish():
    with Session() as session:
        ask = Fish(session)
        with open(ask.path) as file:
            text = file.read()
        equal(set(ask("lien ")), {*commands(), "help"}, "commands")
        for command, options in commands().items():
            found = {word.split("=")[0] for word in ask("lien %s --" % command)}
            equal(found, options, "options of lien " + command)
        check("complete -c lien" in text, text[:200])
        knows_values(ask)


@case()
def test_zsh():
    with Session() as session:
        needs("zsh")
        path = script(session, "zsh")
        subprocess.run(["zsh", "-n", path], check=True, timeout=20)
        with open(path) as file:
            text = file.read()
        for command, options in commands().items():
            check("\t\t'%s:" % command in text, command)
            part = re.search(r"^\t%s\)\n(.*?)^\t\t;;$" % command, text, re.S | re.M)[1]
            equal(set(re.findall(r"(?:^\t\t\t|\{-\w,|)(--[\w-]+)(?=['}])", part, re.M)), options, "lien " + command)
        for line, listed in {"lien offload --on-use ": "*ignore*restore*wait*", "lien top --o": "*--once*",
                             "lien t": "*timeline*top*"}.items():
            run(["zsh", "-f", "-c", ASK_ZSH, "zsh", session.folder, line, listed], 20, env(session))


@case()
def test_installed():
    """Where the shells look."""
    with Session() as session:
        place = session.path("prefix")
        subprocess.run(["make", "-s", "-C", ROOT, "-o", "all", "install", "PREFIX=" + place,
                        "BUILD=" + os.path.relpath(os.path.dirname(LIEN), ROOT)],
                       check=True, capture_output=True, timeout=60)
        for shell, name in {"bash": "bash-completion/completions/lien", "zsh": "zsh/site-functions/_lien",
                            "fish": "fish/vendor_completions.d/lien.fish"}.items():
            with open(os.path.join(place, "share", name)) as file:
                equal(file.read(), session.lien("completion", shell).out, name)


if __name__ == "__main__":
    raise SystemExit(main())
