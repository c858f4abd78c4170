"""An emulated ARM processor's kernels, in place of this one's: the library that the tests load then
is forward.cpp, which hands calls to QEMU (server.cpp). So they run as they are, with the objects
that they make here."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock_kernels.cpu import library

ROOT = Path(__file__).parents[4]
FOLDER = Path(__file__).parent
WANTED = {
    "g++": "g++",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}
"""Command -> the Debian package that has it."""
OF_ARM = Path("lib") / library.PATH.relative_to(ROOT / "kernels")
FORWARDING = "libforward.so"
AS_HERE = ("kept.cpp", "runs.cpp")
"""Files of the library in which no instruction set has a part: they aren't emulated."""
PROCESSOR = "PENSTOCK_EMULATED_CPU"
"""Environment variable with QEMU's name of the processor; by default one that has everything."""


def obstacle() -> str | None:
    """What is missing, with the package that has it."""
    missing = [name for name in WANTED if shutil.which(name) is None]
    packages = ", ".join(WANTED[name] for name in missing)
    return f"no {', '.join(missing)} (Debian packages {packages})" if missing else None


def built(flags: str) -> Path:
    """The folder with the forwarding library and what it starts, kept under build/ for as long as
    sources and compilers stay the same. `flags`: for the compiler of ARM's kernels. Raises
    RuntimeError with what a compiler says where it fails."""
    kept = ROOT / "build/emulated"
    folder = kept / key(flags)
    if not folder.exists():
        kept.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(dir=kept))
        try:
            _build_kernels(begun, flags)
            # Paths become part of it: those of the folder's name in the end.
            _build_ends(begun, folder)
            begun.rename(folder)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    return folder


def key(flags: str) -> str:
    """A key of all that is built."""
    digest = hashlib.sha256(f"{flags} {ROOT}".encode())
    for compiler in ("g++", "aarch64-linux-gnu-g++"):
        digest.update(subprocess.run([compiler, "--version"], capture_output=True).stdout)
    sources = [*sorted(library.SOURCES.iterdir()), *sorted(FOLDER.glob("*.cpp"))]
    for file in (ROOT / "setup.py", Path(__file__), FOLDER / "messages.h", *sources):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:32]


def _build_kernels(folder: Path, flags: str) -> None:
    """Builds the kernels as anybody does who builds them for another machine."""
    directories = ["--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp")]
    environment = os.environ | {
        "CC": "aarch64-linux-gnu-gcc",
        "CXX": "aarch64-linux-gnu-g++",
        "LDSHARED": "aarch64-linux-gnu-gcc -shared",
        "PENSTOCK_CXXFLAGS": flags,
    }
    output = _run([sys.executable, "setup.py", "-q", "build_ext", *directories], env=environment)
    if not (folder / OF_ARM).exists():
        raise RuntimeError(output)


def _build_ends(folder: Path, named: Path) -> None:
    server = ["aarch64-linux-gnu-g++", "-O2", "-std=c++17", "-Wall", "-Wextra"]
    _run([*server, str(FOLDER / "server.cpp"), "-o", str(folder / "server")])
    paths = {
        "REAL": library.PATH,
        "EMULATOR": shutil.which("qemu-aarch64"),
        "PREFIX": "/usr/aarch64-linux-gnu",
        "SERVER": named / "server",
        "OTHER": named / OF_ARM,
    }
    macros = [f'-D{name}="{path}"' for name, path in paths.items()]
    here = ["g++", "-O1", "-std=c++17", "-Wall", "-Wextra", "-shared", "-fPIC", *macros]
    hidden = ["-fvisibility=hidden", "-pthread", "-ldl"]
    sources = [str(FOLDER / "forward.cpp"), *(str(library.SOURCES / name) for name in AS_HERE)]
    _run([*here, *sources, "-o", str(folder / FORWARDING), *hidden])


def _run(command: list[str], **options: object) -> str:
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        raise RuntimeError(done.stdout)
    return done.stdout
