"""The progress bar of LLM: requests done, and tokens per second in and out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.llm.outputs import RequestOutput


class ProgressBar:
    """use_tqdm: whether there is a bar; or what makes one, with tqdm's arguments."""

    def __init__(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._bar: Any = None
        self._begun = time.monotonic()
        self._input = self._output = 0
        if use_tqdm:
            make = _tqdm if use_tqdm is True else use_tqdm
            self._bar = make(total=total, desc="requests", dynamic_ncols=True)

    def ended(self, output: RequestOutput) -> None:
        """Counts a request that has ended."""
        if self._bar is None:
            return
        self._input += len(output.prompt_token_ids) * len(output.outputs)
        self._output += sum(len(one.token_ids) for one in output.outputs)
        seconds = max(time.monotonic() - self._begun, 1e-9)
        self._bar.set_postfix_str(
            f"input {self._input / seconds:,.1f} toks/s, output {self._output / seconds:,.1f} "
            "toks/s",
            refresh=False,
        )
        self._bar.update(1)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _tqdm(**keywords: Any) -> Any:
    from tqdm import tqdm

    return tqdm(**keywords)
