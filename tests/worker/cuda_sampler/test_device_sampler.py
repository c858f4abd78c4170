"""The CUDA kernels' sampler against the reference, several steps in a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.protocol.common import LogitsAdjustments, TokenLogprobs, TokenSampling
from penstock_kernels.triton.sampling.sample import sample_rows
from penstock_worker.sampler import ReferenceSampler, SampledToken, SampleRequest
from penstock_worker.sampler import device as module
from penstock_worker.sampler.device import DeviceSampler
from penstock_worker.sampler.device_adjustments import Masks
from penstock_worker.sampler.interface import NOT_FINITE
from tests.worker.cuda_sampler.asks import Sequence, drawn_sampling

pytestmark = pytest.mark.timeout(300)

REFERENCE = ReferenceSampler()


def logits_of(rng: np.random.Generator, rows: int, vocab: int) -> Tensor:
    """Some rows full of ties."""
    logits = rng.normal(0, 3, (rows, vocab)).astype(np.float32)
    tied = rng.random(rows) < 0.3
    logits[tied] = np.round(logits[tied])
    return torch.from_numpy(logits)


def check(ours: SampledToken, wanted: SampledToken) -> None:
    assert (ours.token, ours.error, ours.error_code) == (
        wanted.token,
        wanted.error,
        wanted.error_code,
    )
    check_logprobs(ours.logprobs, wanted.logprobs)


def check_logprobs(ours: TokenLogprobs | None, wanted: TokenLogprobs | None) -> None:
    if ours is None or wanted is None:
        assert ours is wanted
        return
    assert ours.top_ids == wanted.top_ids
    assert abs(ours.logprob - wanted.logprob) < 1e-5
    assert np.allclose(ours.top_logprobs, wanted.top_logprobs, rtol=0, atol=1e-5)


def grammar(rng: np.random.Generator, vocab: int) -> np.ndarray:
    mask = rng.random(vocab) < rng.choice([0.02, 0.5])
    mask[rng.integers(vocab)] = True
    return mask


@pytest.mark.parametrize(
    ("vocab", "rows", "steps", "seed"),
    [(50, 8, 3, 1), (257, 8, 3, 3), (4099, 6, 2, 5)],
)
def test_launched_ahead(vocab: int, rows: int, steps: int, seed: int, device: torch.device) -> None:
    """Each step is launched before the host knows the tokens of the one before, except for slots
    that can't be."""
    rng = np.random.default_rng(seed)
    samplings = [drawn_sampling(rng, vocab) for _ in range(rows)]
    prompts = [rng.integers(0, vocab, 5).tolist() for _ in range(rows)]
    truth, known = (
        [Sequence(samplings[slot], slot, prompts[slot], vocab) for slot in range(rows)]
        for _ in range(2)
    )
    alive = list(range(rows))
    sampler = DeviceSampler(device, vocab, rows + 3)
    slot_of = rng.permutation(rows + 3).tolist()
    flying: dict[int, SampledToken] = {}
    for _ in range(steps):
        grammars = {row: grammar(rng, vocab) for row in alive if rng.random() < 0.15}
        for row in list(flying):
            if row in grammars or sampler.needs_host(known[row].ask()):
                known[row].append(flying.pop(row).token)
        logits = logits_of(rng, len(alive), vocab)
        asks = [known[row].ask(int(row in flying), grammars.get(row)) for row in alive]
        launched = sampler.launch(logits.to(device), asks, [slot_of[row] for row in alive])
        for row, choice in flying.items():
            known[row].append(choice.token)
        wanted = REFERENCE.sample(
            logits, [truth[row].ask(allowed=grammars.get(row)) for row in alive]
        )
        ours = launched.sampled()
        assert [token for token in launched.tokens.tolist() if token < 0] == []
        for mine, right in zip(ours, wanted, strict=True):
            check(mine, right)
        flying = {
            row: mine for row, mine in zip(alive, ours, strict=True) if mine.token is not None
        }
        alive = list(flying)
        for row in alive:
            truth[row].append(flying[row].token)


def test_a_slot_alone_has_its_tokens(device: torch.device) -> None:
    rng = np.random.default_rng(9)
    logits = logits_of(rng, 9, 257)
    asks = [Sequence(drawn_sampling(rng, 257), row, [1, 2], 257).ask() for row in range(9)]
    together = DeviceSampler(device, 257, 9).launch(logits.to(device), asks, list(range(9)))
    for row, choice in enumerate(together.sampled()):
        alone = DeviceSampler(device, 257, 9)
        launched = alone.launch(logits[row : row + 1].to(device), asks[row : row + 1], [8 - row])
        check(launched.sampled()[0], choice)


@pytest.mark.parametrize("invariant", [False, True])
def test_batch_invariant_draws_go_one_way(
    invariant: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = []

    def watched(*given: object, cuts: bool, **more: object) -> torch.Tensor:
        ways.append(cuts)
        return sample_rows(*given, cuts=cuts, **more)

    monkeypatch.setattr(module, "sample_rows", watched)
    logits = logits_of(np.random.default_rng(10), 2, 257)
    free, cut = TokenSampling(3), TokenSampling(4, top_p=0.5)
    asks = [Sequence(wish, row, [1], 257).ask() for row, wish in enumerate((free, cut))]
    sampler = DeviceSampler(device, 257, 2, batch_invariant=invariant)
    (alone,) = sampler.launch(logits[:1].to(device), asks[:1], [0]).sampled()
    beside, _ = sampler.launch(logits.to(device), asks, [0, 1]).sampled()
    assert ways == [invariant, True]
    check(alone, beside)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_finite(temperature: float, device: torch.device) -> None:
    """In rows with and without edits; the others are none the worse."""
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(1))
    for row, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        logits[row, 7] = logits[row + 3, 299] = value
    told = None if temperature else 2
    plain = TokenSampling(1, temperature, logprobs=told)
    edited = TokenSampling(
        1, temperature, logprobs=told, adjustments=LogitsAdjustments(bias={299: -3.0})
    )
    asks = [
        Sequence(plain if row < 3 or row == 6 else edited, row, [1], 300).ask() for row in range(8)
    ]
    launched = DeviceSampler(device, 300, 8).launch(logits.to(device), asks, list(range(8)))
    ours = launched.sampled()
    assert launched.tokens[:6].tolist() == [-1] * 6
    assert [choice.error for choice in ours] == [NOT_FINITE] * 6 + [None] * 2
    for mine, right in zip(ours, REFERENCE.sample(logits, asks), strict=True):
        check(mine, right)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_finite_where_nothing_is_edited(
    temperature: float, device: torch.device
) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    for row, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        logits[row, 7] = value
    asks = [Sequence(TokenSampling(1, temperature), row, [1], 300).ask() for row in range(4)]
    ours = DeviceSampler(device, 300, 4).launch(logits.to(device), asks, list(range(4))).sampled()
    assert [choice.error for choice in ours] == [NOT_FINITE] * 3 + [None]
    check(ours[3], REFERENCE.sample(logits, asks)[3])


def test_all_greedy(device: torch.device) -> None:
    """The way without a copy to the device."""
    logits = logits_of(np.random.default_rng(1), 6, 500)
    asks = [SampleRequest(TokenSampling(seed=row, temperature=0.0), row, row) for row in range(6)]
    sampler = DeviceSampler(device, 500, 6)
    launched = sampler.launch(logits.to(device), asks, list(range(6)))
    assert launched.sampled() == REFERENCE.sample(logits, asks)
    assert launched.done()
    assert sampler.launch(logits[:0].to(device), [], []).sampled() == []


def test_a_slot_has_another_sequence(device: torch.device) -> None:
    """Its numbers and its counts are the new one's."""
    rng = np.random.default_rng(3)
    sampler = DeviceSampler(device, 60, 2)
    for index in range(3):
        sampling = TokenSampling(5, adjustments=LogitsAdjustments(presence=4.0, repetition=1.5))
        sequence = Sequence(sampling, index, [index, 9], 60, output=[3, index])
        for _ in range(3):
            logits = logits_of(rng, 1, 60)
            (wanted,) = REFERENCE.sample(logits, [sequence.ask()])
            check(sampler.launch(logits.to(device), [sequence.ask()], [1]).sampled()[0], wanted)
            assert wanted.token is not None
            sequence.append(wanted.token)
        sampler.forget(1)


def test_a_step_that_came_to_nothing_is_launched_again(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    sampling = TokenSampling(5, adjustments=LogitsAdjustments(frequency=3.0))
    sequence = Sequence(sampling, 0, [1], 60, output=[3])
    sampler = DeviceSampler(device, 60, 2)
    for _ in range(3):
        for _again in range(2):
            logits = logits_of(rng, 1, 60)
            (ours,) = sampler.launch(logits.to(device), [sequence.ask()], [0]).sampled()
        (wanted,) = REFERENCE.sample(logits, [sequence.ask()])
        check(ours, wanted)
        assert ours.token is not None
        sequence.append(ours.token)


def test_counts_that_nobody_has_are_an_error(device: torch.device) -> None:
    sequence = Sequence(TokenSampling(5, adjustments=LogitsAdjustments(frequency=3.0)), 0, [1], 60)
    sampler = DeviceSampler(device, 60, 2)
    with pytest.raises(ValueError, match="slot 1 asks for token 1, but the host has counted 0"):
        sampler.launch(torch.zeros(1, 60, device=device), [sequence.ask(1)], [1])


def test_who_needs_the_host(device: torch.device) -> None:
    sampler = DeviceSampler(device, 60, 2)

    def needs(allowed: np.ndarray | None = None, **adjustments: object) -> bool:
        sampling = TokenSampling(5, adjustments=LogitsAdjustments(**adjustments))
        return sampler.needs_host(Sequence(sampling, 0, [1], 60).ask(allowed=allowed))

    assert needs(bad_words=((1, 2),))
    assert needs(allowed=np.ones(60, dtype=bool))
    assert not needs(bad_words=((1,), (2,)), frequency=1.0, bias={1: 1.0}, allowed=None)


@pytest.mark.parametrize("count", [0, 3, 70])
def test_scores(count: int, device: torch.device) -> None:
    logits = logits_of(np.random.default_rng(7), 5, 400)
    given = [0, 399, 7, 8, 9]
    sampler = DeviceSampler(device, 400, 2)
    ours, wanted = (
        sampler.queue_score(logits.to(device), given, count)(),
        REFERENCE.score(logits, given, count),
    )
    assert ours is not None
    assert wanted is not None
    for mine, right in zip(ours, wanted, strict=True):
        check_logprobs(mine, right)
    logits[3, 4] = float("-inf")
    assert sampler.queue_score(logits.to(device), given, count)() is None


def test_warm_up_leaves_nothing(device: torch.device) -> None:
    sampler = DeviceSampler(device, 300, 2)
    sampler.warm_up(torch.zeros(1, 300, device=device))
    sampling = TokenSampling(5, adjustments=LogitsAdjustments(presence=4.0))
    sequence = Sequence(sampling, 0, [1], 300, output=[3, 3])
    logits = logits_of(np.random.default_rng(7), 1, 300)
    (ours,) = sampler.launch(logits.to(device), [sequence.ask()], [0]).sampled()
    check(ours, REFERENCE.sample(logits, [sequence.ask()])[0])


@pytest.mark.parametrize("vocab", [31, 32, 50, 129])
def test_masks_are_what_is_held_back(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for _ in range(150):
        sampling = drawn_sampling(rng, vocab)
        sequence = Sequence(sampling, 0, [1], vocab, output=[1] * int(rng.integers(0, 4)))
        allowed = grammar(rng, vocab) if rng.random() < 0.4 else None
        ask = sequence.ask(allowed=allowed)
        wanted = np.ones(vocab, dtype=bool)
        held = np.asarray(ask.held_back(), dtype=np.int64)
        wanted[held[held < vocab]] = False
        masks = Masks(vocab)
        place = masks.place(ask)
        if place < 0:
            assert wanted.all() or not wanted.any()
            continue
        bits = np.unpackbits(masks.stacked()[place].view(np.uint8), bitorder="little")
        assert np.array_equal(bits[:vocab].astype(bool), wanted)
        assert not bits[vocab:].any()
        assert masks.place(ask) == place
