"""Finds and loads the shared library of CPU kernels, and declares its functions."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

from penstock_kernels.cpu.sources import digest
from penstock_kernels.cpu.structs import PkBatch, PkKept, PkMatrix, PkProgram, PkSampling

PATH = Path(__file__).with_name("libpenstock_cpu.so")
INSTRUCTION_SETS = (
    *("amx", "avx512", "avx512vnni", "avxvnni", "avx2"),
    *("neoni8mm", "neon"),
    "portable",
)
"""amx: avx512vnni, but AMX multiplies bfloat16, and the whole numbers of many rows; a process asks
the system for it.  avx512vnni: AVX-512 with integer dot products, but without units for bfloat16,
or with ones that multiply less than those for floats, as Intel's do.  avxvnni: AVX2 with integer
dot products.  neon: of ARM processors, with integer dot products.  neoni8mm: with products of 8-bit
matrices, too."""
_SAME_BITS = dict.fromkeys(("avx512vnni", "avxvnni", "neoni8mm", "neon"), "avx2")
"""Instruction sets that compute another one's bits."""
_REVISED = {"amx": "amx 3", "avx512": "avx512 3", "avx2": "avx2 2", "portable": "portable 2"}
"""Instruction sets whose bits a version has changed, each with the number of its present ones:
blocks on disk and receipts of the former ones belong to another fingerprint."""
CHOICE = "PENSTOCK_CPU_ISA"
"""Environment variable that names a lesser instruction set, for comparisons or to rule one out."""
OTHER_PATH = "PENSTOCK_CPU_LIBRARY"
"""Environment variable with the path of another build of the library, such as one with
sanitizers."""

SOURCES = Path(__file__).with_name("csrc")
"""Folder of the sources where Penstock runs from its repository; an installed wheel has none."""

_SIGNATURES = {
    "pk_instruction_set": (c_char_p, []),
    "pk_sources": (c_char_p, []),
    "pk_use": (c_int, [c_char_p]),
    "pk_matrix_bytes": (c_size_t, [c_int, c_int, c_int]),
    "pk_pack": (
        c_int,
        [c_int, c_void_p, c_int, c_int, c_int, c_void_p, c_int, c_void_p, c_int],
    ),
    "pk_product_bytes": (c_size_t, [POINTER(PkMatrix), c_int, c_int]),
    "pk_product": (None, [POINTER(PkMatrix), c_void_p, c_int, c_int, c_void_p, c_int, c_void_p]),
    "pk_check": (c_int, [POINTER(PkProgram)]),
    "pk_forward_bytes": (c_size_t, [POINTER(PkProgram), POINTER(PkBatch)]),
    "pk_forward": (None, [POINTER(PkProgram), POINTER(PkBatch), c_void_p]),
    "pk_sample_bytes": (c_size_t, [POINTER(PkSampling)]),
    "pk_sample": (None, [POINTER(PkSampling), c_void_p]),
    "pk_uniform": (None, [c_int, c_void_p, c_void_p, c_void_p, c_void_p]),
    "pk_gather": (None, [c_void_p, c_void_p, c_int, c_uint64, c_void_p]),
    "pk_checksum": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "pk_keep": (c_int, [POINTER(PkKept), c_int]),
    "pk_runs_new": (c_void_p, [c_int, c_void_p, c_int]),
    "pk_runs_free": (None, [c_void_p]),
    "pk_runs_extend": (c_int, [c_void_p, c_void_p, c_int, c_int]),
    "pk_runs_guess": (
        c_int,
        [c_void_p, c_int, c_void_p, c_int, c_int, c_int, c_int, c_void_p],
    ),
}
_BRIEF = (
    *("pk_forward_bytes", "pk_sample_bytes", "pk_uniform", "pk_gather"),
    *("pk_runs_new", "pk_runs_free", "pk_runs_extend", "pk_runs_guess"),
)
"""Functions that a step calls before its forward pass, and that take microseconds: they keep the
interpreter's lock. Where a call lets go of it, a thread that has waited for it goes on, and the
step begins when that thread is through."""


@functools.cache
def load() -> ctypes.CDLL:
    """Returns the library with its functions declared. Raises ImportError, which says why there is
    none."""
    path = Path(os.environ.get(OTHER_PATH) or PATH)
    if not path.exists():
        if path != PATH:
            raise ImportError(f"{OTHER_PATH} is {str(path)!r}: there is no such file")
        raise ImportError(
            "the CPU kernels were not built: install a C++ compiler with OpenMP (g++), then "
            "install Penstock again"
        )
    # It brings the OpenMP library, libgomp.so.1: a machine may have no other, and two in a process
    # would each have threads of their own.
    import torch  # noqa: F401

    try:
        library, keeping_lock = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for name in _BRIEF:
            setattr(library, name, getattr(keeping_lock, name))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ImportError(f"the CPU kernels can't be loaded: {error}") from error
    if SOURCES.is_dir() and library.pk_sources().decode() != digest(SOURCES):
        raise ImportError(
            f"{path} was built of other sources than lie in {SOURCES}: install Penstock again"
        )
    _choose(library, os.environ.get(CHOICE, ""))
    return library


def _choose(library: ctypes.CDLL, wanted: str) -> None:
    """Has it use the wanted instruction set; an empty string leaves the choice to the library.
    Raises ImportError where it can't."""
    if not library.pk_instruction_set():
        raise ImportError(
            "the CPU kernels were built for another processor than this one: install Penstock "
            "again (in a clone, make serve does)"
        )
    if wanted and library.pk_use(wanted.encode()) != 0:
        here = [name for name in INSTRUCTION_SETS if library.pk_use(name.encode()) == 0]
        raise ImportError(
            f"{CHOICE} is {wanted!r}, which this processor or build lacks; it has "
            f"{', '.join(here)} (PENSTOCK_INSTRUCTION_SETS, when it is installed, chooses those of "
            "a build)"
        )


def instruction_set() -> str:
    """Returns the one in use, of INSTRUCTION_SETS."""
    name: bytes = load().pk_instruction_set()
    return name.decode()


def bits() -> str:
    """Returns a name of the bits that the instruction set in use computes: its own or a lesser
    one's, with the number of its revision."""
    name = instruction_set()
    name = _SAME_BITS.get(name, name)
    return _REVISED.get(name, name)


def use(name: str) -> None:
    """Switches to another instruction set from now on. Raises ValueError if it isn't available."""
    if load().pk_use(name.encode()) != 0:
        raise ValueError(f"this processor or build has no {name!r}")
