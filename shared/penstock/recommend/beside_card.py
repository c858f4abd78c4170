"""How long a step takes of a model whose routed experts lie in the host's memory beside a card: its
operations in their order, each on the place that does it.

The order is the worker's (docs/design/two-places.md); what each takes is reckoned from figures of
the card, of the host and of the bus between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import msgspec

from penstock.model.expert_room import (
    COPY_PASSES,
    KV_SHARE,
    STEP_SHARE,
    THREAD_OPERATIONS,
    CardRoom,
    copies_of_experts,
    layers_on_host,
    rows_worth_a_copy,
)
from penstock.recommend.cards import (
    ARITHMETIC_SHARE,
    BANDWIDTH_SHARE,
    GB,
    MEMORY_SHARE,
    Accelerator,
)

Place = Literal["card", "host", "link"]

LINK_SHARE = 0.75
"""What copies through pinned memory reach of a bus's standard."""
HOST_SHARE = 0.8
"""What kernels reach of the rate at which the host's memory is read."""
LAUNCH = 8e-6
"""Seconds of the host for a kernel that is launched by itself: where experts are on the host, steps
have no CUDA graph."""
IN_GRAPH = 1.5e-6
"""Seconds between two kernels of a CUDA graph."""
KERNELS = 14
"""Kernels of a layer up to its router's; its shared experts have SHARED_KERNELS."""
SHARED_KERNELS = 3
HAND_OVER = 25e-6
"""Seconds of each way between card and host beside its bytes: copies, a thread that wakes."""


class ExpertShape(msgspec.Struct, frozen=True):
    """The routed experts of a model. Sizes are in bytes, and as the CPU's kernels hold them."""

    layers: int
    """Layers that have experts."""
    count: int
    """Of a layer."""
    active: int
    """Of a row."""
    nbytes: int
    """Of one expert, on average over the layers."""
    weights: int
    """Of one expert."""
    width: int
    """Numbers of a row that an expert reads."""
    shared: int = 0
    """Bytes of a layer's shared experts."""

    def read(self, rows: int) -> float:
        """Returns how many of a layer's experts some rows have, if routers choose them evenly."""
        return self.count * (1 - (1 - self.active / self.count) ** rows)

    @property
    def size(self) -> int:
        """Bytes of all layers' experts."""
        return self.layers * self.count * self.nbytes


class PlacedModel(msgspec.Struct, frozen=True):
    """A model, as far as these estimates go. Sizes are in bytes."""

    layers: int
    rest: int
    """Of everything but routed experts."""
    read: int
    """Of this, what a step reads: not the embedding."""
    kv_per_token: int
    experts: ExpertShape
    card_share: float = 1.0
    """Bytes of an expert on the card, whose kernels hold other blocks, for one on the host."""


class HostFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """bandwidth: GB/s at which its memory is read.  threads: that compute.  memory: GB for the
    experts."""

    bandwidth: float
    threads: Annotated[int, msgspec.Meta(ge=1)]
    memory: float


@dataclass(frozen=True)
class StepOperation:
    """What a step does in one place. The order of a step's operations is that in which each place
    begins them."""

    name: str
    place: Place
    seconds: float
    after: tuple[int, ...] = ()
    """Operations of the step, by number, that end before this begins."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step."""

    whole: float
    busy: dict[Place, float]
    """For how long each place has something to do."""
    either: float
    """For how long the card or the host has."""


def timed(operations: Sequence[StepOperation]) -> StepTimes:
    """Returns what operations take, each of which begins when its place is free and those before it
    have ended."""
    free: dict[Place, float] = dict.fromkeys(("card", "host", "link"), 0.0)
    busy = dict(free)
    ends: list[float] = []
    spans = []
    for each in operations:
        begin = max(free[each.place], *(ends[number] for number in each.after), 0.0)
        ends.append(begin + each.seconds)
        free[each.place] = ends[-1]
        busy[each.place] += each.seconds
        if each.place != "link":
            spans.append((begin, ends[-1]))
    return StepTimes(max(ends, default=0.0), busy, _union(spans))


def _union(spans: Sequence[tuple[float, float]]) -> float:
    total = end = 0.0
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


@dataclass(frozen=True)
class BesideCard:
    """A model on a card and its host."""

    model: PlacedModel
    card: Accelerator
    host: HostFigures
    on_host: int
    """Layers whose experts are on the host."""

    def step(self, tokens: int, sequences: int, context: int, parts: int = 1) -> StepTimes:
        """Returns what a step takes.

        `tokens`: that it computes. `sequences`, `context`: that it has, and tokens of each whose
        keys and values it reads. `parts`: 2 for two half batches that take turns.
        """
        return timed(list(self.operations(tokens, sequences, context, parts)))

    def operations(
        self, tokens: int, sequences: int, context: int, parts: int = 1
    ) -> Iterator[StepOperation]:
        """Yields what a step does, in order."""
        experts, done = self.model.experts, 0
        last: list[tuple[int, ...]] = [()] * parts
        plain = self.model.layers - experts.layers
        for layer in range(self.model.layers):
            for part in range(parts):
                rows, attention = (
                    tokens / parts,
                    self._attention(tokens / parts, sequences / parts * context),
                )
                if plain <= layer < plain + self.on_host:
                    made, ends = self._of_host(rows, attention, last[part], done)
                else:
                    own = (
                        attention
                        if layer < plain
                        else attention + self._on_card(rows) + self._shared(rows)
                    )
                    made, ends = [StepOperation("layer", "card", own, last[part])], (done,)
                yield from made
                done += len(made)
                last[part] = ends
        ends = tuple(number for each in last for number in each)
        yield StepOperation("rest", "card", self.card.overhead / 1000, ends)

    def _of_host(
        self, rows: float, attention: float, after: tuple[int, ...], first: int
    ) -> tuple[list[StepOperation], tuple[int, ...]]:
        """Returns a layer whose experts are on the host, and the operations that end it. `first`:
        the number of the first one."""
        experts, begun, shared = self.model.experts, (first,), self._shared(rows)
        made = [StepOperation("attention", "card", attention, after)]
        if rows * experts.active / experts.count >= self.threshold:
            copies = experts.read(max(1, round(rows))) * experts.nbytes / self.copy_rate
            # While one buffer is copied, the card computes with the other.
            made.append(StepOperation("copies", "link", copies, begun))
            made.append(StepOperation("experts", "card", self._on_card(rows), begun))
            made.append(StepOperation("shared", "card", shared, begun))
            return made, (first + 1, first + 3)
        way = HAND_OVER + rows * experts.width * 4 / self._link
        made.append(StepOperation("down", "link", way, begun))
        made.append(StepOperation("experts", "host", self._on_host(rows), (first + 1,)))
        made.append(StepOperation("shared", "card", shared, begun))
        made.append(StepOperation("up", "link", way, (first + 2,)))
        return made, (first + 3, first + 4)

    @property
    def threshold(self) -> int:
        """Rows from which on an expert is copied to the card."""
        experts = self.model.experts
        return rows_worth_a_copy(experts.nbytes, experts.weights, self.host.threads, self.copy_rate)

    @property
    def copy_rate(self) -> float:
        """Bytes of experts that come to the card in a second: the host's memory may be slower than
        the bus."""
        return min(self._link, HOST_SHARE * self.host.bandwidth * GB / COPY_PASSES)

    @property
    def _link(self) -> float:
        return LINK_SHARE * self.card.link * GB

    def _card(self, nbytes: float, weights: float, rows: float) -> float:
        """Returns seconds of the card for a product."""
        operations = 2 * weights * rows / (ARITHMETIC_SHARE * self.card.tflops * 1e12)
        return max(nbytes / (BANDWIDTH_SHARE * self.card.bandwidth * GB), operations)

    def _attention(self, rows: float, kv_tokens: float) -> float:
        """Returns seconds of a layer up to its router, with keys and values."""
        model = self.model
        own = (model.read - model.experts.layers * model.experts.shared) / model.layers
        reading = self.seconds_of_kv(kv_tokens) / model.layers
        # A weight of what isn't an expert is reckoned with a byte.
        return max(self._card(own, own, rows) + reading, KERNELS * self._launch)

    def seconds_of_kv(self, tokens: float) -> float:
        """Returns seconds in which the card reads keys and values of so many tokens."""
        return tokens * self.model.kv_per_token / (BANDWIDTH_SHARE * self.card.bandwidth * GB)

    def _shared(self, rows: float) -> float:
        size = self.model.experts.shared
        return max(self._card(size, size, rows), SHARED_KERNELS * self._launch) if size else 0.0

    @property
    def _launch(self) -> float:
        return LAUNCH if self.on_host else IN_GRAPH

    def _on_card(self, rows: float) -> float:
        """Returns seconds of the card for a layer's routed experts."""
        experts = self.model.experts
        nbytes = experts.read(max(1, round(rows))) * experts.nbytes * self.model.card_share
        return self._card(nbytes, experts.active * experts.weights, rows)

    def _on_host(self, rows: float) -> float:
        """Returns seconds of the host for a layer's routed experts."""
        experts = self.model.experts
        reading = (
            experts.read(max(1, round(rows)))
            * experts.nbytes
            / (HOST_SHARE * self.host.bandwidth * GB)
        )
        products = 2 * rows * experts.active * experts.weights
        return max(reading, products / (self.host.threads * THREAD_OPERATIONS))

    def decoded(self, streams: int, context: int) -> float:
        """Returns the tokens per second of so many answers together."""
        return streams / self.step(streams, streams, context).whole

    def prompt(self, tokens: int) -> float:
        """Returns the tokens per second of a prompt that is one step."""
        return tokens / self.step(tokens, 1, tokens // 2).whole


@dataclass(frozen=True)
class ExpertsPlaced:
    """Where a model's experts go, as `--cpu-experts` decides."""

    on_host: int
    """Layers whose experts are on the host."""
    room: CardRoom
    card_missing: int
    """Bytes that the card lacks for all else; 0: that fits."""
    host_missing: int
    """Bytes that the host lacks for experts."""

    @property
    def fits(self) -> bool:
        """Whether it can be served."""
        return not self.card_missing and not self.host_missing


def place_experts(
    model: PlacedModel, card: Accelerator, host: HostFigures, context: int, words: str = "auto"
) -> ExpertsPlaced:
    """Returns where experts go on a card with nothing else on it. `context`: tokens that there is
    room for, at least. `words`: auto, all, or a number of layers."""
    experts, usable = model.experts, int(MEMORY_SHARE * card.memory * GB)
    kv = max(round(KV_SHARE * usable), context * model.kv_per_token)
    room = CardRoom(usable, kv, round(STEP_SHARE * usable), model.rest)
    sizes = [round(experts.count * experts.nbytes * model.card_share)] * experts.layers
    on_host = _on_host(sizes, room, words)
    if on_host:
        copies = copies_of_experts(experts.nbytes, experts.weights, experts.count)
        room = replace(room, copies=copies)
        on_host = _on_host(sizes, room, words)
    on_card = sum(sizes[on_host:])
    taken = room.kv + room.steps + room.rest + room.copies + on_card
    held = on_host * experts.count * experts.nbytes
    return ExpertsPlaced(
        on_host, room, max(0, taken - usable), max(0, held - int(host.memory * GB))
    )


def _on_host(sizes: Sequence[int], room: CardRoom, words: str) -> int:
    if words == "all":
        return len(sizes)
    return layers_on_host(sizes, room.experts) if words == "auto" else min(int(words), len(sizes))
