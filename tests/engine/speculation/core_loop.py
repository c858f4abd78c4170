"""An engine core under a virtual clock, with streams that never end, between a modelled worker
and what the best constant number of drafts would have given."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.config.settings import EngineConfig
from penstock.config.tree import replace_settings
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_engine.core import EngineCore
from penstock_planning.simulate.facts import facts

FRONTEND, WORKER = b"f" * 16, b"w" * 16
PROMPT = 16
TOKENS = 1_000_000
PROPOSED = 8
CONSTANTS = range(PROPOSED + 1)
"""Numbers of drafts of each stream that the policy is compared with."""


@dataclass(frozen=True)
class Machine:
    """step: seconds of a step by its rows. turn: that pass between a result and the next plan where
    none was sent ahead. beside: of a step with drafts, whatever its rows. noise: how many times as
    long each step takes, drawn anew for each run."""

    step: Callable[[int], float]
    turn: float = 0.0005
    beside: float = 0.0
    noise: Callable[[random.Random], Callable[[], float]] = lambda draws: lambda: 1.0


class CoreLoop:
    """One step after another. Sums what the choices are worth: expected tokens, and seconds without
    noise, so that a short run tells of the policy and not of its luck."""

    def __init__(
        self,
        machine: Machine,
        chances: list[float],
        *,
        gathered: bool = True,
        told: bool = True,
        seed: int = 0,
    ) -> None:
        """chances: of each stream, that a draft is right after right ones. told: the worker says
        what it would have guessed, which a head doesn't know before it has computed it."""
        self._told = told
        self.machine, self.chances = machine, chances
        self.now = 0.0
        self.steps = self.drafted = 0
        self.tokens = self.seconds = 0.0
        self._draws = random.Random(seed)
        self._noise = machine.noise(random.Random(seed + 1))
        self._held: dict[int, int] = {}
        self._looked: dict[int, bool] = {}
        self._plans: deque[Plan] = deque()
        self._idle = 0.0  # seconds before the step that is computed
        settings = {
            "max_num_seqs": len(chances),
            "max_num_batched_tokens": 2048,
            "max_model_len": 2 * TOKENS,
            "kv_block_size": 1024,
            "enable_prefix_caching": False,
        }
        self.core = core = EngineCore(facts(replace_settings(EngineConfig(), settings)))
        core.frontend_opened(FRONTEND, Hello(list(PROTOCOL_VERSIONS), "loop", 0), 0.0)
        core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
        ready = Ready(
            num_kv_blocks=1_000_000, device="none", fingerprint="", load_seconds=0.0, goes_on=True
        )
        core.worker_received(WORKER, ready, 0.0)
        for number in range(len(chances)):
            submit = Submit(
                number,
                str(number),
                [5] * PROMPT,
                [OpenSequence(0)],
                TokenSampling(number, temperature=0.0),
                Stopping(max_tokens=TOKENS, ignore_eos=True),
                gathered=gathered,
            )
            core.frontend_received(FRONTEND, submit, 0.0)

    def run(self, passes: int) -> float:
        """The tokens a second of so many further passes of the model."""
        end, tokens, seconds = self.steps + passes, self.tokens, self.seconds
        self._turn()
        while self.steps < end:
            self._step()
        return (self.tokens - tokens) / (self.seconds - seconds)

    def regret(self, passes: int) -> float:
        """By what share they come more slowly than with the best constant number of drafts."""
        return 1.0 - self.run(passes) / max(map(self.constant, CONSTANTS))

    def constant(self, drafts: int) -> float:
        """The tokens a second with so many drafts of each stream in each step."""
        number, machine = len(self.chances), self.machine
        seconds = machine.step(number * (1 + drafts))
        seconds += machine.beside if drafts else machine.turn / 16
        return sum(_tokens(chance, drafts) for chance in self.chances) / seconds

    def _turn(self) -> None:
        effects = self.core.step(self.now)
        self._plans += [sent for _, sent, _ in effects.to_workers if isinstance(sent, Plan)]

    def _step(self) -> None:
        plan = self._plans.popleft()
        for new in plan.admitted:
            self._held[new.slot] = new.num_prompt
        rows = sum(work.count for work in plan.work)
        outcomes = [self._sample(work, plan) for work in plan.work]
        rows += sum(outcome.drafted for outcome in outcomes)
        seconds = self.machine.step(rows)
        if any(outcome.drafted for outcome in outcomes):
            seconds += self.machine.beside
        passes, more = 1, {outcome.slot: list[SlotResult]() for outcome in outcomes}
        newest = outcomes
        while passes <= plan.extra_steps and not (
            plan.least_proposed and sum(each.proposed for each in newest) >= plan.least_proposed
        ):
            work = [SlotWork(each.slot, self._held[each.slot], 1) for each in newest]
            newest = [self._sample(each, plan) for each in work]
            passes += 1
            for each in newest:
                more[each.slot].append(each)
        self.steps += passes
        self.seconds += passes * seconds
        took = sum(seconds * self._noise() for _ in range(passes))
        self.now += took
        if plan.extra_steps:
            outcomes = [_joined(each, more[each.slot]) for each in outcomes]
        idle = 0.0
        if not self._plans:
            idle = self.machine.turn
            self.seconds += idle
        self.core.worker_received(
            WORKER, Result(plan.step, outcomes, took, idle_seconds=self._idle), self.now
        )
        self._idle = idle * self._noise() if idle else 0.0
        self.now += self._idle
        self._turn()

    def _sample(self, work: SlotWork, plan: Plan) -> SlotResult:
        slot, chance, draw = work.slot, self.chances[work.slot], self._draws.random
        kept = 0
        while kept < work.draft and draw() < chance:
            kept += 1
        self.tokens += _tokens(chance, work.draft)
        self.drafted += work.draft
        self._held[slot] += 1 + kept
        tells = self._told and not work.draft and self._looked.get(slot, False)
        self._looked[slot] = plan.wants_proposed
        return SlotResult(
            slot,
            7,
            more=[7] * kept,
            drafted=work.draft,
            proposed=PROPOSED if plan.wants_proposed else 0,
            guessed=draw() < chance if tells else None,
        )


def _tokens(chance: float, drafts: int) -> float:
    """Tokens of a step that are to be expected."""
    return sum(chance**place for place in range(drafts + 1))


def _joined(first: SlotResult, more: list[SlotResult]) -> SlotResult:
    if not more:
        return first
    return SlotResult(
        first.slot,
        7,
        more=[7] * len(more),
        proposed=more[-1].proposed,
        guessed=first.guessed,
        more_guessed=[each.guessed for each in more if each.guessed is not None],
    )
