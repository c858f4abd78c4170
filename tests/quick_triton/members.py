"""Which members of triton.language have quick ones in their places while a kernel runs."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from tests.quick_triton import elementwise, memory, shapes


def quick(owner: Any, name: str, own: Any) -> Any:
    """What takes a member's place; own: what the interpreter has there."""
    if owner is tl.tensor:
        made = elementwise.of_tensors(name, own) or shapes.of_tensors(name, own)
    elif owner in (tl, tl.core, tl.math):
        made = (
            elementwise.of_language(name, own)
            or memory.of_language(name, own)
            or shapes.of_language(name, own)
        )
    else:
        made = None
    return made or own
