"""Traces of agents, made from a seed: sessions of many turns with a growing prompt, and tools that
run between them."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock_planning.simulate.draws import log_normal
from penstock_planning.simulate.fields import fields_of, made_of
from penstock_planning.simulate.trace import MAX_TOKENS, TraceRequest

Positive = Annotated[float, Meta(gt=0, le=1e6)]
Sigma = Annotated[float, Meta(ge=0, le=4)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Share = Annotated[float, Meta(ge=0, le=1)]

AGENTS, OTHERS = "agents", "others"
"""Tenants of the two kinds of requests."""


class AgentTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """sessions, rate: how many begin, and how many per second.  kinds: of agents; those of one kind
    begin with the same `system` tokens.  turns: median of a session's.  task: tokens of its first
    message.  step: median of the new tokens of each further turn, without the previous answer.
    output: median of an answer's.  tool: median of the seconds until the next turn; tool_sigma: of
    the logarithm.  asks: share of the answers after which a person is waited for instead, `person`
    seconds in the median.  known: of the logarithm, how far off a tool's expected time is.
    max_prompt: a session ends before it has more tokens.
    others: requests per second that belong to no session, with other_prompt and other_output tokens
    in the median.

    The defaults give what others have measured of coding agents: in the median 43 turns, 142,000
    tokens in and 444 out, more than 96 % of the former seen before."""

    sessions: Annotated[int, Meta(ge=1, le=100_000_000)] = 40
    rate: Positive = 0.05
    kinds: Annotated[int, Meta(ge=1, le=65_536)] = 4
    system: Tokens = 20_000
    turns: Tokens = 43
    turns_sigma: Sigma = 0.2
    task: Tokens = 2_000
    step: Tokens = 4_200
    step_sigma: Sigma = 0.6
    output: Tokens = 444
    output_sigma: Sigma = 0.6
    tool: Positive = 6.0
    tool_sigma: Sigma = 1.0
    asks: Share = 0.05
    person: Positive = 120.0
    known: Sigma = 0.3
    max_prompt: Tokens = 400_000
    others: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    other_prompt: Tokens = 2_000
    other_output: Tokens = 200
    seed: Annotated[int, Meta(ge=0)] = 0


def parse_agents(text: str) -> AgentTraffic:
    """`sessions=20,rate=0.1,turns=10`. Raises InvalidRequest, which names what isn't allowed."""
    return made_of(fields_of(text), AgentTraffic, f"agents' trace {text!r}")


def agents(traffic: AgentTraffic) -> Iterator[TraceRequest]:
    """The requests in order of arrival, always the same ones for the same traffic. All turns of a
    session stand where its first one does."""
    both = (_sessions(traffic), _others(traffic)) if traffic.others else (_sessions(traffic),)
    return heapq.merge(*both, key=lambda request: request.at)


def seen_before(requests: list[TraceRequest]) -> float:
    """Share of the sessions' prompt tokens that an endless cache would have: what a session has
    said already, and what its kind begins with."""
    latest: dict[str, int] = {}
    kinds: set[int] = set()
    seen = total = 0
    for request in requests:
        if not request.session:
            continue
        known = latest.get(request.session)
        if known is None:
            known = request.prefix_tokens if request.prefix_group in kinds else 0
        kinds.add(request.prefix_group or 0)
        seen += min(known, request.num_prompt)
        total += request.num_prompt
        latest[request.session] = request.num_prompt + request.output_tokens
    return seen / total if total else 0.0


def _sessions(traffic: AgentTraffic) -> Iterator[TraceRequest]:
    rng = random.Random(traffic.seed)
    at = 0.0
    for number in range(traffic.sessions):
        at += rng.expovariate(traffic.rate)
        yield from _session(traffic, rng, at, number)


def _session(
    traffic: AgentTraffic, rng: random.Random, at: float, number: int
) -> Iterator[TraceRequest]:
    kind = rng.randrange(traffic.kinds)
    prompt, pause, hint = traffic.system + traffic.task, 0.0, None
    for _ in range(log_normal(rng, traffic.turns, traffic.turns_sigma)):
        output = log_normal(rng, traffic.output, traffic.output_sigma)
        if prompt + output > traffic.max_prompt:
            return
        tool = rng.lognormvariate(math.log(traffic.tool), traffic.tool_sigma)
        person = rng.lognormvariate(math.log(traffic.person), traffic.tool_sigma)
        guess = tool * rng.lognormvariate(0.0, traffic.known)
        asks = rng.random() < traffic.asks
        hint = None if asks else guess
        yield TraceRequest(
            at,
            prompt,
            output,
            AGENTS,
            prefix_group=kind,
            prefix_tokens=traffic.system,
            session=f"session {number}",
            pause=pause,
            resume_within=hint,
        )
        pause = person if asks else tool
        prompt += output + log_normal(rng, traffic.step, traffic.step_sigma)


def _others(traffic: AgentTraffic) -> Iterator[TraceRequest]:
    """Requests of others, for as long as sessions begin, and one session's length more."""
    rng = random.Random(traffic.seed + 1)
    end = traffic.sessions / traffic.rate + traffic.turns * (traffic.tool + 5.0)
    at = rng.expovariate(traffic.others)
    while at < end:
        prompt = log_normal(rng, traffic.other_prompt, 0.8)
        output = log_normal(rng, traffic.other_output, 0.6)
        yield TraceRequest(at, min(prompt, traffic.max_prompt), output, OTHERS)
        at += rng.expovariate(traffic.others)
