"""Traces of many tenants' chats and agents, made from a seed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest
from penstock_planning.simulate.draws import log_normal
from penstock_planning.simulate.fields import fields_of, made_of
from penstock_planning.simulate.trace import MAX_TOKENS, TraceRequest

Positive = Annotated[float, Meta(gt=0, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]


class MixedTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions begin for `seconds`, `rate` of them a second, and go on until they are over.

    tenants: how many; the n-th has 1 / n ** skew of the sessions.  agents: share of sessions that
    are agents', the others are chats.  named: share of tenants that send a session's name.
    system: tokens that all chats of a tenant begin with, and its agents with twice as many.
    chat_turns, agent_turns: medians of a session's; chat_step, agent_step: of the new tokens of
    each turn, without the previous answer; chat_output, agent_output: of answers.  person, tool:
    medians of the seconds before a chat's and an agent's next turn.  max_prompt: a session ends
    before it has more tokens.
    grows: factor by which tenant number `grown` begins more sessions, from `grows_at` for
    `grows_for` seconds.  swells, from `swells_at` on: the same of all tenants."""

    seconds: Positive = 300.0
    rate: Positive = 1.0
    tenants: Annotated[int, Meta(ge=1, le=10_000)] = 40
    skew: Annotated[float, Meta(ge=0, le=4)] = 0.8
    agents: Share = 0.25
    named: Share = 0.7
    system: Tokens = 512
    chat_turns: Tokens = 4
    agent_turns: Tokens = 8
    chat_step: Tokens = 60
    agent_step: Tokens = 240
    chat_output: Tokens = 100
    agent_output: Tokens = 60
    person: Positive = 15.0
    tool: Positive = 3.0
    max_prompt: Tokens = 6000
    grows: Annotated[float, Meta(ge=1, le=1000)] = 1.0
    grown: Annotated[int, Meta(ge=0)] = 5
    grows_at: Seconds = 0.0
    grows_for: Seconds = 0.0
    swells: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    swells_at: Seconds = 0.0
    seed: Annotated[int, Meta(ge=0)] = 0


def parse_mixed(text: str) -> MixedTraffic:
    """`rate=5,tenants=40`. Raises InvalidRequest, which names what isn't allowed."""
    made = made_of(fields_of(text), MixedTraffic, f"mixed trace {text!r}")
    if made.grown >= made.tenants:
        raise InvalidRequest(f"mixed trace {text!r}: tenants count from 0 to {made.tenants - 1}")
    return made


def tenant_name(number: int) -> str:
    """Returns the name of the n-th tenant."""
    return f"tenant {number}"


def mixed(traffic: MixedTraffic) -> Iterator[TraceRequest]:
    """The requests, always the same ones for the same traffic. All turns of a session stand where
    its first one does."""
    rng = random.Random(traffic.seed)
    shares = [1 / number**traffic.skew for number in range(1, traffic.tenants + 1)]
    plain = list(itertools.accumulate(shares))
    shares[traffic.grown] *= traffic.grows
    grown = list(itertools.accumulate(shares))
    at, number = 0.0, 0
    while True:
        # Drawn at the highest rate, and thinned out to the one of its time.
        at += rng.expovariate(traffic.rate * max(1.0, traffic.swells) * grown[-1] / plain[-1])
        if at >= traffic.seconds:
            return
        growing = traffic.grows_at <= at < traffic.grows_at + traffic.grows_for
        weights = grown if growing else plain
        rate = weights[-1] / grown[-1] / max(1.0, traffic.swells)
        rate *= traffic.swells if at >= traffic.swells_at else 1.0
        if rng.random() < rate:
            tenant = rng.choices(range(traffic.tenants), cum_weights=weights)[0]
            yield from _session(traffic, rng, at, tenant, number)
            number += 1


def _session(
    traffic: MixedTraffic, rng: random.Random, at: float, tenant: int, number: int
) -> Iterator[TraceRequest]:
    agent = rng.random() < traffic.agents
    system = traffic.system * (2 if agent else 1)
    turns, step, output, pause = (
        (traffic.agent_turns, traffic.agent_step, traffic.agent_output, traffic.tool)
        if agent
        else (traffic.chat_turns, traffic.chat_step, traffic.chat_output, traffic.person)
    )
    prompt, waits = system, 0.0
    # Every tenant either names its sessions or not: evenly among large and small ones.
    named = (tenant * 0.618034) % 1.0 < traffic.named
    for _ in range(log_normal(rng, turns, 0.5)):
        prompt += log_normal(rng, step, 0.7)
        answer = log_normal(rng, output, 0.6)
        if prompt + answer > traffic.max_prompt:
            return
        yield TraceRequest(
            at,
            prompt,
            answer,
            tenant_name(tenant),
            prefix_group=2 * tenant + agent,
            prefix_tokens=system,
            session=f"session {number}",
            pause=waits,
            unnamed=not named,
        )
        prompt += answer
        waits = rng.lognormvariate(math.log(pause), 0.7)
