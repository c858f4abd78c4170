"""Compiles and runs probe.cpp."""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.process.machine import usable_cores

SOURCE = Path(__file__).with_name("probe.cpp")
BUFFER_MIB = 768
"""Read for the bandwidth: many times any cache."""


class ProbeUnavailable(RuntimeError):
    """No compiler, or another kind of processor; the message says which."""


@dataclass(frozen=True)
class Limits:
    """What `threads` threads can do at most. Multiply-adds count as two operations; None: not
    measured, as the processor has no such instructions."""

    threads: int
    read_bytes_per_s: float
    int8_ops_per_s: float | None
    bf16_ops_per_s: float | None
    block_int8_ops_per_s: float | None = None
    """Operations with int8 where each 32 weights have a scale and a minimum, as a GGUF file's
    blocks do. None also where int8 isn't AVX-512 VNNI's, but AMX's or AVX2's."""

    @property
    def ops_per_s(self) -> float | None:
        """The peak that bounds a quantised model's products."""
        return self.int8_ops_per_s or self.bf16_ops_per_s

    def told(self) -> str:
        """Describes the machine's limits within a sentence."""
        units = {"int8": self.int8_ops_per_s, "bfloat16": self.bf16_ops_per_s}
        units["int8 in blocks of 32 weights"] = self.block_int8_ops_per_s
        peaks = [f"{each / 1e12:.2f} T {name} operations/s" for name, each in units.items() if each]
        memory = f"{self.read_bytes_per_s / 1e9:.1f} GB/s read from memory"
        return f"{self.threads} threads: {', '.join([memory, *peaks])}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    threads: int | None = None, buffer_mib: int = BUFFER_MIB, processor: str = "native"
) -> Limits:
    """About a second. threads: default all usable cores.  processor: whose instructions are used,
    as the compiler's -march has it.  Raises ProbeUnavailable."""
    threads = threads or max(int(usable_cores()), 1)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_DYNAMIC": "false"}
    command = [str(_program(processor) / "probe"), str(threads), str(buffer_mib)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeUnavailable(f"the probe did not run: {error}") from error
    return Limits(**json.loads(done.stdout))


def limits_of(document: Mapping[str, Any]) -> Limits | None:
    """The median of the probes that a result file holds."""
    return median([msgspec.convert(each, Limits) for each in document["limits"]])


def median(measured: Sequence[Limits]) -> Limits | None:
    """Field by field, over probes with equally many threads; None without any."""
    if not measured:
        return None

    def middle(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    return Limits(
        threads=measured[0].threads,
        read_bytes_per_s=statistics.median(m.read_bytes_per_s for m in measured),
        int8_ops_per_s=middle([m.int8_ops_per_s for m in measured]),
        bf16_ops_per_s=middle([m.bf16_ops_per_s for m in measured]),
        block_int8_ops_per_s=middle([m.block_int8_ops_per_s for m in measured]),
    )


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Gone when the interpreter ends."""
    return tempfile.TemporaryDirectory(prefix="roofline-")


@functools.cache
def _program(processor: str) -> Path:
    """The folder with the compiled probe; once in a process."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ProbeUnavailable(f"no roofline: there is no C++ compiler called {compiler}")
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    flags = ["-std=c++17", "-O3", f"-march={processor}", "-fopenmp"]
    done = subprocess.run(
        [compiler, *flags, "-o", str(folder / "probe"), str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ProbeUnavailable(f"no roofline: {compiler} can't compile the probe: {last[0]}")
    return folder
