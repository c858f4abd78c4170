"""The states of a sequence, and the one table of what follows what."""

from __future__ import annotations

import enum

from penstock.protocol.common import FinishReason


class SequenceState(enum.Enum):
    """The state of a sequence between its arrival and its end."""

    WAITING = "waiting"
    WAITING_FOR_GRAMMAR = "waiting for grammar"
    WAITING_FOR_REMOTE_KV = "waiting for remote KV"
    WAITING_FOR_MEDIA = "waiting for media"
    WAITING_FOR_ADAPTER = "waiting for adapter"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "stopped"
    FINISHED_LENGTH = "length"
    FINISHED_REPETITION = "repetition"
    FINISHED_ABORTED = "aborted"
    FINISHED_TIMED_OUT = "timed out"
    FINISHED_FAILED = "failed"


FINISH_REASONS: dict[SequenceState, FinishReason] = {
    SequenceState.FINISHED_STOPPED: "stop",
    SequenceState.FINISHED_LENGTH: "length",
    SequenceState.FINISHED_REPETITION: "repetition",
    SequenceState.FINISHED_ABORTED: "abort",
    SequenceState.FINISHED_TIMED_OUT: "timeout",
    SequenceState.FINISHED_FAILED: "error",
}

_ENDS = tuple(FINISH_REASONS)

TRANSITIONS: dict[SequenceState, tuple[SequenceState, ...]] = {
    # It gets a slot, or ends before it ran; or its grammar must be compiled (again) first, or its
    # prefix may come from elsewhere, or an item of its media, or its adapter must be loaded.
    SequenceState.WAITING: (
        SequenceState.RUNNING,
        SequenceState.WAITING_FOR_GRAMMAR,
        SequenceState.WAITING_FOR_REMOTE_KV,
        SequenceState.WAITING_FOR_MEDIA,
        SequenceState.WAITING_FOR_ADAPTER,
        *_ENDS,
    ),
    SequenceState.WAITING_FOR_REMOTE_KV: (SequenceState.WAITING, *_ENDS),
    SequenceState.WAITING_FOR_GRAMMAR: (SequenceState.WAITING, *_ENDS),
    SequenceState.WAITING_FOR_MEDIA: (SequenceState.WAITING, *_ENDS),
    SequenceState.WAITING_FOR_ADAPTER: (SequenceState.WAITING, *_ENDS),
    # Its blocks were needed (PREEMPTED), its worker died (WAITING), or it ends.
    SequenceState.RUNNING: (SequenceState.PREEMPTED, SequenceState.WAITING, *_ENDS),
    SequenceState.PREEMPTED: (
        SequenceState.RUNNING,
        SequenceState.WAITING_FOR_GRAMMAR,
        SequenceState.WAITING_FOR_MEDIA,
        SequenceState.WAITING_FOR_ADAPTER,
        *_ENDS,
    ),
    **dict.fromkeys(_ENDS, ()),
}


class IllegalTransition(Exception):
    """A transition that the sequence's state doesn't allow."""
