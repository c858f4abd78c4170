"""What a doctor sees around the worker: processor, memory pages, files, ports, models, libraries.

Each check returns what it found, or raises: Advice where a system runs all the same, any other
error where it can't.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import resource
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.process.others import Others
from penstock.recommend.fits import BUSY


@dataclass(frozen=True)
class Finding:
    """ok: nothing to fix.  text: what was found, or what is missing and how to get it.
    level: note where it could be better, and a system runs all the same.  seconds: of a phase of a
    start."""

    name: str
    ok: bool
    text: str
    level: Literal["ok", "note", "missing"] = "ok"
    seconds: float | None = None


WANTED_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
WANTED_FEATURES = ("asimd", "asimddp", "i8mm")
"""The features that ARM processors should have."""
FRONT_LIBRARIES = ("fastapi", "uvicorn", "uvloop", "httptools")
WORKER_LIBRARIES = ("torch", "safetensors", "llguidance")
LOOK = 0.3
"""Seconds."""
LOW_DISK = 2 << 30
LOW_FILES = 4096
DEFAULT_PORT = 8000
NO_C_COMPILER = (
    "no C compiler, with which Triton makes what launches its kernels: install gcc or clang, or "
    "name one in CC"
)


class Advice(Exception):
    """What could be better, or isn't there and needn't be."""


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, and which of its instruction sets matter here."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "Features" in fields:
        return _arm_processor(fields)
    flags = set(fields.get("flags", "").split())
    has = [flag for flag in WANTED_FLAGS if flag in flags]
    name = fields.get("model name", "unnamed processor")
    if "avx2" not in flags:
        raise Advice(f"{name}: no AVX2; the slow portable kernels are used")
    return f"{name}: {' '.join(has)}"


def _arm_processor(fields: dict[str, str]) -> str:
    """The system knows its maker and model as numbers only."""
    features = fields["Features"].split()
    has = [feature for feature in WANTED_FEATURES if feature in features]
    numbers = (fields.get(name, "?") for name in ("CPU implementer", "CPU part"))
    name = fields.get("model name") or "ARM, implementer {}, part {}".format(*numbers)
    if "asimddp" not in features:
        raise Advice(f"{name}: no dot products (asimddp); the slow portable kernels are used")
    return f"{name}: {' '.join(has)}"


def load() -> str:
    """What other processes take of the processors' time, within LOOK seconds."""
    others = Others()
    time.sleep(LOOK)
    share = others.share()
    said = f"others take {share:.0%} of the processors"
    if share > BUSY:
        raise Advice(f"{said}: models answer slower than they could")
    return said


def gpu() -> str:
    """CUDA devices with their memory. None is no fault: a CPU serves."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Advice("none: nvidia-smi was not found; the CPU is used")
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    names = "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip())
    if done.returncode != 0 or not names:
        raise Advice("none that responds; the CPU is used")
    return names


def triton() -> str:
    """The compiler of the CUDA kernels. Without it a CPU serves."""
    try:
        version = str(importlib.import_module("triton").__version__)
    except Exception as error:  # It loads libraries, which may fail in ways of their own.
        raise Advice(
            f"not there ({error}); a GPU needs it: pip install 'penstock-llm[cuda]'; the CPU is"
            " used"
        ) from None
    compiler = c_compiler()
    if compiler is None:
        raise Advice(f"{version}, and {NO_C_COMPILER}; the CPU is used")
    return f"{version}, with {compiler}"


def c_compiler() -> str | None:
    """What Triton will compile its launchers with; None: it would find nothing."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def huge_pages(root: Path = Path("/sys/kernel/mm/transparent_hugepage")) -> str:
    """Whether large arrays get large pages without being asked."""
    try:
        text = (root / "enabled").read_text()
    except OSError:
        raise Advice("this system doesn't say") from None
    chosen = text.partition("[")[2].partition("]")[0] or "unknown"
    if chosen == "never":
        raise Advice("never: weights and KV cache use 4 KiB pages, which costs some speed")
    return chosen


def open_files() -> str:
    """How many connections a gateway may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LOW_FILES:
        raise Advice(f"at most {hard}: a gateway takes fewer connections than that")
    return f"{soft} (may be raised to {'any' if hard == resource.RLIM_INFINITY else hard})"


def port(number: int = DEFAULT_PORT) -> str:
    """Whether `penstock serve` could listen on its default port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError as error:
            raise Advice(f"{number} is taken ({error.strerror}); use --port") from None
    return f"{number} is free"


def cache() -> str:
    """The folder for prepared models: room, and what lies in it."""
    from penstock.prepare.folder import default_cache_dir

    folder = default_cache_dir()
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(existing).free
    models = sorted(one.name for one in (folder / "models").glob("*") if one.is_dir())
    names = f"{len(models)} prepared models" if len(models) != 1 else "1 prepared model"
    text = f"{folder}: {free / (1 << 30):.1f} GiB free, {names}"
    if free < LOW_DISK:
        raise Advice(f"{text}; a model may not find room")
    return text


def libraries(names: tuple[str, ...]) -> str:
    """Versions. Raises ImportError that names what is missing, and what brings it."""
    extra = "gateway" if names is FRONT_LIBRARIES else "worker"
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise ImportError(
            f"{', '.join(missing)} missing; install it: pip install 'penstock-llm[{extra}]'"
        )
    return ", ".join(found)
