# SPDX-License-Identifier: BSD-2-Clause
"""What pip calls to make a wheel (PEP 517, PEP 660), and `make deb` to install the package. It is Python alone, so a
wheel is its files in an archive; this needs no setuptools, and so no network."""

import base64
import hashlib
import io
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from typing import Any, Iterator, List, Optional, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
TAG = "py3-none-any"
ENTRY_POINTS = "[vllm.general_plugins]\nlien = lien.vllm:register\n"  # as in pyproject.toml


def _version() -> str:
    with open(os.path.join(HERE, "lien", "__init__.py"), encoding="utf-8") as source:
        return re.findall(r'^__version__ = "(.*)"$', source.read(), re.M)[0]  # type: ignore[no-any-return]


def _metadata() -> str:
    return ("Metadata-Version: 2.1\nName: lien\nVersion: %s\n"
            "Summary: Moves the GPU memory of running jobs to host memory, and back; says who holds it\n"
            "License: BSD-2-Clause\nRequires-Python: >=3.9\n" % _version())


def _files(folder: str) -> Iterator[Tuple[str, str]]:
    """(name in an archive, path) of the package."""
    for name in sorted(os.listdir(os.path.join(HERE, folder))):
        if name.endswith((".py", ".typed")):
            yield folder + "/" + name, os.path.join(HERE, folder, name)


def _wheel(directory: str, contents: List[Tuple[str, bytes]]) -> str:
    name = "lien-%s-%s.whl" % (_version(), TAG)
    info = "lien-%s.dist-info/" % _version()
    contents = contents + [
        (info + "METADATA", _metadata().encode()),
        (info + "entry_points.txt", ENTRY_POINTS.encode()),
        (info + "WHEEL", ("Wheel-Version: 1.0\nGenerator: build_lien\nRoot-Is-Purelib: true\nTag: %s\n" % TAG).encode())]
    record = ""
    with zipfile.ZipFile(os.path.join(directory, name), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += "%s,sha256=%s,%d\n" % (path, digest, len(data))
            archive.writestr(path, data)
        archive.writestr(info + "RECORD", record + info + "RECORD,,\n")
    return name


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    return _wheel(wheel_directory, [(name, _read(path)) for name, path in _files("lien")])


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    return _wheel(wheel_directory, [("lien.pth", (HERE + "\n").encode())])


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    top = "lien-%s" % _version()
    with tarfile.open(os.path.join(sdist_directory, top + ".tar.gz"), "w:gz") as archive:
        for name, path in [*_files("lien"), ("pyproject.toml", os.path.join(HERE, "pyproject.toml")),
                           ("build_lien.py", os.path.abspath(__file__))]:
            archive.add(path, top + "/" + name)
        metadata = tarfile.TarInfo(top + "/PKG-INFO")
        metadata.size = len(_metadata().encode())
        archive.addfile(metadata, io.BytesIO(_metadata().encode()))
    return top + ".tar.gz"


def install(directory: str) -> None:
    """Puts the package there, for a package manager: it keeps its own record, so there is none of pip's."""
    with tempfile.TemporaryDirectory() as made:
        with zipfile.ZipFile(os.path.join(made, build_wheel(made))) as archive:
            archive.extractall(directory, [name for name in archive.namelist() if not name.endswith("/RECORD")])


if __name__ == "__main__":
    install(sys.argv[1])
