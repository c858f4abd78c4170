"""TritonForward against the reference, step by step, and its graphs' path against its plain one."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock_worker.forward.buckets import Buckets
from penstock_worker.forward.captures import CapturedWork, EagerCaptures, EagerRecording, Work
from penstock_worker.forward.interface import Batch, Forward, StepCancelled
from penstock_worker.forward.queued import TritonForward
from tests.worker.cuda.small_models import (
    BLOCK,
    GROUPED,
    NORMED,
    POSITIONS,
    SLOTS,
    batch,
    prompt,
    queued,
    reference,
    small_model,
)

pytestmark = pytest.mark.timeout(240)
BUCKETS = Buckets(SLOTS, POSITIONS, BLOCK)


@dataclass
class Sequence:
    """A sequence of one slot. chunks: how its prompt is cut."""

    slot: int
    tokens: list[int]
    table: list[int]
    chunks: list[int]
    done: int = 0
    emitted: list[int] = field(default_factory=list)

    def work(self, *, told: bool) -> tuple[list[int], list[int], int]:
        """told: the host knows the newest token; else the step has to find it on the device."""
        count = self.chunks.pop(0) if self.chunks else 1
        tokens = self.tokens[self.done : self.done + count]
        if not told and self.done + count == len(self.tokens) and self.emitted:
            tokens[-1] = -1 - self.slot
        start, self.done = self.done, self.done + count
        return tokens, self.table[: -(-self.done // BLOCK)], start


def sequences(config: ModelConfig) -> list[Sequence]:
    """One prompt in chunks, one whole, and one token."""
    return [
        Sequence(4, prompt(config, 9, 1), [7, 2, 19, 5, 11], [5, 4]),
        Sequence(0, prompt(config, 6, 2), [3, 8, 1, 13], [6]),
        Sequence(2, prompt(config, 1, 3), [9, 4, 20], [1]),
    ]


def run(forward: Forward, config: ModelConfig, steps: int) -> list[Tensor]:
    """Each step's logits; greedy. The third sequence joins later."""
    running, logits = sequences(config), []
    for step in range(steps):
        here = running if step > 2 else running[:2]
        newest = getattr(forward, "newest", None)
        works = [each.work(told=newest is None or step % 2 == 0) for each in here]
        ending = [n for n, each in enumerate(here) if each.done == len(each.tokens)]
        ends = np.cumsum([len(tokens) for tokens, _, _ in works]) - 1
        with torch.inference_mode():
            rows = forward.logits(batch(*works), ends[ending])
            tokens = rows.argmax(-1)
            for n, token in zip(ending, tokens, strict=True):
                here[n].tokens.append(int(token))
                here[n].emitted.append(int(token))
                if newest is not None:
                    newest[here[n].slot] = token
        logits.append(rows.cpu())
    return logits


@pytest.mark.parametrize("config", [GROUPED, NORMED], ids=["grouped", "normed"])
def test_chunks_decodes_and_newest_tokens_match_the_reference(config: ModelConfig) -> None:
    forward = queued(config)
    forward.use_graphs(BUCKETS, EagerCaptures(), torch.float32)
    got, expected = run(forward, config, 8), run(reference(config), config, 8)
    assert forward.layers_done == 8 * config.num_layers
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@functools.cache
def keys_and_values() -> Tensor:
    """A cache with three sequences of 6, 3 and 1 tokens."""
    forward = queued(GROUPED)
    works = [(prompt(GROUPED, 6, 5), [2, 5], 0), (prompt(GROUPED, 3, 6), [9], 0), ([7], [1], 0)]
    with torch.inference_mode():
        forward.logits(batch(*works), np.zeros(0, dtype=np.int64))
    return forward.attention.cache


def prefilled(cache: torch.dtype = torch.float32) -> TritonForward:
    forward = queued(GROUPED, cache)
    with torch.inference_mode():
        forward.attention.cache.copy_(keys_and_values())
    return forward


def decode(*tokens: int, at: int = 0) -> Batch:
    """A decode of the sequences of `prefilled`, after `at` tokens more."""
    tables, starts = [[2, 5], [9, 14], [1]], [6, 3, 1]
    works = zip(tokens, tables, starts, strict=False)
    return batch(*(([token], table, start + at) for token, table, start in works))


@dataclass
class Recorded(EagerCaptures):
    """Captures that count."""

    captured: int = 0
    replayed: int = 0

    def capture(self, work: Work) -> CapturedWork:
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return EagerRecording(replay)


def test_padded_steps_have_the_plain_ones_bits() -> None:
    plain, padded, captures = prefilled(), prefilled(), Recorded()
    padded.use_graphs(BUCKETS, captures, torch.float32)
    wanted = [np.array([0, 1, 2]), np.array([2, 0])]
    steps = [decode(11, 12, 13), decode(21, 22, 23, at=1)]
    for step, rows in zip(steps, wanted, strict=True):
        with torch.inference_mode():
            ours, theirs = padded.logits(step, rows), plain.logits(step, rows)
        assert torch.equal(ours, theirs)
        written = [each.attention.cache.view(torch.uint8) for each in (padded, plain)]
        assert torch.equal(*written)
    assert (captures.captured, captures.replayed) == (len(BUCKETS.all), 2)


def test_a_step_of_nothing_wanted_writes_its_keys() -> None:
    forward, other = prefilled(), prefilled()
    forward.use_graphs(BUCKETS, EagerCaptures(), torch.float32)
    with torch.inference_mode():
        assert forward.logits(decode(5), np.zeros(0, dtype=np.int64)).shape == (0, 97)
        other.logits(decode(5), np.array([0]))
    written = [each.attention.cache.view(torch.uint8) for each in (forward, other)]
    assert torch.equal(*written)


class Broken(EagerCaptures):
    def capture(self, work: Work) -> CapturedWork:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_where_nothing_can_be_captured_decode_goes_on() -> None:
    plain, forward = prefilled(), prefilled()
    forward.use_graphs(BUCKETS, Broken(), torch.float32)
    for at in (0, 1):
        step, rows = decode(3, 4, at=at), np.array([0, 1])
        with torch.inference_mode():
            assert torch.equal(forward.logits(step, rows), plain.logits(step, rows))


@pytest.mark.parametrize(
    ("cache", "tolerance"),
    [(torch.bfloat16, 0.05), (torch.float16, 0.01), (torch.float8_e4m3fn, 0.4)],
    ids=str,
)
def test_narrow_caches_are_near(cache: torch.dtype, tolerance: float) -> None:
    exact, narrow = prefilled(), prefilled(cache=cache)
    step, rows = decode(3, 4), np.array([0, 1])
    with torch.inference_mode():
        difference = (narrow.logits(step, rows) - exact.logits(step, rows)).abs().max()
    assert 0 < difference < tolerance * 4


class Released:
    """A DeviceMemory of which only `release` is called."""

    def __init__(self) -> None:
        self.times = 0

    def release(self) -> None:
        self.times += 1


def test_out_of_memory_comes_out_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, memory = queued(GROUPED), Released()

    def no_room(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")

    monkeypatch.setattr(forward, "_memory", memory)
    monkeypatch.setattr(small_model(GROUPED), "hidden", no_room)
    with pytest.raises(torch.OutOfMemoryError, match=r"2\.00 GiB"):
        forward.logits(decode(3), np.array([0]))
    assert memory.times == 1


def test_a_cancelled_step_ends() -> None:
    forward = queued(GROUPED)
    forward.cancel()
    with torch.inference_mode(), pytest.raises(StepCancelled):
        forward.logits(decode(3), np.array([0]))
    assert forward.layers_done == 0
