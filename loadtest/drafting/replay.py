"""Answers that a model gave, told again by a real engine core and a real worker without a model:
what would be drafted of them, and how long steps would take on a machine with a given curve."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from loadtest.bare_core import BLOCK, FRONTEND, WORKER, plans_of, started_core
from penstock.model.speculation import SpeculativeConfig
from penstock.protocol.common import Stopping, TokenLogprobs, TokenSampling
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.batch.block_copies import NO_COPIES
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.queue import HostQueue
from penstock_worker.forward.interface import Batch
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.sampler.host import HostSampler
from penstock_worker.speculation.choose import lookup_proposer
from penstock_worker.speculation.drafting import Drafting
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.runner import StepRunner

BLOCKS, TOKENS = 8_192, 4_096
"""Of the KV cache, and of a sequence at most."""
FIRST_ID = 16
"""Behind the ids that mean something."""


@dataclass(frozen=True)
class Text:
    """Token ids of a request's prompt, of what was answered, and of what the request said would
    be."""

    prompt: list[int]
    answer: list[int]
    prediction: list[int] = field(default_factory=list)


@dataclass
class Told:
    """seconds: by the curve. host: processor seconds of the engine core, and of the worker with a
    script in place of its model. drafted, kept: tokens."""

    seconds: float = 0.0
    host: float = 0.0
    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    kept: int = 0


def renumbered(texts: Sequence[Text]) -> list[Text]:
    """The same texts with ids of a small vocabulary: equal where they were equal."""
    ids: dict[int, int] = {}

    def own(tokens: list[int]) -> list[int]:
        return [ids.setdefault(token, FIRST_ID + len(ids)) for token in tokens]

    return [Text(own(text.prompt), own(text.answer), own(text.prediction)) for text in texts]


def tell(texts: Sequence[Text], streams: int, method: str, curve: Callable[[int], float]) -> Told:
    """All texts, so many at a time; the next begins where one has ended. method: of drafts, or off.
    Raises RuntimeError if what comes out is not what was given."""
    texts = renumbered(texts)
    drafted = {"speculative_config": "off" if method == "off" else f'{{"method": "{method}"}}'}
    core = started_core({"max_num_seqs": streams, **drafted}, BLOCKS, [], 0)
    for number, text in enumerate(texts):
        stopping = Stopping(max_tokens=len(text.answer), ignore_eos=True)
        sampling = TokenSampling(0, temperature=0.0)
        opened = [OpenSequence(0)]
        submit = Submit(number, str(number), text.prompt, opened, sampling, stopping)
        submit = msgspec.structs.replace(submit, prediction=text.prediction)
        core.frontend_received(FRONTEND, submit, 0.0)
    worker, told = _Worker(texts, streams, method), Told()
    plans, outputs = deque[Plan](), [list[int]() for _ in texts]

    def step() -> None:
        effects = core.step(told.seconds)
        plans.extend(plans_of(effects))
        for _, message, _ in effects.to_frontends:
            for output in getattr(message, "outputs", ()):
                outputs[output.request] += output.tokens

    begun = time.thread_time()
    step()
    while plans:
        result, rows = worker.run(plans.popleft(), told)
        took = curve(rows) if rows else 0.0
        told.seconds += took
        # What the script itself took says nothing of a model.
        result = msgspec.structs.replace(result, compute_seconds=took, idle_seconds=0.0)
        core.worker_received(WORKER, result, told.seconds)
        step()
    told.host = time.thread_time() - begun
    if outputs != [text.answer for text in texts]:
        raise RuntimeError("what came out is not what was given")
    told.tokens = sum(map(len, outputs))
    return told


class _Worker:
    """The worker's own steps, slots and proposer, over a model that knows what comes."""

    def __init__(self, texts: Sequence[Text], streams: int, method: str) -> None:
        vocab = FIRST_ID + len(
            {each for text in texts for each in text.prompt + text.answer + text.prediction}
        )
        slots = Slots(SlotBounds(streams, BLOCKS, BLOCK, vocab, TOKENS))
        self._forward = _ScriptedForward(texts, slots)
        drafting = (
            Drafting(slots)
            if method == "off"
            else Drafting(
                slots,
                lookup_proposer(msgspec.convert({"method": method}, SpeculativeConfig), slots),
            )
        )
        kind = Generate(
            HostQueue(),
            self._forward,
            HostSampler(_ReadSampler()),
            slots,
            copies=NO_COPIES,
            drafting=drafting,
        )
        self._runner: StepRunner[Any] = StepRunner(HostQueue(), kind)

    def run(self, plan: Plan, told: Told) -> tuple[Result, int]:
        """The result, and the rows that the model's pass had."""
        self._forward.rows = 0
        result = self._runner.execute(plan)
        told.steps += 1
        told.drafted += sum(slot.drafted for slot in result.slots)
        told.kept += sum(len(slot.more) for slot in result.slots)
        return result, self._forward.rows


class _ScriptedForward:
    """Logits of one column: the id of the token that comes next. rows: of the last pass."""

    layers_done = 0

    def __init__(self, texts: Sequence[Text], slots: Slots) -> None:
        self.rows = 0
        self._texts = {tuple(text.prompt): text.prompt + text.answer for text in texts}
        self._slots = slots

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        self.rows = len(batch.tokens)
        ends = np.cumsum(batch.counts)
        following = torch.empty(len(rows), 1)
        for at, row in enumerate(rows):
            sequence = int(np.searchsorted(ends, row, side="right"))
            place = row - (ends[sequence] - batch.counts[sequence]) + batch.starts[sequence]
            slot = self._slots[batch.slots[sequence]]
            text = self._texts[tuple(slot.token_ids[: slot.num_prompt])]
            following[at, 0] = text[place + 1] if place + 1 < len(text) else FIRST_ID
        return following

    def kv_blocks(self) -> list[np.ndarray]:
        return []

    def cancel(self) -> None:
        """Nothing takes long."""


class _ReadSampler:
    """Reads what _ScriptedForward has written."""

    fingerprint = "read"

    def sample(self, logits: Tensor, requests: list[SampleRequest]) -> list[SampledToken]:
        return [SampledToken(int(each)) for each in logits[:, 0]]

    def score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs] | None:
        return None
