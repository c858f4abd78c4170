"""In which shapes tiles are timed. A candidate that is slow in the first isn't timed in others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The shapes. Of products: how many rows."""

    model: str = "Llama-3.1-8B"
    decode: tuple[tuple[int, int], ...] = ((64, 8192), (1, 32_768), (8, 2048), (256, 1024))
    """(batch, context) of attention."""
    chunks: tuple[tuple[int, int, int], ...] = ((1, 0, 8192), (1, 6144, 2048))
    """(sequences, before, new) of attention."""
    invariant_rows: tuple[int, ...] = (64, 1, 8, 256, 2048)
    packed_rows: tuple[int, ...] = (1, 8, 64)
    gguf_matrices: tuple[str, ...] = ("gate, up", "down")
    """The down projection has few outputs and many inputs."""
    few_rows: tuple[int, ...] = (1, 8)
    many_rows: tuple[int, ...] = (64, 128)
    fp8_rows: tuple[int, ...] = (64, 1, 256, 2048)
    rows: tuple[int, ...] = (64, 8192)
    sampled_rows: int = 64
    candidates: int = 64  # of each setting, at most


GPU = Sizes()
DRY = Sizes(
    model="tiny-llama",
    decode=((2, 40),),
    chunks=((1, 16, 20),),
    invariant_rows=(3,),
    packed_rows=(2,),
    gguf_matrices=("down",),
    few_rows=(2,),
    many_rows=(20,),
    fp8_rows=(2,),
    rows=(3,),
    sampled_rows=2,
    candidates=2,
)
