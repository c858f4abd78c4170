"""What is remembered chooses as the gateways' policy does."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction

from penstock.client.routing import (
    AFFINITY_TOKENS,
    PrefixAffinity,
    RoutingRequest,
    bound_of,
    load_bound,
)
from penstock_planning.cells.affinity import RememberedAffinity
from penstock_planning.cells.asks import Ask, placed_by
from penstock_planning.simulate.prompts import submit_of
from penstock_planning.simulate.routing import routing_request
from penstock_planning.simulate.trace import TraceRequest


@dataclass(eq=False)
class AnEngine:
    endpoint: str
    load: int = 0
    block_size: int = 16


def test_it_chooses_as_the_policy_whoever_joins_and_leaves() -> None:
    rng = random.Random(11)
    engines = [AnEngine(f"engine-{n}") for n in range(6)]
    remembered = RememberedAffinity(engines)
    whys = set()
    for turn in range(1500):
        event = rng.random()
        if event < 0.02:
            remembered.join(AnEngine(f"late-{turn}"))
        elif event < 0.04 and len(remembered.engines) > 2:
            remembered.leave(rng.choice(remembered.engines))
        for engine in remembered.engines:
            engine.load = rng.choice([0, 1, 2, 3, 12])
        session = f"session {rng.randrange(40)}" if rng.random() < 0.5 else ""
        prompt = [rng.randrange(5)] * rng.choice([4, 16, 40, 200])
        ask = RoutingRequest(prompt, AFFINITY_TOKENS, f"tenant {rng.randrange(3)}", session=session)
        total = sum(engine.load for engine in remembered.engines)
        by_rule = PrefixAffinity().choose(ask, remembered.engines)
        assert remembered.choose(ask, total) == by_rule
        whys.add(by_rule[1])
    assert whys == {"prefix", "session", "load"}


def test_the_bound_is_that_of_the_loads() -> None:
    rng = random.Random(2)
    for _ in range(200):
        loads = [rng.randrange(30) for _ in range(rng.randint(1, 40))]
        factor = rng.choice([1.25, 2.0])
        bound = bound_of(sum(loads), len(loads), factor)
        assert bound == load_bound(loads, factor)
        assert bound == math.ceil(Fraction(factor) * (sum(loads) + 1) / len(loads))


def test_the_tokens_that_count_are_those_of_the_whole_prompt() -> None:
    for prompt, prefix in ((5, 0), (128, 64), (129, 128), (4000, 512), (300, 40)):
        for session in ("", "s"):
            request = TraceRequest(
                0.0, prompt, 4, "t", prefix_group=7, prefix_tokens=prefix, session=session
            )
            short, whole = placed_by(Ask(request, 9, 0.0)), routing_request(submit_of(request, 9))
            assert short.prompt_token_ids[:128] == whole.prompt_token_ids[:128]
            assert (short.tenant, short.session) == (whole.tenant, whole.session)
    hidden = TraceRequest(0.0, 300, 4, "t", session="s", unnamed=True)
    assert placed_by(Ask(hidden, 9, 0.0)).session == ""
    assert submit_of(hidden, 9).session is None
