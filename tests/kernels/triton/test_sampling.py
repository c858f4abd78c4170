"""Draws, edits and log-probabilities, row by row against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels import reference
from penstock_kernels.triton.sampling.adjustments import (
    DeviceRowAdjustments,
    adjust_rows,
    count_tokens,
)
from penstock_kernels.triton.sampling.log_probs import log_probs
from penstock_kernels.triton.sampling.sample import SamplingRows, sample_rows, uniform

pytestmark = pytest.mark.timeout(300)


def test_uniform_is_the_reference(device: torch.device) -> None:
    seeds = [0, 5, 2**64 - 3, 2**63, 123456789012345]
    sequences, tokens = [0, 1, 2**32 - 1, 7, 2], [0, 2**40, 9, 1, 2**33 + 1]
    signed = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
    ours = uniform(
        signed.to(device), torch.tensor(sequences).to(device), torch.tensor(tokens).to(device)
    )
    assert ours.tolist() == reference.uniform(seeds, sequences, tokens)


def asked(rows: int, seed: int) -> SamplingRows:
    rng = np.random.default_rng(seed)
    return SamplingRows(
        torch.from_numpy(rng.choice([0.0, 0.2, 1.0, 3.0], rows)),
        torch.from_numpy(rng.choice([0, 1, 2, 40, 1 << 20], rows).astype(np.int32)),
        torch.from_numpy(rng.choice([1.0, 0.95, 0.5, 1e-3], rows)),
        torch.from_numpy(rng.choice([0.0, 0.0, 0.05, 1.0], rows)),
        torch.from_numpy(rng.integers(0, 2**62, rows)),
        torch.from_numpy(rng.integers(0, 4, rows)),
        torch.from_numpy(rng.integers(0, 9999, rows)),
    )


def on(device: torch.device, rows: SamplingRows, which: slice = slice(None)) -> SamplingRows:
    return SamplingRows(*(part[which].contiguous().to(device) for part in vars(rows).values()))


def expected(logits: Tensor, rows: SamplingRows) -> list[int]:
    draws = reference.uniform(rows.seed.tolist(), rows.sequence.tolist(), rows.token.tolist())
    tokens = []
    for row, draw in enumerate(draws):
        temperature = float(rows.temperature[row])
        if temperature == 0:
            tokens.append(int(logits[row].numpy().argmax()))
            continue
        cuts = reference.SamplingCuts(
            temperature, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.min_p[row])
        )
        tokens.append(reference.sample_row(logits[row], cuts, draw))
    return tokens


def logits_of(kind: str, rows: int, vocab: int) -> Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    match kind:
        case "ties":
            logits = logits.round()
            logits[0] = 0.0
            logits[1, ::2], logits[1, 1::2] = 0.0, -0.0
        case "holes":
            logits[:, ::3] = float("-inf")
            logits[0, :-1], logits[0, -1] = float("-inf"), 1.0
    return logits


@pytest.mark.parametrize("kind", ["plain", "ties", "holes"])
@pytest.mark.parametrize(("rows", "vocab"), [(14, 601), (2, 2500), (3, 2)])
def test_draws(kind: str, rows: int, vocab: int, device: torch.device) -> None:
    logits, wants = logits_of(kind, rows, vocab), asked(rows, vocab + len(kind))
    tokens = sample_rows(logits.to(device), on(device, wants)).tolist()
    assert tokens == expected(logits, wants)
    alone = slice(1, 2)
    assert sample_rows(logits[alone].to(device), on(device, wants, alone)).tolist() == tokens[1:2]


def test_what_is_not_finite(device: torch.device) -> None:
    logits = torch.zeros(4, 300)
    logits[0, 299], logits[1, 0], logits[2] = float("nan"), float("inf"), float("-inf")
    wants = asked(4, 1)
    tokens = sample_rows(logits.to(device), on(device, wants)).tolist()
    assert tokens[:3] == [-1, -1, -1]
    assert tokens[3] >= 0


def test_without_holes_a_row_with_one_is_not_finite(device: torch.device) -> None:
    logits, wants = logits_of("plain", 4, 301), asked(4, 1)
    whole = sample_rows(logits.to(device), on(device, wants)).tolist()
    logits[1, 300] = logits[2, 0] = float("-inf")
    tokens = sample_rows(logits.to(device), on(device, wants), holes=False).tolist()
    assert tokens == [whole[0], -1, -1, whole[3]]


VOCAB = 2100


def mask_words(allowed: Tensor) -> Tensor:
    """[masks, ceil(vocab / 32)] int32 of [masks, vocab] bool."""
    bits = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % 32)).unflatten(1, (-1, 32))
    return (bits.long() << torch.arange(32)).sum(-1).to(torch.int32)


def test_edits_are_the_reference(device: torch.device) -> None:
    rng = np.random.default_rng(4)
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(3)) * 5
    logits[1, 7] = float("-inf")
    biases: list[dict[int, float]] = [{}, {7: 5.0, 2099: -1e300, 3: 1e300}, {}, {0: -0.25}, {}]
    held = [{}, {3: 1, 9: 0, 2099: 4}, {5: 2}, {}, {int(i): 1 for i in rng.integers(0, VOCAB, 50)}]
    numbers = [
        (0.0, 0.0, 1.0),
        (0.5, 0.25, 1.3),
        (-2.0, 0.1, 1.0),
        (1.0, 1.0, 2.0),
        (0.0, 1.5, 0.7),
    ]
    seen = torch.zeros(6, VOCAB, dtype=torch.int32)
    seen_rows = torch.tensor([-1, 4, 0, 1, 2], dtype=torch.int32)
    for slot, counts in zip(seen_rows.tolist(), held, strict=True):
        for token, count in counts.items():
            seen[slot, token] = count + 1
    allowed = torch.from_numpy(rng.random((2, VOCAB)) < 0.5)
    mask_rows = torch.tensor([-1, 1, -1, 0, 1], dtype=torch.int32)
    presence, frequency, repetition = torch.tensor(numbers, dtype=torch.float64).unbind(1)
    entries = [pair for row in biases for pair in row.items()]
    adjustments = DeviceRowAdjustments(
        torch.tensor([0, *np.cumsum([len(row) for row in biases])], dtype=torch.int32),
        torch.tensor([token for token, _ in entries], dtype=torch.int32),
        torch.tensor([bias for _, bias in entries], dtype=torch.float64),
        *(part.contiguous() for part in (seen, seen_rows, presence, frequency, repetition)),
        mask_words(allowed),
        mask_rows,
    )
    ours = adjust_rows(
        logits.to(device),
        DeviceRowAdjustments(*(part.to(device) for part in vars(adjustments).values())),
    ).cpu()
    for row in range(5):
        wanted = reference.adjust_row(
            logits[row], reference.RowAdjustments(biases[row], held[row], *numbers[row])
        )
        if mask_rows[row] >= 0:
            wanted = wanted.masked_fill(~allowed[mask_rows[row]], float("-inf"))
        # A device may fuse the penalties' float64 steps, which can move float32's last bit.
        close = torch.isclose(ours[row], wanted, rtol=2.0**-22, atol=0)
        assert close.all(), row
        assert torch.equal(ours[row] == logits[row], wanted == logits[row]), row


def test_what_only_the_prompt_contains_is_no_output(device: torch.device) -> None:
    """A repetition penalty counts the prompt; presence and frequency penalties don't. Ids 0 and 1
    are in neither, 2 and 3 in the prompt, 4 and 5 twice in the output."""
    logits = torch.tensor([[3.0, -3.0] * 3])
    adjustments = DeviceRowAdjustments(
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(0, dtype=torch.int32),
        torch.zeros(0, dtype=torch.float64),
        torch.tensor([[0, 0, 1, 1, 3, 3]], dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        *(torch.tensor([each], dtype=torch.float64) for each in (0.5, 0.25, 2.0)),
        torch.zeros(1, 1, dtype=torch.int32),
        torch.tensor([-1], dtype=torch.int32),
    )
    ours = adjust_rows(
        logits.to(device),
        DeviceRowAdjustments(*(part.to(device) for part in vars(adjustments).values())),
    )
    assert ours.tolist() == [[3.0, -3.0, 1.5, -6.0, 0.5, -7.0]]


def test_counts(device: torch.device) -> None:
    seen = torch.zeros(3, 10, dtype=torch.int32)
    seen[1, 4] = 1  # In the prompt.
    ours = seen.to(device)
    slots = torch.tensor([1, -1, 2], dtype=torch.int32, device=device)
    for tokens in ([4, 4, 9], [4, 0, -1], [0, 1, 10]):
        count_tokens(ours, slots, torch.tensor(tokens, device=device))
    wanted = torch.zeros(3, 10, dtype=torch.int32)
    wanted[1, 4], wanted[1, 0], wanted[2, 9] = 3, 2, 2
    assert torch.equal(ours.cpu(), wanted)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_log_probs(count: int, device: torch.device) -> None:
    logits = torch.cat((logits_of("plain", 3, 2100), logits_of("ties", 3, 2100)))
    given = torch.tensor([0, 2099, 1000, 5, -1, 2100])
    ours = log_probs(logits.to(device), given.to(device), count)
    for row, token in enumerate(given.tolist()):
        wanted = reference.log_softmax_row(logits[row])
        if 0 <= token < 2100:
            assert abs(float(ours.own[row]) - float(wanted[token])) < 1e-5
        else:
            assert float(ours.own[row]) == float("-inf")
        if count:
            ids = reference.top_ids(logits[row], count)
            assert torch.equal(ours.ids[row].cpu(), ids)
            assert (ours.top[row].cpu() - wanted[ids]).abs().max() < 1e-5


def test_more_likeliest_than_there_may_be() -> None:
    with pytest.raises(ValueError, match=r"count is 65; it must be in \[0, 64\]"):
        log_probs(torch.zeros(1, 100), torch.zeros(1, dtype=torch.int64), 65)
