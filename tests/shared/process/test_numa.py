"""NUMA nodes of made-up machines, and where ranks run on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.settings import (
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    ServeConfig,
    WorkerSettings,
)
from penstock.errors import StartupError
from penstock.prepare import prepare
from penstock.process import numa
from penstock.process.numa import (
    MOST_CPUS,
    NodePlacement,
    describe,
    nodes,
    one_rank_per_node,
    parse_cpulist,
    parse_ranks,
    threads_on,
    usable_nodes,
    written,
)
from penstock.supervisor import numa as supervisor
from penstock.supervisor.numa import nodes_of_engine, with_nodes
from tests.met import met

TWO_SOCKETS = {0: set(range(16)), 1: set(range(16, 32))}
SUB_NUMA = {node: set(range(4 * node, 4 * node + 4)) for node in range(8)}
"""Two sockets with four clusters each."""


def fine(ranks: int) -> None:
    """No model is an obstacle."""


@given(
    st.sets(st.integers(0, 4096), max_size=200) | st.sets(st.integers(0, 20), min_size=5),
    st.randoms(),
)
def test_lists_of_processors_are_read_as_the_kernel_writes_them(
    cpus: set[int], random: object
) -> None:
    parts, left = [], sorted(cpus)
    while left:
        run = next((at for at, cpu in enumerate(left) if cpu != left[0] + at), len(left))
        first, last = left[0], left[run - 1]
        parts.append(f"{first}" if run == 1 else f"{first}-{last}")
        left = left[run:]
    assert parse_cpulist(",".join(parts) + "\n") == cpus
    met("a run of several", any("-" in part for part in parts))


@given(st.text("0123456789-,x +", max_size=12))
def test_other_lists_are_refused(text: str) -> None:
    try:
        cpus = parse_cpulist(text)
    except ValueError:
        return
    mentioned = {int(end) for part in text.split(",") for end in part.split("-") if end.strip()}
    met("a list that is read", mentioned)
    assert mentioned <= cpus
    assert max(cpus, default=0) == max(mentioned, default=0)


@pytest.mark.parametrize("text", ["3-1", "-", "0-", "1,,2", "a", "٣", f"0-{MOST_CPUS}", "1-2-3"])
def test_a_damaged_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cpulist(text)


def sysfs(folder: Path, lists: Mapping[int, str], **files: str) -> Path:
    for node, cpus in lists.items():
        (folder / f"node{node}").mkdir(parents=True)
        (folder / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def test_nodes(tmp_path: Path) -> None:
    root = sysfs(tmp_path, {10: "4-5", 2: "", 0: "0-3", 3: "broken"}, online="0,2-3,10")
    (root / "node4").mkdir()
    assert list(nodes(root).items()) == [(0, {0, 1, 2, 3}), (2, set()), (10, {4, 5})]
    assert nodes(tmp_path / "nothing") == {}
    assert describe(tmp_path / "nothing") == "none shown by this system"


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on processors 0 to 5 and 8, of machines with more."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(6), 8})


@pytest.mark.usefixtures("many")
def test_only_nodes_with_processors_and_memory_for_this_process_are_usable(tmp_path: Path) -> None:
    """Node 2 has only memory, as a CXL device has; 3 has no memory; 4 is outside of the cpuset."""
    lists = {0: "0-3", 1: "4-7", 2: "", 3: "8", 4: "9-12"}
    root = sysfs(tmp_path / "nodes", lists, has_memory="0-2,4")
    status = tmp_path / "status"
    status.write_text("Name:\tx\nMems_allowed:\t1f\nMems_allowed_list:\t0-4\n")
    assert usable_nodes(root, status) == {0: {0, 1, 2, 3}, 1: {4, 5}}
    status.write_text("Mems_allowed_list:\t0,2\n")
    assert usable_nodes(root, status) == {0: {0, 1, 2, 3}}
    # Where nobody says which have memory, all do.
    (root / "has_memory").unlink()
    assert usable_nodes(root, tmp_path / "none") == {0: {0, 1, 2, 3}, 1: {4, 5}, 3: {8}}


def test_ranks_as_a_setting_names_them() -> None:
    assert parse_ranks("0, 1") == ((0,), (1,))
    assert parse_ranks("0+1,2+3") == ((0, 1), (2, 3))
    assert written(parse_ranks("0+1,2")) == "0+1,2"


@given(st.lists(st.lists(st.integers(0, 1023), min_size=1, max_size=9, unique=True), min_size=1))
def test_ranks_are_read_as_they_are_written(ranks: list[list[int]]) -> None:
    assert parse_ranks(written(ranks)) == tuple(map(tuple, ranks))
    met("a rank with several nodes", any(len(rank) > 1 for rank in ranks))


@pytest.mark.parametrize("text", ["", ",", "0,", "0+0", "distribute", "-1", "1024", "0-1", "²"])
def test_words_that_are_no_ranks(text: str) -> None:
    worker = WorkerSettings(numa=text)
    with pytest.raises(StartupError, match="allowed: off, auto, or the nodes of each rank, as 0,1"):
        worker.rank_nodes(1)


def test_a_setting_names_the_nodes_of_the_ranks_that_there_are() -> None:
    assert WorkerSettings(numa="1").rank_nodes(1) == ((1,),)
    assert WorkerSettings(numa_node=3).rank_nodes(2) == ((3,), (3,))
    assert WorkerSettings().rank_nodes(2) == ((), ())
    with pytest.raises(StartupError, match="numa names nodes of 2 ranks, and there are 3"):
        WorkerSettings(numa="0,1").rank_nodes(3)
    with pytest.raises(StartupError, match="numa is 0 and numa_node 1: one of them is enough"):
        WorkerSettings(numa="0", numa_node=1).rank_nodes(1)
    with pytest.raises(StartupError, match="numa is auto, which `penstock serve` turns into nodes"):
        WorkerSettings(numa="auto").rank_nodes(1)


def test_one_rank_for_each_node() -> None:
    assert one_rank_per_node(TWO_SOCKETS, 32, 1, fine) == NodePlacement(((0,), (1,)), 16)
    assert one_rank_per_node({3: {1, 2}}, 2, 1, fine) is None
    assert one_rank_per_node({}, 2, 1, fine) is None


def test_the_control_groups_time_is_shared_out() -> None:
    found = one_rank_per_node(TWO_SOCKETS, 5.5, 1, fine)
    assert found == NodePlacement(((0,), (1,)), 3)


def test_the_highest_number_of_ranks_that_the_model_allows() -> None:
    def three_at_most(ranks: int) -> str | None:
        return f"too small for {ranks}" if ranks > 3 else None

    found = one_rank_per_node(SUB_NUMA, 32, 1, three_at_most)
    assert found == NodePlacement(
        ((0, 1, 2, 3), (4, 5, 6, 7)), 16, "too small for 8; too small for 4"
    )
    whole = one_rank_per_node(TWO_SOCKETS, 32, 1, lambda _: "it has gates")
    assert whole == NodePlacement(((0, 1),), 32, "it has gates")


def test_a_node_with_few_processors_holds_no_equal_part() -> None:
    """Two ranks of 2 threads would be slower than one of 10."""
    uneven = {0: set(range(10)), 1: {10, 11}}
    found = one_rank_per_node(uneven, 12, 1, fine)
    assert found is not None
    assert (found.ranks, found.threads) == (((0, 1),), 12)
    assert "one would have 2 processors and one 10" in found.why
    nearly = one_rank_per_node({0: set(range(10)), 1: set(range(10, 18))}, 18, 1, fine)
    assert nearly == NodePlacement(((0,), (1,)), 8)


def test_ranks_that_were_asked_for_share_the_nodes() -> None:
    def found(asked: int) -> NodePlacement:
        placed = one_rank_per_node(TWO_SOCKETS, 32, asked, lambda _: "not asked")
        assert placed is not None
        return placed

    assert found(2) == NodePlacement(((0,), (1,)), 16)
    assert found(4) == NodePlacement(((0,), (0,), (1,), (1,)), 8)
    three = found(3)
    assert (three.ranks, three.threads) == (((0, 1),) * 3, 10)
    assert three.why == "3 ranks can't have equal parts of 2 nodes"
    placed = one_rank_per_node(SUB_NUMA, 32, 2, fine)
    assert placed == NodePlacement(((0, 1, 2, 3), (4, 5, 6, 7)), 16)


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 9), min_size=1, max_size=8),
    st.floats(0.5, 90),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_whatever_the_machine_no_processor_is_shared_and_all_nodes_have_a_rank(
    sizes: dict[int, int], cores: float, asked: int, most: int
) -> None:
    ends = [sum(list(sizes.values())[:at]) for at in range(len(sizes) + 1)]
    usable = {node: set(range(ends[at], ends[at + 1])) for at, node in enumerate(sizes)}
    found = one_rank_per_node(usable, cores, asked, lambda n: "no" if n > most else None)
    met("nodes of different sizes", len({*sizes.values()}) > 1)
    met("ranks that share a node", found and len({*found.ranks}) < len(found.ranks))
    if found is None:
        assert len(sizes) == 1
        return
    assert {node for rank in found.ranks for node in rank} == set(sizes)
    assert asked == 1 or len(found.ranks) == asked
    assert asked > 1 or len(found.ranks) <= most
    for rank in set(found.ranks):
        room = sum(sizes[node] for node in rank)
        assert found.threads == 1 or found.ranks.count(rank) * found.threads <= room
    assert found.threads == 1 or (found.threads - 1) * len(found.ranks) < cores


def test_threads_of_nodes_that_are_named() -> None:
    assert threads_on(((0,), (1,)), TWO_SOCKETS, 32) == 16
    assert threads_on(((0,), (0,)), TWO_SOCKETS, 32) == 8
    assert threads_on(((7,),), TWO_SOCKETS, 32) == 1  # The worker says that there is none.


def system(numa: str = "auto", *, tensor: int = 1, engines: int = 1, **worker: int) -> ServeConfig:
    engine = EngineConfig(
        worker=WorkerSettings(numa=numa, **worker),
        parallel=ParallelSettings(tensor_parallel_size=tensor),
    )
    return ServeConfig(engine=engine, data_parallel_size=engines)


@pytest.fixture(scope="module")
def folder() -> Path:
    """A prepared model of 9 heads."""
    return prepare(ModelSettings().model)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "usable_nodes", lambda: TWO_SOCKETS)
    monkeypatch.setattr(supervisor, "usable_cores", lambda: 32.0)


def on_cpu() -> bool:
    return False


@pytest.mark.usefixtures("sockets")
def test_auto_makes_ranks_of_a_model_that_can_be_split(folder: Path) -> None:
    found = with_nodes(system(), folder, on_cpu).engine
    assert (found.worker.numa, found.worker.threads) == ("0,1", 16)
    assert found.parallel.tensor_parallel_size == 2
    few = with_nodes(system(threads=3), folder, on_cpu).engine
    assert few.worker.threads == 3


@pytest.mark.usefixtures("sockets")
def test_auto_with_a_pooling_model_takes_memory_from_all_nodes(folder: Path) -> None:
    config = system()
    model = msgspec.structs.replace(config.engine.model, runner="pooling")
    engine = msgspec.structs.replace(config.engine, model=model)
    config = msgspec.structs.replace(config, engine=engine)
    found = with_nodes(config, folder, on_cpu).engine
    assert (found.worker.numa, found.worker.threads) == ("0+1", 32)
    assert found.parallel.tensor_parallel_size == 1


@pytest.mark.usefixtures("sockets")
def test_engine_cores_have_nodes_of_their_own(folder: Path) -> None:
    found = with_nodes(system(engines=2), folder, on_cpu)
    assert (found.engine.worker.numa, found.engine.worker.threads) == ("0,1", 16)
    assert found.engine.parallel.tensor_parallel_size == 1
    own = [nodes_of_engine(found.engine.worker, number, 1).numa for number in range(2)]
    assert own == ["0", "1"]
    assert nodes_of_engine(WorkerSettings(numa_node=1), 1, 1) == WorkerSettings(numa_node=1)


@pytest.mark.usefixtures("sockets")
def test_auto_leaves_gpus_and_clusters_alone(folder: Path) -> None:
    gpus = with_nodes(system(), folder, lambda: True)
    assert gpus.engine == EngineConfig()
    ray = msgspec.structs.replace(system(), executor="ray")
    assert with_nodes(ray, folder, on_cpu).engine == EngineConfig()
    named = msgspec.structs.replace(system("0,1"), executor="ray")
    with pytest.raises(StartupError, match="numa names nodes here, and executor is ray"):
        with_nodes(named, folder, on_cpu)


def test_auto_changes_nothing_on_one_node(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "NODES", sysfs(tmp_path, {0: "0-4095"}))
    assert with_nodes(system(), folder, on_cpu).engine == EngineConfig()
    assert with_nodes(system("off"), folder, on_cpu) == ServeConfig()


@pytest.mark.usefixtures("sockets")
def test_nodes_that_are_named_are_ranks(folder: Path) -> None:
    found = with_nodes(system("1,0"), folder, on_cpu).engine
    assert (found.worker.numa, found.worker.threads) == ("1,0", 16)
    assert found.parallel.tensor_parallel_size == 2
    one = with_nodes(system("1"), folder, on_cpu).engine
    assert (one.worker.threads, one.parallel.tensor_parallel_size) == (16, 1)
    with pytest.raises(StartupError, match="numa names nodes of 2 ranks, and there are 4"):
        with_nodes(system("0,1", tensor=2, engines=2), folder, on_cpu)
