"""What a step decided: digests of all of it, and a summary that a person can compare."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import msgspec

from penstock.protocol.to_frontend import Outputs
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_engine.sessions.effects import Effects

PARTS = tuple(field.name for field in dataclasses.fields(Effects))
_ENCODE = msgspec.msgpack.Encoder().encode
_PLAN_FIELDS = Plan.__struct_fields__


class Decision(msgspec.Struct, array_like=True):
    """digests: of each of PARTS, empty where there was nothing.

    plans: the fields of each plan, an admitted sequence shown as (slot, tokens).
    told: messages to front ends, as (session, kind of message, outputs in it).
    """

    digests: list[bytes]
    plans: list[dict[str, Any]] = []
    told: list[tuple[bytes, str, int]] = []


def decision_of(effects: Effects) -> Decision | None:
    """Returns what the core decided, as its messages show; None if it sent none."""
    parts = [getattr(effects, name) for name in PARTS]
    if not any(parts):
        return None
    # The contents of media chunks are no decision, and not recorded.
    parts[0] = [(session, message, ()) for session, message, _ in effects.to_workers]
    return Decision(
        [_digest(part) if part else b"" for part in parts],
        [_plan(plan) for plan in effects.plans()],
        [
            (session, type(message).__name__, _count(message))
            for session, message, _ in effects.to_frontends
        ],
    )


def plain(value: Any) -> Any:
    """The value as it looks after having been written and read, so that both sides compare."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def work_of(plan: dict[str, Any]) -> list[SlotWork]:
    """The work of a plan that was read back."""
    return msgspec.convert(plan["work"], list[SlotWork])


def _digest(part: Any) -> bytes:
    return hashlib.blake2b(_ENCODE(part), digest_size=16).digest()


def _plan(plan: Plan) -> dict[str, Any]:
    fields = {name: getattr(plan, name) for name in _PLAN_FIELDS}
    fields["admitted"] = [_admitted(new) for new in plan.admitted]
    return fields


def _admitted(new: NewSequence) -> tuple[int, int]:
    return new.slot, len(new.tokens) + (new.num_prompt if new.like is not None else 0)


def _count(message: Any) -> int:
    return len(message.outputs) if isinstance(message, Outputs) else 0
