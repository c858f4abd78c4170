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


PARTS = (
    Part("works", f"{_HERE}.works", 180),
    Part("limits", f"{_HERE}.limits", 30),
    Part("steps-0", f"{_HERE}.steps", 270, model=0),
    Part("mixed-0", f"{_HERE}.mixed", 110, model=0),
    Part("kernels-attention", f"{_HERE}.kernels", 90),
    Part("kernels-products", f"{_HERE}.kernels", 90),
    Part("end-to-end-0", f"{_HERE}.end_to_end", 180, model=0),
    Part("steps-1", f"{_HERE}.steps", 150, model=1),
    Part("end-to-end-1", f"{_HERE}.end_to_end", 150, model=1),
    Part("transformers-0", f"{_HERE}.transformers_library", 150, model=0),
    Part("kernels-rows", f"{_HERE}.kernels", 60),
    Part("transformers-1", f"{_HERE}.transformers_library", 100, model=1),
    Part("stored-kv", f"{_HERE}.stored_kv", 45, model=1),
    Part("kernel-tests", f"{_HERE}.kernel_tests", 555),
)
"""The call of a visit without haste."""
WORKS = (
    Part("checks", f"{_HERE}.checks", 45),
    Part("tokens", f"{_HERE}.works", 40),
    Part("steps-0-first", f"{_HERE}.steps", 75, model=0, modes=("first",)),
    Part("promise", f"{_HERE}.promise", 55),
    Part("tests", f"{_HERE}.kernel_tests", 45),
)
"""Does it work? Ordered by what each teaches; the large shape comes early, as it fills the cache
of compiled kernels that the second call carries."""
SPEED = (
    Part("limits-short", f"{_HERE}.limits", 15),
    Part("steps-0-default", f"{_HERE}.steps", 55, model=0, modes=("default",)),
    Part("torch-0", f"{_HERE}.torch_peer", 30, model=0),
    Part("end-to-end-0-once", f"{_HERE}.end_to_end", 85, model=0),
    Part("steps-0-invariant", f"{_HERE}.steps", 55, model=0, modes=("batch-invariant",)),
    Part("steps-0-late", f"{_HERE}.steps", 35, model=0, modes=("default, no early launches",)),
    Part("transformers-0-short", f"{_HERE}.transformers_library", 30, model=0),
)
"""How fast?"""
VISITS = {
    "works": Visit(300, WORKS),
    "speed": Visit(345, SPEED),
    "whole": Visit(2340, PARTS, lent=False),
}
"""Visits by the name of the call. The first two are a quarter of an hour together, with a machine's
start and the transfers; the last takes forty minutes."""
EVERY_PART = {part.name: part for visit in VISITS.values() for part in visit.parts}
