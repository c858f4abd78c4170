"""Outputs for one front end, divided into messages that it reads in a few milliseconds each."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_frontend import SequenceOutput

MAX_OUTPUTS = 4096
"""Outputs in one message: a step gives at most max_num_seqs, a mass failure may give more."""

MAX_VALUES = 32_768
"""Tokens, ids and log-probabilities in one message, and one output more: some 3 ms to decode."""


def is_large(output: SequenceOutput) -> bool:
    """Whether it may have many values: it brings log-probabilities."""
    return output.logprobs is not None or output.prompt_logprobs is not None


def messages(outputs: list[SequenceOutput], *, large: bool) -> Iterator[list[SequenceOutput]]:
    """Yields the outputs in order, those of one message at a time; of none an empty list. large:
    whether some may have many values, which are counted then; a prompt's log-probabilities are
    divided."""
    if large:
        yield from _by_values(outputs)
        return
    for start in range(0, len(outputs), MAX_OUTPUTS) or (0,):
        yield outputs[start : start + MAX_OUTPUTS]


def _by_values(outputs: list[SequenceOutput]) -> Iterator[list[SequenceOutput]]:
    part: list[SequenceOutput] = []
    total = 0
    for output in (piece for whole in outputs for piece in _pieces(whole)):
        if total >= MAX_VALUES or len(part) >= MAX_OUTPUTS:
            yield part
            part, total = [], 0
        part.append(output)
        total += 1 + len(output.tokens) + _values(output.logprobs) + _values(output.prompt_logprobs)
    if part or not outputs:
        yield part


def _pieces(output: SequenceOutput) -> Iterator[SequenceOutput]:
    """An output as several, the prompt's log-probabilities first, where these are many."""
    of_prompt = output.prompt_logprobs
    if of_prompt is None or _values(of_prompt) <= MAX_VALUES:
        yield output
        return
    most, cached = max(1, MAX_VALUES * len(of_prompt) // _values(of_prompt)), output.cached_tokens
    *starts, last = range(0, len(of_prompt), most)
    for start in starts:
        piece = of_prompt[start : start + most]
        yield SequenceOutput(
            output.request, output.sequence, prompt_logprobs=piece, cached_tokens=cached
        )
        cached = None
    yield msgspec.structs.replace(output, prompt_logprobs=of_prompt[last:], cached_tokens=cached)


def _values(entries: list[TokenLogprobs] | None) -> int:
    """Numbers in them, as if each had as many as the first."""
    return len(entries) * (1 + 2 * len(entries[0].top_ids)) if entries else 0
