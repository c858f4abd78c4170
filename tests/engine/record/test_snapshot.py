"""Snapshots: everything that a core holds, and a copy that goes on exactly like the original."""

from __future__ import annotations

import functools
import gc
import types
from array import array
from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.inspect import StructType, Type, type_info

from penstock.config.settings import EngineConfig
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import Stopping
from penstock_engine.kv.pool import BlockPool
from penstock_engine.record import known
from penstock_engine.record.events import READERS, STEP, event_methods, public_methods
from penstock_engine.record.restoring import restore
from penstock_engine.record.snapshot import SnapshotError, snapshot
from penstock_engine.request.states import SequenceState
from tests.engine.record.twins import Twins
from tests.engine.walked_harness import Drawn, make_harness
from tests.engine.walker import Walker
from tests.engine.walks import seeded_walk
from tests.met import met as is_met
from tests.thinning import part

_NO_STATE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def reachable(root: object) -> dict[int, object]:
    """Every object that the collector can reach from `root`, not by way of classes or code."""
    found: dict[int, object] = {}
    pending = [root]
    while pending:
        one = pending.pop()
        if id(one) not in found and not isinstance(one, _NO_STATE):
            found[id(one)] = one
            pending += gc.get_referents(one)
    return found


def test_every_class_that_a_busy_core_holds_is_known() -> None:
    classes: set[type] = set()
    for seed in range(6):
        core = seeded_walk(seed, 400).h.core
        classes |= {type(one) for one in reachable(core).values()}
    ours = {cls for cls in classes if cls.__module__.startswith("penstock")}
    assert {"Scheduler", "StepInFlight", "Sequence", "BlockPool"} <= {c.__name__ for c in ours}
    unknown = sorted(name for name in map(known.name_of, ours) if name not in known.known_classes())
    assert unknown == [], "add them to penstock_engine/record/known.py"


@pytest.mark.parametrize("seed", range(12))
def test_a_restored_core_goes_on_like_the_original(seed: int) -> None:
    walker = seeded_walk(seed, 150 + 40 * seed)
    core = walker.h.core
    twins = Twins(core, restore(snapshot(core)))
    walker.h.core = twins  # type: ignore[assignment]
    for _ in range(400):
        walker.walk()
    walker.end()
    assert twins.steps > 200
    assert snapshot(twins.original) == snapshot(restore(snapshot(twins.original)))


@settings(max_examples=part(40, 1 / 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 40), st.integers(1, 30))
def test_short_histories_with_a_snapshot_in_the_middle(
    data: st.DataObject, before: int, after: int
) -> None:
    choose = Drawn(data)
    walker = Walker(make_harness(choose), choose)
    walker.connect()
    for _ in range(before):
        walker.walk()
    core = walker.h.core
    is_met("open requests", core.has_open_requests)
    walker.h.core = Twins(core, restore(snapshot(core)))  # type: ignore[assignment]
    for _ in range(after):
        walker.walk()
    walker.end()


def test_a_snapshot_changes_nothing() -> None:
    plain, disturbed = seeded_walk(5, 0), seeded_walk(5, 0)
    for _ in range(200):
        plain.walk()
        disturbed.walk()
        snapshot(disturbed.h.core)
    assert plain.h.trace == disturbed.h.trace


def round_trip(value: Any) -> Any:
    return restore(snapshot([value]))[0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**70),
        2**64 - 1,
        -0.0,
        "text",
        b"bytes",
        (1, (2, "x")),
        [1, [2, []]],
        {"a": 1, (1, 2): [3]},
        {1, 2, 3},
        frozenset({b"x"}),
        deque([1, 2], maxlen=5),
        array("i", [1, -2]),
        bytearray(b"xy"),
        SequenceState.PREEMPTED,
        Stopping(max_tokens=3, stop_token_ids=(1, 2)),
        [2**80, 1, "mixed"],
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_what_was_shared_is_shared_and_cycles_hold() -> None:
    shared: list[Any] = [1]
    loop: dict[str, Any] = {"one": shared, "two": (shared,)}
    loop["self"] = loop
    back = round_trip(loop)
    assert back["self"] is back
    assert back["one"] is back["two"][0]
    back["one"].append(2)
    assert back["two"] == ([1, 2],)


def test_long_chains_need_no_recursion() -> None:
    chain: Any = None
    for number in range(20_000):
        chain = [number, chain] if number % 2 else (number, chain)
    back = round_trip(chain)
    for number in reversed(range(20_000)):
        assert back[0] == number
        back = back[1]


def test_what_is_not_known_is_refused_both_ways() -> None:
    class Stranger:
        pass

    with pytest.raises(SnapshotError, match="Stranger is not known"):
        snapshot([Stranger()])
    data = snapshot([BlockPool(2)])
    with pytest.raises(SnapshotError, match=r"pathlib\.Path is not known"):
        restore(data.replace(b"\xd9\x21penstock_engine.kv.pool.BlockPool", b"\xacpathlib.Path"))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"\xa8num_free", b"\xa8__class_"), (b"\xa8num_free", b"\xa8num_else")],
)
def test_attributes_that_a_class_lacks_are_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(SnapshotError, match="has no attribute"):
        restore(snapshot([BlockPool(2)]).replace(old, new))


@given(st.binary(max_size=60), st.integers(0, 3000))
@settings(max_examples=part(80, 1 / 3), deadline=None)
def test_damage_is_a_snapshot_error(noise: bytes, at: int) -> None:
    data = bytearray(small())
    at = min(at, len(data) - 1)
    data[at : at + len(noise)] = noise
    try:
        restore(bytes(data))
    except SnapshotError:
        is_met("refused", True)
    else:
        is_met("refused", False)


@functools.cache
def small() -> bytes:
    return snapshot(seeded_walk(1, 60).h.core)


def test_a_tuple_that_holds_itself_is_refused() -> None:
    data = msgspec.msgpack.encode([1, "little", [], [["t", [[1]]], ["t", [[0]]]]])
    with pytest.raises(SnapshotError, match=r"holds itself|endian"):
        restore(data)


def test_every_public_method_of_the_core_is_recorded_or_changes_nothing() -> None:
    assert set(public_methods()) == {*event_methods(), *READERS, STEP}


def test_every_struct_of_models_and_settings_is_known() -> None:
    """Also those that no core of these tests has."""
    found: set[type] = set()
    left: list[object] = [type_info(PreparedModel), type_info(EngineConfig)]
    while left:
        one = left.pop()
        if isinstance(one, StructType):
            if one.cls in found:
                continue
            found.add(one.cls)
            left += [field.type for field in one.fields]
        elif isinstance(one, Type):
            left += [getattr(one, name) for name in one.__struct_fields__]
        elif isinstance(one, tuple):
            left += one
    assert {"LayerSpec", "ShortConvSpec", "WeightScheme"} <= {cls.__name__ for cls in found}
    assert [cls for cls in found if known.known_classes().get(known.name_of(cls)) is not cls] == []
