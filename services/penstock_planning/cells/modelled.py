"""An engine core as a model: what the production one decides, with many steps in one event."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from penstock_planning.cells.asks import Ask
from penstock_planning.cells.order import make_order
from penstock_planning.cells.prefixes import HeldPrefixes
from penstock_planning.cells.stretch import Stretch, StretchPace


class ModelledRequest:
    """A request in an engine core.  todo: prompt tokens to compute.  end_step: number of the step
    after which it has all of its answer.  blocks: pinned for it."""

    __slots__ = ("ask", "blocks", "end_step", "number", "tenant", "todo")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.todo = self.blocks = self.end_step = 0
        self.number = ask.number
        self.tenant = ask.request.tenant


class ModelledEngine:
    """Continuous batching with chunked prompts, a prefix cache and the policies' order of prompts.

    Between two events nothing changes but counters: no request comes, none ends, no prompt is done.
    All steps until then are one event; a request that comes ends them after the steps that were
    sent already, as it would in the production core.  Not modelled: preemption (a request begins
    when there is room for all of it), and prompts that share a step, but for the last of a prompt.

    due: when the next event is; infinite: there is none.
    """

    __slots__ = (
        "_began",
        "_context",
        "_decoding",
        "_in_flight",
        "_max_seqs",
        "_order",
        "_pace",
        "_prompts",
        "_step",
        "_stretch",
        "_waiting",
        "block_size",
        "due",
        "endpoint",
        "held",
        "open",
        "steps",
    )

    def __init__(
        self,
        endpoint: str,
        pace: StretchPace,
        held: HeldPrefixes,
        policy: str,
        max_seqs: int,
        in_flight: int,
    ) -> None:
        self.endpoint = endpoint
        self.block_size = held.size
        self.held = held
        self.due = math.inf
        self.open: dict[int, Ask] = {}
        self.steps = 0
        self._pace, self._max_seqs, self._in_flight = pace, max_seqs, in_flight
        self._order = make_order(policy)
        self._waiting: list[ModelledRequest] = []
        self._prompts: list[ModelledRequest] = []
        self._decoding: list[
            tuple[int, int, ModelledRequest]
        ] = []  # by the step after which each ends
        self._context = 0  # tokens whose KV a step of decodes reads
        self._step = 0  # steps so far
        self._stretch: Stretch | None = None
        self._began = 0.0

    @property
    def load(self) -> int:
        """Requests that are open here."""
        return len(self.open)

    def submit(self, ask: Ask, now: float) -> None:
        """A request comes, or goes on here."""
        self._order.comes(ask.request.tenant, {each.request.tenant for each in self.open.values()})
        self.open[ask.number] = ask
        comes, prompts, stretch = ModelledRequest(ask), self._prompts, self._stretch
        self._waiting.append(comes)
        if stretch is None:
            self._plan(now)
        elif len(prompts) + len(self._decoding) < self._max_seqs:
            place = self._order.place
            if not prompts or place(comes) < place(prompts[0]):
                self._cut(stretch, now)

    def advance(self, now: float) -> list[Ask]:
        """What is due has happened. Returns the requests that have ended."""
        ended = list(self._settle(now))
        self._plan(now)
        return ended

    def lose(self, now: float) -> list[Ask]:
        """It is gone, and its KV. Returns what was open, with what each client has by now."""
        stretch = self._stretch
        done = self._step + (stretch.whole_steps(now - self._began) if stretch is not None else 0)
        for _, _, running in self._decoding:
            ask = running.ask
            ask.emitted = max(ask.emitted, ask.request.output_tokens - (running.end_step - done))
        self.due, self._stretch = math.inf, None
        left, self.open = list(self.open.values()), {}
        return left

    def _cut(self, stretch: Stretch, now: float) -> None:
        """Ends the steps that are under way early: those that were sent come before."""
        sent = stretch.whole_steps(now - self._began) + self._in_flight
        if sent < stretch.steps:
            self._stretch = Stretch(sent, stretch.first, stretch.growth, stretch.chunk)
            self.due = self._began + stretch.seconds(sent)

    def _settle(self, now: float) -> Iterator[Ask]:
        """Applies the steps that are over."""
        stretch = self._stretch
        if stretch is None:
            return
        self._step += stretch.steps
        self.steps += stretch.steps
        self._context += len(self._decoding) * stretch.steps
        computed = stretch.chunk * stretch.steps
        while self._decoding and self._decoding[0][0] <= self._step:
            _, _, running = heapq.heappop(self._decoding)
            self._context -= running.ask.request.num_prompt + running.ask.request.output_tokens
            yield self._end(running, now)
        while self._prompts and computed:
            running = self._prompts[0]
            some = min(computed, running.todo)
            computed -= some
            running.todo -= some
            self._order.charge(running.tenant, some, 0)
            if running.todo:
                self._keep(running, running.ask.length - running.todo)
                break
            self._prompts.pop(0)
            if (ended := self._first_token(running, now)) is not None:
                yield ended

    def _first_token(self, running: ModelledRequest, now: float) -> Ask | None:
        """A prompt is there, and the next token of its answer with it. Returns it if it was the
        last one."""
        ask = running.ask
        if not ask.emitted:
            ask.first = now
        self._keep(running, ask.length)
        running.end_step = self._step + ask.left - 1
        if ask.left == 1:
            return self._end(running, now)
        self._context += ask.length + 1
        heapq.heappush(self._decoding, (running.end_step, running.number, running))
        return None

    def _keep(self, running: ModelledRequest, tokens: int) -> None:
        """So many tokens of it can be found by others."""
        moved = min(running.blocks, self.held.keep(running.ask, tokens))
        self.held.unpin(moved)
        running.blocks -= moved

    def _end(self, running: ModelledRequest, now: float) -> Ask:
        ask = running.ask
        self._order.charge(running.tenant, 0, ask.left)
        ask.emitted, ask.last = ask.request.output_tokens, now
        self.held.keep(ask, ask.length - 1)
        self.held.unpin(running.blocks)
        del self.open[ask.number]
        return ask

    def _admit(self) -> None:
        """Has waiting requests begin, while there are slots and room."""
        waiting, place, size = self._waiting, self._order.place, self.block_size
        while waiting and len(self._prompts) + len(self._decoding) < self._max_seqs:
            running = min(waiting, key=place)
            ask = running.ask
            found = self.held.found(ask)
            blocks = -(-(ask.request.num_prompt + ask.request.output_tokens) // size)
            blocks -= found // size
            busy = self._prompts or self._decoding
            if busy and not self.held.room_for(blocks):
                return
            waiting.remove(running)
            if not ask.moves:
                ask.cached = found
            self.held.pin(blocks)
            running.todo, running.blocks = ask.length - found, blocks
            self._prompts.append(running)

    def _plan(self, now: float) -> None:
        """The steps until something changes."""
        self._admit()
        prompts, decodes = self._prompts, len(self._decoding)
        self._began = now
        if not (prompts or decodes):
            self._stretch, self.due = None, math.inf
            return
        last = self._decoding[0][0] - self._step if decodes else 1 << 40
        chunk, steps, start = 0, last, 0
        if prompts:
            prompts.sort(key=self._order.place)
            todo = prompts[0].todo
            start = prompts[0].ask.length - todo
            most = self._pace.chunk(decodes, self._context, start)
            if todo >= most:
                turn = self._order.turn(prompts)
                chunk, steps = most, min(last, todo // most, max(1, turn // most))
            else:
                chunk, steps = min(most, sum(each.todo for each in prompts)), 1
        stretch = self._pace.stretch(decodes, self._context, start, chunk, steps)
        self._stretch, self.due = stretch, now + stretch.seconds(stretch.steps)
