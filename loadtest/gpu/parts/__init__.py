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
