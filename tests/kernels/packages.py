# SPDX-License-Identifier: BSD-2-Clause
"""Debian's kernel packages: downloaded by apt, of which only the kernel's image is kept. Nothing is installed, and
the machine's own apt is not touched: it works in a folder, with sources of its own."""

import os
import re
import shutil
import subprocess

MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIMIT_S = 600


class Unavailable(Exception):
    """Why there is no package."""


class Apt:
    def __init__(self, folder, suite):
        self.folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        with open(os.path.join(folder, "sources.list"), "w") as file:
            file.write("deb [arch=amd64 signed-by=%s] %s %s main\n" % (KEYRING, MIRROR, suite))
        with open(os.path.join(folder, "status"), "w"):
            pass

    def run(self, program, *args):
        """What it says; apt-get's first complaint is the reason when it fails."""
        places = {"Dir::Etc::SourceList": "sources.list", "Dir::State": "", "Dir::State::status": "status",
                  "Dir::Cache": "cache"}
        options = ["%s=%s" % (name, os.path.join(self.folder, place)) for name, place in places.items()]
        options += ["Dir::Etc::SourceParts=-", "APT::Architecture=amd64", "APT::Sandbox::User=root",
                    "Acquire::Retries=1", "Acquire::http::Timeout=20"]
        argv = [program, "-q", *(word for option in options for word in ("-o", option)), *args]
        try:
            done = subprocess.run(argv, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable("%s: %s" % (program, error)) from None
        complaints = re.findall(r"^[EW]: (.*)", done.stderr, re.M)
        if done.returncode or program == "apt-get" and args[0] == "update" and complaints:
            raise Unavailable("%s %s: %s" % (program, args[0], (complaints or ["failed"])[0]))
        return done.stdout


def unpack(package, path):
    """Keeps the kernel of a package."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as deb:
        with open(path + ".new", "wb") as file:
            done = subprocess.run(["tar", "-x", "-O", "--wildcards", "./boot/vmlinuz-*"], stdin=deb.stdout,
                                  stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode or deb.returncode:
        raise Unavailable("%s: %s" % (os.path.basename(package), done.stderr.strip() or "dpkg-deb failed"))
    os.replace(path + ".new", path)


def image(kernel, suite, folder):
    """The path of the newest kernel of that version in a suite of Debian's; from the folder if it is there."""
    path = os.path.join(folder, "vmlinuz-" + kernel)
    if os.path.exists(path):
        return path
    if not os.path.exists(KEYRING):
        raise Unavailable("no %s (package debian-archive-keyring)" % KEYRING)
    place = os.path.join(folder, "apt-" + suite)
    apt = Apt(place, suite)
    apt.run("apt-get", "update")
    names = re.findall(r"linux-image-%s[.0-9]*[-+][^ ]*amd64" % re.escape(kernel),
                       apt.run("apt-cache", "show", "linux-image-amd64"))
    if not names:
        raise Unavailable("no kernel %s in %s" % (kernel, suite))
    apt.run("apt-get", "download", names[0])
    package, = (name for name in os.listdir(place) if name.startswith(names[0] + "_"))
    unpack(os.path.join(place, package), path)
    shutil.rmtree(place)
    return path
