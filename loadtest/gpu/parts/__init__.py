"""What is measured, in order. Each part is a module with `run(job)`."""

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
    Part("limits", f"{_HERE}.limits", 20),
    Part("kernel-tests", f"{_HERE}.kernel_tests", 70),
    Part("kernels-rows", f"{_HERE}.kernels", 35),
    Part("kernels-attention", f"{_HERE}.kernels", 35),
    Part("kernels-products", f"{_HERE}.kernels", 40),
    Part("steps-0", f"{_HERE}.steps", 65, model=0),
    Part("steps-1", f"{_HERE}.steps", 40, model=1),
    Part("end-to-end-0", f"{_HERE}.end_to_end", 60, model=0),
    Part("end-to-end-1", f"{_HERE}.end_to_end", 40, model=1),
    Part("transformers-0", f"{_HERE}.transformers_library", 50, model=0),
    Part("transformers-1", f"{_HERE}.transformers_library", 40, model=1),
)
