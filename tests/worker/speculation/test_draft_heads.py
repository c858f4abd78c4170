"""A head's drafts are those of its published definition, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.protocol.to_worker import NewSequence, SlotWork
from penstock_worker.forward.interface import Batch
from penstock_worker.speculation.draft_head import PENDING
from penstock_worker.speculation.hidden_rows import HiddenRows
from tests.worker.speculation.driven_heads import GREEDY, Run, waiting
from tests.worker.speculation.head_folders import HYBRIDS, Served, written
from tests.worker.speculation.slow_heads import VOCAB, drafts_of

ATTENDING = [
    ("Llama", "eagle3", 1),
    ("Qwen3", "eagle3, normed", 1),
    ("Glm4Moe", "mtp", 1),
    ("Glm4Moe", "mtp", 3),
    ("DeepseekV3", "mtp", 1),
    ("DeepseekV3", "mtp", 2),
    ("DeepseekV32", "mtp", 1),
    ("DeepseekV4", "mtp", 1),
    ("DeepseekV4", "mtp", 2),
    ("MiMo", "mtp", 2),
    ("MiMoV2Flash", "mtp", 3),
    ("Step3p7", "mtp", 3),
]
CASES = [
    *ATTENDING,
    ("Qwen3Next", "eagle3", 1),
    *((kind, "mtp", 1) for kind in HYBRIDS),
    ("Qwen3Next", "mtp", 2),
    ("Qwen3_5", "mtp", 3),
]


def named(cases: list[tuple[str, str, int]]) -> list[str]:
    return [f"{kind}, {head}, {layers}" for kind, head, layers in cases]


@pytest.fixture(scope="module", params=CASES, ids=named(CASES))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    kind, head, layers = request.param
    return written(kind, head, tmp_path_factory.mktemp("heads"), layers=layers)


def follow(
    run: Run, served: Served, prompt: int, first: int, blocks: list[int], asked: list[int]
) -> None:
    """Computes a random prompt of so many tokens in two chunks, and steps in which so many tokens
    may be drafted. Compares drafts with the head's definition, and tokens with the model."""
    tokens = torch.randint(VOCAB, (prompt,), generator=torch.Generator().manual_seed(3)).tolist()
    work = [SlotWork(0, 0, first)]
    assert run.plan(work, [NewSequence(0, tokens, prompt, 0, GREEDY, blocks)]) == [[]]
    run.compute(work)
    work = [SlotWork(0, first, prompt - first)]
    assert run.plan(work) == [[]]
    tokens = [*tokens, int(run.compute(work)[-1].argmax())]
    slot = run.slots[0]
    slot.append(tokens[-1])
    for most in asked:
        work = [SlotWork(0, len(tokens) - 1, 1, draft=most)]
        with torch.inference_mode():
            hidden = served.slow.taken(tokens[:-1])
            wanted = drafts_of(served.slow, tokens, hidden, most)
        (drafts,) = run.plan(work)
        assert drafts == wanted
        # Wrong drafts are computed, too, and their hidden states are of no use.
        found = run.compute(work, {0: drafts} if drafts else None).argmax(-1).tolist()
        right = 0
        while right < len(drafts) and drafts[right] == found[right]:
            right += 1
        for token in found[: right + 1]:
            with torch.inference_mode():
                assert token == served.reference.next(tokens)
            tokens.append(token)
            slot.append(token)
        run.keep(0, len(tokens) - 1)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_drafts_are_those_of_the_definition(served: Served, backend: str) -> None:
    run = Run(served, backend)
    follow(run, served, 37, 20, list(range(5, 17)), [0, 3, 3, 3] * 3)
    assert waiting(run) < 40


@pytest.mark.parametrize("served", ATTENDING, ids=named(ATTENDING), indirect=True)
def test_rows_come_along_with_blocks(served: Served) -> None:
    """The head's rows of a prefix that was found are there; those that it had not computed are made
    of zeros, and cost a draft at most."""
    run = Run(served, "cpu")
    tokens = torch.randint(VOCAB, (90,), generator=torch.Generator().manual_seed(7)).tolist()
    first = NewSequence(0, tokens[:60], 60, 0, GREEDY, list(range(6)))
    run.plan([SlotWork(0, 0, 60)], [first])
    run.compute([SlotWork(0, 0, 60)])
    run.slots[0].append(tokens[60])
    run.plan([SlotWork(0, 60, 1)])  # Computes all rows but the newest.
    second = NewSequence(1, tokens[:70], 70, 0, GREEDY, [0, 1, 2, 10, 11])
    work = [SlotWork(1, 48, 22)]
    assert run.plan(work, [second], released=(0,)) == [[]]
    run.compute(work)
    run.slots[1].append(tokens[70])
    with torch.inference_mode():
        hidden = served.slow.taken(tokens[:70])
        wanted = drafts_of(served.slow, tokens[:71], hidden, 3)
    assert run.plan([SlotWork(1, 70, 1, draft=3)]) == [wanted]
    # Of the second's last blocks, the head has no rows.
    third = NewSequence(2, tokens[:90], 90, 0, GREEDY, [0, 1, 2, 10, 20, 21])
    work = [SlotWork(2, 64, 26)]
    run.proposer._rows.given([10])
    run.plan(work, [third], released=(1,))
    run.compute(work)
    run.slots[2].append(5)
    (drafts,) = run.plan([SlotWork(2, 90, 1, draft=3)])
    assert len(drafts) == 3
    # They are computed now, but for those that drafts were read for, and the same is said again.
    computed = 91 - len(served.slow.layers)
    assert run.proposer._followed[2].computed == computed
    assert run.proposer._rows.leading(run.slots[2].blocks, 91) == computed
    assert run.proposer.propose([SlotWork(2, 90, 1, draft=3)]) == [drafts]


def test_a_pass_that_failed_costs_its_drafts_only(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(served, "cpu")
    tokens = list(range(50))
    run.plan([SlotWork(0, 0, 50)], [NewSequence(0, tokens, 50, 0, GREEDY, list(range(6)))])
    run.compute([SlotWork(0, 0, 50)])
    run.slots[0].append(3)

    def fail(*_: object) -> None:
        raise OSError("no head")

    with monkeypatch.context() as broken:
        broken.setattr(run.proposer._heads[0], "step", fail)
        with pytest.raises(OSError, match="no head"):
            run.plan([SlotWork(0, 50, 1, draft=3)])
    with torch.inference_mode():
        hidden = served.slow.taken(tokens)
        wanted = drafts_of(served.slow, [*tokens, 3], hidden, 3)
    assert run.proposer.propose([SlotWork(0, 50, 1, draft=3)]) == [wanted]
    with monkeypatch.context() as broken:
        broken.setattr(run.proposer._heads[0], "hidden", fail)
        assert torch.isfinite(run.compute([SlotWork(0, 50, 1)])).all()


def test_a_head_that_fails_in_every_step_holds_few_hidden_states(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(served, "cpu")
    tokens = list(range(60))
    run.plan([SlotWork(0, 0, 60)], [NewSequence(0, tokens, 60, 0, GREEDY, list(range(10)))])
    run.compute([SlotWork(0, 0, 60)])

    def fail(*_: object) -> None:
        raise OSError("no head")

    held = []
    with monkeypatch.context() as broken:
        broken.setattr(run.proposer._heads[0], "step", fail)
        for end in range(60, 80):
            run.slots[0].append(end % VOCAB)
            with pytest.raises(OSError, match="no head"):
                run.plan([SlotWork(0, end, 1, draft=3)])
            run.compute([SlotWork(0, end, 1)])
            held.append(waiting(run))
    assert held[0] == 61  # One failure may be the only one.
    assert max(held[1:]) == PENDING + 1
    run.slots[0].append(1)
    [drafts] = run.plan([SlotWork(0, 80, 1, draft=3)])
    assert len(drafts) == 3
    # The last one may be read once more; layers that aren't chained are each a row behind another.
    assert waiting(run) == (1 if served.slow.chained else len(served.slow.layers))


def test_a_token_that_only_the_device_knew_was_the_sequences_own() -> None:
    """And one that differs was a draft."""
    hidden = HiddenRows(torch.empty(0, 2))
    rows = torch.arange(6.0).view(3, 2)
    tokens = np.array([5, -1 - 3, 7])
    hidden.note(Batch(tokens, [], np.array([4]), np.array([3]), slots=[3]), rows)
    known = [0, 0, 0, 0, 5, 6, 8]
    assert torch.equal(hidden.read(3, known, 4, 7), torch.cat((rows[:2], torch.zeros(1, 2))))
