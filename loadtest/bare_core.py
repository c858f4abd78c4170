"""An engine core without sockets, with a front end and a worker that are this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.config.settings import EngineConfig
from penstock.config.tree import replace_settings
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import Ready, WorkerHello
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.sessions.effects import Effects
from penstock_engine.simulate.simulation import facts

FRONTEND, WORKER = b"f" * 16, b"w" * 16
BLOCK = 16
"""Tokens of a KV block."""


def started_core(
    settings: Mapping[str, Any],
    blocks: int,
    prompts: Iterable[list[int]],
    tokens: int,
    **ready: Any,
) -> EngineCore:
    """With requests for so many greedy tokens each.

    settings: of the engine core, by their flat names.  blocks: of the KV cache.  ready: what else
    the worker says of itself.
    """
    given = {"kv_block_size": BLOCK, **settings}
    core = EngineCore(facts(replace_settings(EngineConfig(), given)))
    core.frontend_opened(FRONTEND, Hello(list(PROTOCOL_VERSIONS), "loadtest", 0), 0.0)
    core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
    nothing = {"device": "none", "fingerprint": "none", "load_seconds": 0.0}
    core.worker_received(WORKER, Ready(num_kv_blocks=blocks, **nothing, **ready), 0.0)
    for number, prompt in enumerate(prompts):
        sampling, stopping = TokenSampling(number, temperature=0.0), Stopping(max_tokens=tokens)
        submit = Submit(number, str(number), prompt, [OpenSequence(0)], sampling, stopping)
        core.frontend_received(FRONTEND, submit, 0.0)
    return core


def plans_of(effects: Effects) -> list[Plan]:
    return [message for _, message, _ in effects.to_workers if isinstance(message, Plan)]
