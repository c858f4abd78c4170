"""The machine's NUMA nodes, and which of them each rank of a model gets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NODES = Path("/sys/devices/system/node")
STATUS = Path("/proc/self/status")
OFF, AUTO = "off", "auto"
MOST_CPUS = 1 << 16
"""More than any kernel has: a list that names higher numbers isn't believed."""

RankNodes = tuple[tuple[int, ...], ...]
"""The nodes of each rank, of several its memory in turns."""


def parse_cpulist(text: str) -> set[int]:
    """CPU or node numbers of a list as the kernel writes it: `0-3,8,10-11`; may be empty. Raises
    ValueError for anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdecimal() for end in ends):
            raise ValueError(f"{part!r} is neither a number nor two with a dash between them")
        low, high = map(int, ends)
        if low > high or high >= MOST_CPUS:
            raise ValueError(f"{part!r} isn't ascending, or reaches {MOST_CPUS}")
        cpus |= set(range(low, high + 1))
    return cpus


def nodes(root: Path | None = None) -> dict[int, set[int]]:
    """Each node's online CPUs, ascending by node; of a node that has only memory, none. Empty where
    the system shows no nodes.

    root: the folder of nodes in sysfs; None: NODES.
    """
    found = {}
    for folder in (root or NODES).glob("node[0-9]*"):
        try:
            found[int(folder.name[4:])] = parse_cpulist((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
    return dict(sorted(found.items()))


def usable_nodes(root: Path | None = None, status: Path | None = None) -> dict[int, set[int]]:
    """Nodes that have both processors and memory for this process, each with those processors:
    within its affinity and the cpuset of its control group.

    root: the folder of nodes in sysfs.  status: the process's own file, which says what memory it
    may have.
    """
    root = root or NODES
    allowed, memory = os.sched_getaffinity(0), _nodes_with_memory(root, status or STATUS)
    return {
        node: cpus & allowed
        for node, cpus in nodes(root).items()
        if cpus & allowed and (memory is None or node in memory)
    }


def _nodes_with_memory(root: Path, status: Path) -> set[int] | None:
    """Returns the numbers of NUMA nodes with memory; None: unknown."""
    lists = []
    try:
        lists.append((root / "has_memory").read_text())
    except OSError:
        pass
    try:
        lines = status.read_text().splitlines()
        lists += [line.partition(":")[2] for line in lines if line.startswith("Mems_allowed_list:")]
    except OSError:
        pass
    try:
        found = [parse_cpulist(text) for text in lists]
    except ValueError:
        return None
    return set.intersection(*found) if found else None


def describe(root: Path | None = None) -> str:
    """The nodes, for people, with how many of their CPUs this process may use."""
    allowed = os.sched_getaffinity(0)
    described = [
        f"{node} ({len(cpus & allowed)} of {len(cpus)} CPUs usable)"
        for node, cpus in nodes(root).items()
    ]
    return ", ".join(described) or "none shown by this system"


def parse_ranks(text: str) -> RankNodes:
    """The nodes of each rank, as a setting names them: ranks with commas, several nodes of one with
    `+`. Raises ValueError."""
    ranks = tuple(tuple(map(_node, rank.split("+"))) for rank in text.split(","))
    if any(len(set(rank)) < len(rank) for rank in ranks):
        raise ValueError("a rank has a node twice")
    return ranks


def _node(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and int(text) < 1024):
        raise ValueError(f"{text!r} is no node's number")
    return int(text)


def written(ranks: Iterable[Sequence[int]]) -> str:
    """What `parse_ranks` reads."""
    return ",".join("+".join(map(str, rank)) for rank in ranks)


@dataclass(frozen=True)
class NodePlacement:
    """Where the ranks of a model run."""

    ranks: RankNodes
    threads: int
    """How many each rank has: all have equal parts of the work, so the one with the fewest
    processors says how many."""
    why: str = ""
    """Why it isn't one rank for each node; empty: it is."""


def one_rank_per_node(
    usable: Mapping[int, set[int]],
    cores: float,
    asked: int,
    obstacle: Callable[[int], str | None],
) -> NodePlacement | None:
    """Where ranks run best; None: there is nothing to choose from.

    usable: processors of the nodes (`usable_nodes`).  cores: how many of them all the control group
    gives time for.  asked: ranks that the settings ask for; 1: nothing was said, and there may be
    more.  obstacle: why so many ranks can't compute the model with one rank's bits, or None.

    Numbers of ranks that divide the nodes are tried, the highest first, each rank with neighbouring
    nodes: within a socket, nodes have consecutive numbers.
    """
    count = len(usable)
    if count < 2:
        return None
    whole = (tuple(usable),)
    if asked > 1:
        ranks = _dealt(list(usable), asked)
        if ranks is not None:
            return NodePlacement(ranks, threads_on(ranks, usable, cores))
        ranks = whole * asked
        why = f"{asked} ranks can't have equal parts of {count} nodes"
        return NodePlacement(ranks, threads_on(ranks, usable, cores), why)
    reasons: list[str] = []
    for number in range(count, 1, -1):
        ranks = _dealt(list(usable), number) if count % number == 0 else None
        if ranks is None:
            continue
        reason = obstacle(number) or _waste(ranks, usable)
        if reason is None:
            why = "; ".join(dict.fromkeys(reasons))
            return NodePlacement(ranks, threads_on(ranks, usable, cores), why)
        reasons.append(reason)
    return NodePlacement(whole, threads_on(whole, usable, cores), "; ".join(dict.fromkeys(reasons)))


def _dealt(numbers: list[int], ranks: int) -> RankNodes | None:
    """Equal parts of the nodes for ranks, or of ranks for the nodes; None: there are none."""
    count = len(numbers)
    if count % ranks == 0:
        each = count // ranks
        return tuple(tuple(numbers[rank * each : (rank + 1) * each]) for rank in range(ranks))
    if ranks % count == 0:
        return tuple((numbers[rank * count // ranks],) for rank in range(ranks))
    return None


def _processors(rank: Sequence[int], usable: Mapping[int, set[int]]) -> int:
    return sum(len(usable.get(node, ())) for node in rank)


def _waste(ranks: RankNodes, usable: Mapping[int, set[int]]) -> str | None:
    """Why equal parts leave too many processors idle, or None."""
    sizes = [_processors(rank, usable) for rank in ranks]
    if min(sizes) * len(sizes) > max(sizes):
        return None
    return (
        f"of {len(sizes)} ranks, one would have {min(sizes)} processors and one {max(sizes)}, and"
        " all have equal parts of the work"
    )


def threads_on(ranks: RankNodes, usable: Mapping[int, set[int]], cores: float) -> int:
    """Threads of each rank, at least one: as many as processors of its nodes that other ranks don't
    take. usable, cores: as `one_rank_per_node` takes them."""
    sharers = {rank: ranks.count(rank) for rank in ranks}
    least = min(_processors(rank, usable) // sharers[rank] for rank in ranks)
    return max(1, min(least, -int(-cores // len(ranks))))
