"""Five kernels, each once within the profiler's range: `python -m loadtest.gpu.counted`, which ncu
starts.

Which: of the kernels that a served model needs, those whose time a step's profile doesn't explain
by bytes or operations.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch

from loadtest.gpu.extent import DRY, GPU, Extent
from loadtest.gpu.parts.cases import Case
from loadtest.gpu.parts.kernels_attention import chunk, decode
from loadtest.gpu.parts.kernels_products import BFLOAT16, gguf, packed, product_cases
from loadtest.gpu.shapes import MODELS


def five(extent: Extent) -> Iterator[Case]:
    config, few = MODELS[extent.kernels], extent.packed_rows[-1:]
    yield decode(config, *extent.decode[0])
    yield chunk(config, *extent.chunks[0])
    yield from product_cases(config, packed(4), few, op="linear, int4 weights")
    yield from product_cases(config, gguf("Q4_K"), few, op="linear, Q4_K weights")
    yield from product_cases(config, BFLOAT16, extent.product_rows[-2:-1], op="linear, invariant")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu.counted")
    parser.add_argument("--dry", action="store_true")
    on_device = torch.cuda.is_available()
    device = torch.device("cuda" if on_device else "cpu")
    with torch.inference_mode():
        for case in five(DRY if parser.parse_args().dry else GPU):
            work = case.make(device).work(None)
            if not on_device:
                work()
            else:
                counted(work)
            print(f"{case.op} {case.shape}", file=sys.stderr)
    return 0


def counted(work: object) -> None:
    """Runs it once before, so that nothing is compiled within the range."""
    if not callable(work):
        raise TypeError(f"{work!r} can't be called")
    work()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    work()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    sys.exit(main())
