"""Tokens of requests that nobody reads as they come: they go out several at a time.

Each message wakes a front end, which on a small machine takes a processor from the worker's threads
in the middle of a step. What is held here is lost with the engine core, and computed again.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.protocol.to_frontend import SequenceOutput

MOST_HELD = 32
"""Tokens of a sequence that are held, at most: whatever brings more sends all that is held."""


class GatheredOutputs:
    """Outputs for one front end that are held, to be sent together.

    A sequence's first output since its request entered a step is not held: it tells the front end
    that the request is not what kills engine cores. Nor is anything held of one that is in no step.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], list[SequenceOutput]] = {}
        """Held outputs by request and sequence; empty for one whose next output may be held."""

    def take(self, output: SequenceOutput) -> list[SequenceOutput]:
        """What is to be sent now that `output` has come."""
        key = output.request, output.sequence
        if output.finish is not None:
            return [*_joined(self._held.pop(key, [])), output]
        held = self._held.get(key)
        if held is None or not output.tokens or output.prompt_logprobs is not None:
            self._held[key] = []
            return [*_joined(held or []), output]
        held.append(output)
        tokens = sum(len(output.tokens) for output in held)
        return self._all() if tokens > MOST_HELD else []

    def release(self, request: int, sequences: list[int]) -> list[SequenceOutput]:
        """What is held of a request that has entered a step, or left."""
        return [out for index in sequences for out in _joined(self._held.pop((request, index), []))]

    def _all(self) -> list[SequenceOutput]:
        """Everybody's: otherwise sequences that began at different times would take turns, and the
        front end would be woken as often as before."""
        outputs = [output for held in self._held.values() for output in _joined(held)]
        for key in self._held:
            self._held[key] = []
        return outputs

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Request and sequence, of all that are known here."""
        return iter(self._held)


def _joined(held: list[SequenceOutput]) -> list[SequenceOutput]:
    """Outputs of one sequence as one, where they are tokens and nothing else."""
    if len(held) < 2 or any(out.logprobs is not None or out.drafted for out in held):
        return held
    tokens = [token for out in held for token in out.tokens]
    return [SequenceOutput(held[0].request, held[0].sequence, tokens)]
