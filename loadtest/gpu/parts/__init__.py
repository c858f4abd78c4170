"""What is measured, in the order of its worth. Each part is a module with `run(job)`."""

from __future__ import annotations

from dataclasses import dataclass

_HERE = "loadtest.gpu.parts"


@dataclass(frozen=True)
class Part:
    name: str
    module: str
    seconds: float  # its time; it may have what the others leave as well
    model: int = 0  # number of the extent's model, of a part that measures one
    modes: tuple[str, ...] = ()
    """Names of the modes that it measures. Empty: all."""


@dataclass(frozen=True)
class Visit:
    """What one call of run.sh measures.

    seconds: for everything, the installation and the report included.  lent: whether it is for a
    machine that has nothing but what travels.
    """

    seconds: float
    parts: tuple[Part, ...]
    lent: bool = True


LIMITS = Part("limits-short", f"{_HERE}.limits", 8)
FEATURES = Part("features", f"{_HERE}.kernel_tests", 45)
BITS = Part("bits", f"{_HERE}.bits", 10)
ATTENTION = Part("kernels-attention", f"{_HERE}.kernels", 18)
PRODUCTS = Part("kernels-products", f"{_HERE}.kernels", 18)
HUMMING = Part("kernels-humming", f"{_HERE}.kernels_humming", 24)
COUNTERS = Part("counters", f"{_HERE}.counters", 18)
PACKED = Part(
    "steps-0-packed", f"{_HERE}.steps", 32, model=0, modes=("int4 weights", "fp8 weights")
)
Q4_K = Part("steps-0-q4k", f"{_HERE}.whole_files", 34, model=0)
MIXTURE = Part("steps-1-mixture", f"{_HERE}.whole_files", 36, model=1)
HOST = Part("steps-1-host", f"{_HERE}.whole_files", 32, model=1)
TORCH = Part("torch-0", f"{_HERE}.torch_peer", 10, model=0)
PROMISE = Part("promise-0", f"{_HERE}.promise", 28, model=0)
SERVED = Part("end-to-end-0", f"{_HERE}.end_to_end", 125, model=0)
SERVED_SMALL = Part("end-to-end-1", f"{_HERE}.end_to_end", 38, model=1)
STORED = Part("stored-kv", f"{_HERE}.stored_kv", 30, model=1)

PARTS = (
    Part("works", f"{_HERE}.works", 180),
    FEATURES,
    Part("limits", f"{_HERE}.limits", 30),
    Part("steps-0", f"{_HERE}.steps", 270, model=0),
    Part("mixed-0", f"{_HERE}.mixed", 110, model=0),
    ATTENTION,
    PRODUCTS,
    HUMMING,
    COUNTERS,
    BITS,
    PACKED,
    Q4_K,
    MIXTURE,
    HOST,
    TORCH,
    SERVED,
    Part("steps-1", f"{_HERE}.steps", 150, model=1),
    SERVED_SMALL,
    Part("promise", f"{_HERE}.promise", 60),
    PROMISE,
    Part("kernels-rows", f"{_HERE}.kernels", 60),
    STORED,
    Part("kernel-tests", f"{_HERE}.kernel_tests", 555),
)
"""The call of a visit without haste."""
WORKS = (
    LIMITS,
    Part("checks", f"{_HERE}.checks", 42),
    FEATURES,
    Part("steps-0-default", f"{_HERE}.steps", 40, model=0, modes=("default",)),
    Part("steps-0-invariant", f"{_HERE}.steps", 40, model=0, modes=("batch-invariant",)),
    BITS,
    PRODUCTS,
    ATTENTION,
    HUMMING,
    COUNTERS,
    PACKED,
    PROMISE,
    MIXTURE,
    TORCH,
)
"""Does it work, and what does a step consist of? Its large shapes fill the cache of compiled
kernels that the second call carries."""
SPEED = (
    SERVED,
    SERVED_SMALL,
    STORED,
    Q4_K,
    HOST,
)
"""How fast is it, served?"""
VISITS = {
    "works": Visit(400, WORKS),
    "speed": Visit(290, SPEED),
    "whole": Visit(2340, PARTS, lent=False),
}
"""Visits by the name of the call. The first two are a quarter of an hour together, with a machine's
start and the transfers; the last takes forty minutes."""
EVERY_PART = {part.name: part for visit in VISITS.values() for part in visit.parts}
