"""An answer that a reader is given long after it was computed comes to it in small parts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.to_frontend import Outputs, SequenceOutput
from penstock_engine.request import kept
from penstock_engine.sessions import output_messages
from tests.engine.handlers.adopted import AGAIN, LONG, PROMPT, begun, is_whole
from tests.engine.harness import Harness


def _values(output: SequenceOutput) -> int:
    entries = [*(output.logprobs or ()), *(output.prompt_logprobs or ())]
    return 1 + len(output.tokens) + sum(1 + 2 * len(each.top_ids) for each in entries)


@pytest.mark.parametrize("more", [{}, {"prompt_logprobs": 1}, {"logprobs": None}])
@pytest.mark.parametrize("steps", [9, 100])
def test_it_comes_in_small_parts(
    monkeypatch: pytest.MonkeyPatch, steps: int, more: dict[str, Any]
) -> None:
    """A front end reads a message in one turn, in which its other streams wait."""
    monkeypatch.setattr(kept, "PART", 3)
    monkeypatch.setattr(output_messages, "MAX_VALUES", 9)
    h = Harness()
    options = {**LONG, **more}
    front, _ = begun(h, 0, n=2, **more)
    for _ in range(steps):
        h.run_step()
    h.disconnect(front)
    heard: list[list[SequenceOutput]] = []
    gets = h._front_gets

    def noted(front: Any, message: Any, frames: Any) -> None:
        if isinstance(message, Outputs):
            heard.append(message.outputs)
        gets(front, message, frames)

    monkeypatch.setattr(h, "_front_gets", noted)
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, n=2, **options)
    told = [*heard]
    h.run()
    if options["logprobs"] is not None:
        is_whole(h, again)
    assert h.core.state.kept_answers.adopted == 1
    assert all(sum(map(_values, outputs[:-1])) < 9 for outputs in told)
    assert len(told) >= 2
    assert sum(len(each.tokens) for outputs in told for each in outputs) >= 2 * 6
    for output in [each for outputs in told for each in outputs]:
        assert len(output.tokens) <= 3
        assert len(output.prompt_logprobs or ()) <= 3
