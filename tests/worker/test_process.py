"""The worker as a process: sessions, plans, final failures, signals. The engine side is a
SessionServer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.protocol.common import Grammar, TokenSampling
from penstock.protocol.from_worker import (
    Fault,
    GrammarFailed,
    Leaving,
    MediaReady,
    MediaTaken,
    Progress,
    Result,
    WorkerHello,
)
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork, Stop
from penstock.protocol.worker_resources import CompileGrammar, DropGrammar, LoadMediaChunk
from penstock.transport.events import Ended
from penstock_worker.media.memory import USUAL_ROWS
from testing.preloaded import Preloaded
from tests.worker.checkpoints import tiny_setup
from tests.worker.vision.picture_runners import message_of
from tests.worker.vision.pictures import picture, prompt_of
from tests.worker.vision.vision_cases import CASES, prepared_folder
from tests.worker.worker_process import START, Ending, Engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


HELD = f"""
import time
from pathlib import Path
from penstock_worker import engine_session
from penstock_worker.forward.reference import ReferenceForward

engine_session.PROGRESS_INTERVAL = 0.1
gate = Path({{gate!r}})
count_layer = ReferenceForward._count_layer

def held(self):
    count_layer(self)
    until = time.monotonic() + 100
    while not gate.exists() and not self._cancelled and time.monotonic() < until:
        time.sleep(0.01)

ReferenceForward._count_layer = held
{START}"""
"""A step stays in the middle until there is the file `gate`."""


BROKEN = f"""
import penstock_worker.loading.load as loading

def broken(*_):
    raise LookupError("what nobody thought of")

loading.load = broken
{START}"""
"""A model is never loaded, for a reason that isn't known to be final."""


@pytest.fixture
def engine(preloaded_process: Preloaded, tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(preloaded_process, tmp_path)
    yield engine
    engine.close()


@pytest.fixture
def held(preloaded_process: Preloaded, tmp_path: Path) -> Iterator[Engine]:
    """Its steps stay in the middle until `release`."""
    engine = Engine(preloaded_process, tmp_path, start=HELD.format(gate=str(tmp_path / "gate")))
    yield engine
    engine.close()


HANGS = f"""
from penstock_worker import engine_session
engine_session.HUNG_SECONDS = 0.3
{HELD}"""


@pytest.fixture
def hanging(preloaded_process: Preloaded, tmp_path: Path) -> Iterator[Engine]:
    """An engine that doesn't wait for a step whose session is over."""
    engine = Engine(preloaded_process, tmp_path, start=HANGS.format(gate=str(tmp_path / "gate")))
    yield engine
    engine.close()


def release(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return tiny_setup(tmp_path)


def first_plan(tokens: list[int], step: int = 1, slot: int = 0) -> Plan:
    blocks = list(range(-(-len(tokens) // 4)))
    sampling = TokenSampling(7, temperature=0.7)
    new = NewSequence(slot, tokens, len(tokens), 0, sampling, blocks)
    return Plan(step, step - 1, [], [new], [SlotWork(slot, 0, len(tokens))])


def test_a_life(engine: Engine, setup: Setup) -> None:
    """Setup, a plan, the engine's restart with the weights still loaded, Stop."""
    ready = engine.set_up(setup)
    assert ready.num_kv_blocks == 2000
    assert len(ready.fingerprint) == 64
    engine.send(first_plan([1, 2, 3]))
    result = engine.hear(Result)
    assert result.step == 1
    assert result.slots[0].token is not None
    assert result.compute_seconds > 0
    engine.server.close()
    engine.bind(b"87654321")
    again = engine.set_up(setup)
    assert again == ready, "loaded once: even its load_seconds are the same"
    engine.server.close()
    engine.bind(b"12348765")
    tried = engine.set_up(msgspec.structs.replace(setup, trial=True))
    assert tried.load_seconds != ready.load_seconds, "whoever asks for weights gets those on disk"
    engine.send(first_plan([1, 2, 3]))
    assert engine.hear(Result).slots == result.slots
    engine.send(Stop())
    assert engine.exit_code()[0] == 0


def test_a_folder_of_its_own_takes_the_place_of_the_engines(
    preloaded_process: Preloaded, tmp_path: Path, setup: Setup
) -> None:
    """The worker is on another machine, where the engine core's path leads nowhere."""
    own = Engine(preloaded_process, tmp_path, model_dir=setup.model_dir)
    try:
        away = msgspec.structs.replace(setup, model_dir="/nowhere", digest="0" * 64)
        assert own.set_up(away).num_kv_blocks == 2000
        own.send(Stop())
        assert own.exit_code()[0] == 0
    finally:
        own.close()


def test_another_model_than_the_engines_is_refused(engine: Engine, setup: Setup) -> None:
    """One path may hold something else by now: a client that was changed, another volume."""
    engine.hear(WorkerHello)
    engine.send(msgspec.structs.replace(setup, digest="f" * 64))
    fault = engine.hear(Fault)
    assert fault.final
    assert "holds another model (tiny, 000000000000)" in fault.message
    code, _ = engine.exit_code()
    assert code == 78


def test_a_plan_that_does_not_fit_is_a_fault_and_a_new_session(
    engine: Engine, setup: Setup
) -> None:
    engine.set_up(setup)
    engine.send(Plan(1, 0, [3], [], []))
    fault = engine.hear(Fault)
    assert not fault.final
    assert "slot 3 is released but has no sequence" in fault.message
    engine.server.end(engine.session, "it reported a fault")
    engine.set_up(setup)
    engine.send(first_plan([1, 2, 3]))
    assert engine.hear(Result).slots[0].error is None


def test_progress_inside_a_long_step(held: Engine, setup: Setup, tmp_path: Path) -> None:
    held.set_up(setup)
    held.send(first_plan([1, 2, 3]))
    seen: list[int] = []

    def done(event: Any) -> bool:
        message = getattr(event, "message", None)
        if isinstance(message, Progress):
            assert message.step == 1
            seen.append(message.layers)
            if len(seen) == 3:
                release(tmp_path)
        return isinstance(message, Result)

    held.wait(done)
    assert len(seen) >= 3
    assert 1 in seen, "the first of two layers was computed"
    assert seen == sorted(seen)


def test_sigterm_in_a_long_step_is_prompt(held: Engine, setup: Setup) -> None:
    held.set_up(setup)
    held.send(first_plan([1, 2, 3]))
    held.hear(Progress)
    held.worker.send_signal(signal.SIGTERM)
    assert held.exit_code()[0] == 0
    told = [getattr(event, "message", None) for event in held.left()]
    assert not [each for each in told if isinstance(each, Result)], "the step was not finished"


def test_a_worker_that_was_told_to_go_says_so_at_last(held: Engine, setup: Setup) -> None:
    held.set_up(setup)
    held.send(first_plan([1, 2, 3]))
    held.hear(Progress)
    held.worker.send_signal(signal.SIGTERM)
    last: list[Any] = []

    def ended(event: Any) -> bool:
        if not isinstance(event, Ended):
            last.append(event.message)
        return isinstance(event, Ended)

    held.wait(Also(ended))
    assert last[-1] == Leaving()


def test_a_life_is_told_with_every_hello(
    engine: Engine, preloaded_process: Preloaded, tmp_path: Path
) -> None:
    first = engine.hear(WorkerHello).life
    assert len(first) == 16
    engine.server.close()
    engine.bind(b"87654321")
    assert engine.hear(WorkerHello).life == first
    (tmp_path / "other").mkdir()
    other = Engine(preloaded_process, tmp_path / "other")
    try:
        assert other.hear(WorkerHello).life not in ("", first)
    finally:
        other.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_dir": "/nonexistent/model"}, "/nonexistent/model"),
        ({"attention_backend": "magic"}, "--attention-backend is magic; allowed: "),
        ({"num_kv_blocks": 10**9}, "num_kv_blocks is 1000000000"),
        ({"numa_nodes": (1023,)}, "NUMA node 1023 is wanted, which doesn't exist"),
    ],
)
def test_final_failures(engine: Engine, setup: Setup, change: dict[str, Any], message: str) -> None:
    engine.hear(WorkerHello)
    engine.send(msgspec.structs.replace(setup, **change))
    engine.wait = lambda wanted, seconds=100: Engine.wait(engine, Also(wanted), seconds)
    fault = engine.hear(Fault)
    assert fault.final
    assert message in fault.message
    code, errors = engine.exit_code()
    assert code == 78
    told = [getattr(event, "message", None) for event in engine.left()]
    assert not [each for each in told if isinstance(each, Leaving)], "nobody told it to go"
    assert message in errors
    assert "Traceback" not in errors


def test_a_step_that_hangs_ends_the_process_once_its_session_is_over(
    hanging: Engine, setup: Setup
) -> None:
    hanging.set_up(setup)
    hanging.send(first_plan([1, 2, 3]))
    hanging.hear(Progress)
    hanging.server.close()
    code, errors = hanging.exit_code()
    assert code == 1
    assert "a step hangs after its session ended" in errors
    assert "_count_layer" in errors or "held" in errors  # Where it was.
    hanging.bind(b"87654321")


def test_a_step_that_ends_after_its_session_does_not(
    held: Engine, setup: Setup, tmp_path: Path
) -> None:
    held.set_up(setup)
    held.send(first_plan([1, 2, 3]))
    held.hear(Progress)
    release(tmp_path)
    held.server.close()
    held.bind(b"87654321")
    held.set_up(setup)
    held.send(first_plan([1, 2, 3]))
    assert held.hear(Result).step == 1


def test_a_worker_that_can_not_load_ends(
    preloaded_process: Preloaded, tmp_path: Path, setup: Setup
) -> None:
    """Set up again in the same process, it would fail for ever, as fast as sessions open."""
    engine = Engine(preloaded_process, tmp_path, start=BROKEN)
    try:
        engine.hear(WorkerHello)
        engine.send(setup)
        fault = engine.wait(Also(lambda event: isinstance(_message(event), Fault))).message
        assert not fault.final
        assert "what nobody thought of" in fault.message
        code, errors = engine.exit_code()
        assert code == 1
        assert "LookupError: what nobody thought of" in errors
    finally:
        engine.close()


def _message(event: Any) -> Any:
    return getattr(event, "message", None)


class Also(Ending):
    """Like `wanted`, and tolerates that the worker has left by then."""

    def __init__(self, wanted: Callable[[Any], bool]) -> None:
        self._wanted = wanted

    def __call__(self, event: Any) -> bool:
        return self._wanted(event)


def test_grammars_are_compiled_while_a_step_goes_on(
    held: Engine, setup: Setup, tmp_path: Path
) -> None:
    """This model has no EOS token, so the answer is a refusal; the step ends after it."""
    held.set_up(setup)
    held.send(first_plan([1, 2, 3]))
    held.hear(Progress)
    held.send(CompileGrammar(1, Grammar("regex", "a")))
    order: list[type] = []

    def refused(event: Any) -> bool:
        order.append(type(getattr(event, "message", None)))
        return GrammarFailed in order

    held.wait(refused)
    assert Result not in order
    release(tmp_path)
    assert held.hear(Result).step == 1
    held.send(DropGrammar(1))
    held.send(first_plan([1, 2, 3], step=2, slot=1))
    assert held.hear(Result).step == 2


def test_a_worker_on_a_cpu_loads_no_triton() -> None:
    """It takes 65 MB, and half a second of each start."""
    code = (
        "import sys; from penstock_worker.process import preload; preload()\n"
        "import penstock_worker.forward.cpu.backend, penstock_worker.forward.backends\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'triton'))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_pictures_come_as_files_and_in_chunks(engine: Engine, setup: Setup, tmp_path: Path) -> None:
    """Both ways of the same item give the same token; a chunk's bytes are a frame of its own."""
    folder = tmp_path / "sees"
    folder.mkdir()
    prepared_folder("llava", folder)
    shown = picture(CASES["llava"].preparation, 1, 1)
    name, file = shown.item.name, tmp_path / "item"
    file.write_bytes(shown.content)
    asked = msgspec.structs.replace(
        setup, model_dir=str(folder), num_kv_blocks=64, max_model_len=200
    )
    assert engine.set_up(asked).media_rows == USUAL_ROWS
    tokens, media = prompt_of([[3, 4, 5], shown, [6]])
    plan = first_plan(tokens)
    new = msgspec.structs.replace(plan.admitted[0], media=media)
    engine.send(message_of(shown.item, str(file)))
    assert engine.hear(MediaReady).name == name
    engine.send(msgspec.structs.replace(plan, admitted=[new], encode=[name]))
    first = engine.hear(Result)
    assert first.encode_seconds > 0
    assert first.slots[0].error is None
    engine.send(message_of(shown.item))
    engine.send(LoadMediaChunk(name, 0), shown.content[:99])
    assert engine.hear(MediaTaken).size == 99
    engine.send(LoadMediaChunk(name, 99), shown.content[99:])
    assert engine.hear(MediaReady).name == name
    again = msgspec.structs.replace(
        plan, step=2, follows=1, released=[0], admitted=[new], encode=[name], dropped_media=[name]
    )
    engine.send(again)
    assert engine.hear(Result).slots == first.slots
