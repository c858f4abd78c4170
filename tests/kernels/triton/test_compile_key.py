"""Which launches are one to the compiler of compile_for_hopper."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.runtime.jit import JITFunction

from tests.kernels.triton.compile_for_hopper import Compiler


def _double(x, size: triton.language.constexpr):  # type: ignore[no-untyped-def]
    pass


KERNEL = JITFunction(_double)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Options of what was compiled."""
    made: list[dict[str, int]] = []
    monkeypatch.setattr(triton, "compile", lambda source, target, options: made.append(options))
    monkeypatch.setattr(Compiler, "report", lambda *_: None)
    return made


def test_warps_and_stages_make_another_launch(compiled: list[Any]) -> None:
    launches = [{"num_warps": 4}, {"num_warps": 8}, {"num_warps": 8, "num_stages": 5}]
    for compiler in (Compiler(), Compiler(once=True)):
        for options in (*launches, *launches):
            compiler.run(KERNEL, 7, size=16, grid=(1,), warmup=False, **options)
        assert compiled == launches
        compiled.clear()
