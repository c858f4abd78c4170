"""Which wheels a GPU machine needs: `python loadtest/gpu/wheels.py` lists what to download.

Standard library only, but for `packaging`, which comes with transformers: it runs before anything
is installed.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRESENT = {
    *("torch", "triton", "transformers", "numpy", "tokenizers", "safetensors", "huggingface_hub"),
    *("pyyaml", "tqdm", "packaging", "filelock"),
}
"""What the machine brings: torch, Triton, transformers and what these need; it stays as it is."""
OPTIONAL = ("gateway", "engine", "worker")
"""Extras of this project that the measurements run."""
TESTING = (
    *("gguf", "hypothesis", "psutil"),
    *("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist"),
)
"""Packages of the extra `dev`, for the kernels' tests."""
MEASURED = ("humming-kernels>=0.1.20,<0.2",)
"""Packages of others that a visit measures beside ours. What they need is there."""
BELOW = {
    "fastapi": ("starlette", "pydantic", "annotated-doc", "opentelemetry-api"),
    "starlette": ("anyio",),
    "anyio": ("idna",),
    "pydantic": (
        "pydantic_core",
        "annotated-types",
        "typing-inspection",
        "typing_extensions>=4.16",
    ),
    "uvicorn": ("click", "h11"),
    "limits": ("Deprecated", "wrapt"),
    "jinja2": ("MarkupSafe",),
    "pytest": ("iniconfig", "pluggy", "Pygments"),
    "pytest-xdist": ("execnet",),
    "hypothesis": ("sortedcontainers",),
    "soundfile": ("cffi",),
    "cffi": ("pycparser",),
}
"""What those need in turn, beyond PRESENT: pip is told to look for nothing by itself.
typing_extensions is there too, but perhaps too old for pydantic."""


def requirements() -> list[str]:
    """Requirement lines of all that is to be downloaded, each distribution once."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in OPTIONAL for line in extras[name])]
    lines += [line for line in extras["dev"] if name_of(line) in map(canonical, TESTING)]
    chosen: dict[str, str] = {}
    waiting = [*lines, *MEASURED]
    while waiting:
        line = waiting.pop(0)
        name = name_of(line)
        if name not in chosen and name not in map(canonical, PRESENT):
            chosen[name] = line
            waiting += BELOW.get(name, ())
    return list(chosen.values())


def missing(wheels: Iterable[Path]) -> list[str]:
    """`name==version` of the wheels that this interpreter lacks, or has in a version that this
    project doesn't take."""
    stated = {name_of(line): line for line in requirements()}
    held = set(map(canonical, PRESENT))
    wanted = []
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        name = canonical(name)
        if name not in held and not _satisfied(stated.get(name, name)):
            wanted.append(f"{name}=={version}")
    return wanted


def _satisfied(line: str) -> bool:
    try:
        installed = importlib.metadata.version(name_of(line))
    except importlib.metadata.PackageNotFoundError:
        return False
    from packaging.requirements import Requirement

    return Requirement(line).specifier.contains(installed, prereleases=True)


def name_of(line: str) -> str:
    """The canonical name that a requirement line begins with."""
    found = re.match(r"[A-Za-z0-9._-]+", line)
    if found is None:
        raise ValueError(f"{line!r} begins with no distribution's name")
    return canonical(found[0])


def canonical(name: str) -> str:
    """The name as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in requirements()))
