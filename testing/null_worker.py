"""A worker that computes nothing: real sessions, and a step each `--step-seconds`.

python -m testing.null_worker ENDPOINT --model-dir DIR --step-seconds 0.5
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import ONE_GROUP, KVGroup, kv_groups
from penstock.prepare import load_manifest
from penstock.prepare.describe import kv_number_bytes
from penstock.prepare.folder import TOKENIZER
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_worker import Leaving, Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork, Stop, ToWorker
from penstock.text.tokenizer import Tokenizer
from penstock.transport.events import Ended, Opened, Received
from penstock.transport.session_client import SessionClient
from testing.words import token_ids, word

BLOCKS = 65_536
LONGEST_WAIT = 0.1


@dataclass(slots=True)
class Slot:
    seed: int
    prompt: int  # tokens
    tokens: int  # that it has, prompt included


class Answers:
    """What each slot says next, as the plans of one session have it."""

    def __init__(self, words: list[int]) -> None:
        self._words = words  # token ids of what is said
        self._slots: dict[int, Slot] = {}

    def forget(self) -> None:
        """The session has ended."""
        self._slots.clear()

    def results(self, plan: Plan) -> list[SlotResult]:
        """Results of a step: a token for each slot whose tokens are all computed after it."""
        for number in plan.released:
            del self._slots[number]
        for new in plan.admitted:
            self._slots[new.slot] = self._slot(new)
        return [self._work(work) for work in plan.work]

    def _slot(self, new: NewSequence) -> Slot:
        """The slot of a sequence that takes it."""
        if new.like is None:
            return Slot(new.sampling.seed, new.num_prompt, len(new.tokens))
        other = self._slots[new.like]
        return Slot(other.seed, other.prompt, other.prompt + len(new.tokens))

    def _work(self, work: SlotWork) -> SlotResult:
        slot = self._slots[work.slot]
        if work.start + work.count < slot.tokens:
            return SlotResult(work.slot)
        place = slot.tokens - slot.prompt
        slot.tokens += 1
        return SlotResult(work.slot, self._token(slot.seed, place))

    def _token(self, seed: int, place: int) -> int:
        """The token that the stream of that seed says at a place, from 0 on."""
        return self._words[word(seed, place)]


def ready(setup: Setup) -> Ready:
    """The answer of a worker that needs no memory."""
    return Ready(
        num_kv_blocks=setup.num_kv_blocks or BLOCKS,
        device="none",
        fingerprint="null",
        load_seconds=0.0,
        kv_groups=groups_of(setup),
    )


def groups_of(setup: Setup) -> tuple[KVGroup, ...]:
    """The KV groups that a worker which computes the model would have."""
    model = load_manifest(setup.model_dir)
    if not isinstance(model.config, ModelConfig):
        return ONE_GROUP
    size = kv_number_bytes(model.weights.dtype)
    return kv_groups(model.config, size, setup.max_model_len, setup.block_size)


class NullWorker:
    """A worker whose step takes no time, and is followed by a pause of `step_seconds`.

    answers: what its slots say.
    """

    def __init__(self, endpoint: str, answers: Answers, step_seconds: float) -> None:
        self._answers, self._pace = answers, step_seconds
        self._plans: deque[Plan] = deque()
        self._due = 0.0
        self._stopped = False
        life = secrets.token_hex(8)
        self._link: SessionClient[ToWorker] = SessionClient(
            zmq.Context(),
            endpoint,
            msgspec.msgpack.Decoder(ToWorker),
            lambda: WorkerHello(list(PROTOCOL_VERSIONS), 0, os.getpid(), life=life),
            TransportSettings(),
        )

    def run(self) -> None:
        """Runs until it is told to stop."""
        while not self._stopped and self._listen():
            now = time.monotonic()
            if self._plans and now >= self._due:
                plan = self._plans.popleft()
                slots = self._answers.results(plan)
                self._link.send(Result(plan.step, slots, compute_seconds=self._pace))
                self._due = now + self._pace
            wait = min(LONGEST_WAIT, self._link.wait_hint(now))
            if self._plans:
                wait = min(wait, self._due - time.monotonic())
            if self._link.socket is not None:
                self._link.socket.poll(max(0, round(1000 * wait)))
            else:
                time.sleep(max(0.0, wait))

    def stop(self) -> None:
        """Lets `run` return soon; from another thread."""
        self._stopped = True

    def leave(self) -> None:
        """Says that it was told to go."""
        self._link.send(Leaving())
        self._link.close()

    def _listen(self) -> bool:
        for event in self._link.poll(time.monotonic()):
            match event:
                case Ended():
                    self._answers.forget()
                    self._plans.clear()
                case Opened(_, Setup() as setup):
                    self._link.send(ready(setup))
                case Received(_, Plan() as plan):
                    self._plans.append(plan)
                case Received(_, Stop()):
                    return False
        return True


def _leave(*_: object) -> NoReturn:
    sys.exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("endpoint")
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.5)
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    tokenizer = Tokenizer(
        (flags.model_dir / TOKENIZER).read_bytes(), add_bos=False, bos_token_id=None
    )
    worker = NullWorker(flags.endpoint, Answers(token_ids(tokenizer)), flags.step_seconds)
    try:
        worker.run()
    except SystemExit:
        worker.leave()
        raise


if __name__ == "__main__":
    main()
