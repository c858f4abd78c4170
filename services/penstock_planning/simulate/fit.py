"""A step's cost from a recording: the median over its steps, no array library needed.

What is minimised is the sum of absolute errors (least squares, of which each pass weighs an error
by one over what it was in the pass before), each relative to what the pass before predicted, so
that the many short steps count as much as the few long ones; relative to what was measured would
favour the steps that happened to be quick.  No step may cost less than a smaller one.  So steps
that were held up by something else change little, if fewer than half of them were; how much longer
than the median steps take, the spread says, which is another one for short steps than for long.
Stretches in which the machine was busy with something else are left out: sizes that happened to be
measured in one of them would be too dear, and the spread would be that of another machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.errors import InvalidRequest
from penstock.protocol.from_worker import Result
from penstock_engine.record.decisions import work_of
from penstock_engine.record.framing import Torn
from penstock_engine.record.replay import RecordedEvent, RecordingFile
from penstock_planning.simulate.cost import FittedCost, SizeSpread, StepCost, extent

MAX_STEPS = 500_000
FEWEST_STEPS = 20
KEPT = 0.99
"""Share of the steps that errors are reported for: those that fit best."""

PASSES = 10
LEAST_ERROR = 0.02
"""An error that is smaller, as a share, weighs no more than this one."""

KNEES = (math.inf, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
WORTH = 0.95
"""How much of the errors may be left for another knee to be better."""
MOST_TRIED = 5_000
"""Steps by which the knee is chosen."""

SPREAD = tuple((at + 0.5) / 25 for at in range(25))
"""Quantiles of how far steps are from what is predicted."""
SIZES, OF_A_SIZE = 8, 2 * len(SPREAD)
"""Sizes of steps that have quantiles of their own, if all had as many steps, or all took as long;
and how many steps make one at least."""

STRETCH = 20
"""Steps in a row whose median says whether the machine was busy with something else."""
HELD_UP = 1.4
"""How many times as long as the quick quarter of their kind such steps take then. The median of
undisturbed ones takes some 1.05 times as long."""

SHORTEST = 1e-6
"""Milliseconds that a step is taken for at least, where an error is relative to it."""

Row = tuple[float, float, float, float]
"""A measured row, as a cost multiplies it: 1, tokens, sequences, pairs. What is fitted is the
cost of a token that is not its sequence's first in the step, and of one that is: a prompt's tokens
may cost more than decodes."""


class Measured:
    """One step. compute: milliseconds by the worker's own clock.  rest: milliseconds of the
    worker's time by the engine's clock that were not compute."""

    __slots__ = ("compute", "rest", "row")

    def __init__(self, row: Row, compute: float, rest: float) -> None:
        self.row = row
        self.compute = compute
        self.rest = rest


def measured_steps(paths: Iterable[Path]) -> list[Measured]:
    """The steps of all recordings. Raises Damaged, OSError."""
    found: list[Measured] = []
    for path in paths:
        with open(path, "rb") as file:
            for one in _steps(RecordingFile(path, file)):
                found.append(one)
                if len(found) >= MAX_STEPS:
                    return found
    return found


def fit_cost(steps: list[Measured]) -> FittedCost:
    """Raises InvalidRequest where there are too few steps."""
    if len(steps) < FEWEST_STEPS:
        raise InvalidRequest(
            f"the recording holds {len(steps)} measured steps; at least {FEWEST_STEPS} are needed"
        )
    found = len(steps)
    steps, knee, values = _by_stretches(steps)
    best = sorted(steps, key=lambda step: abs(_error(values, step)))
    kept = best[: max(FEWEST_STEPS, int(KEPT * len(best)))]
    errors = [abs(_error(values, step)) for step in kept]
    total = sum(step.compute for step in kept)
    predicted = sum(_predict(values, step) for step in kept)
    overhead = max(0.0, statistics.median(step.rest for step in steps))
    base, token, first, pair = values
    times = _times(values, steps, overhead)
    cost = StepCost(
        base_ms=base,
        hidden_ms=base / knee,
        token_ms=token,
        sequence_ms=first - token,
        context_ms=pair,
        overhead_ms=overhead,
        spread=_spread([ratio for _, ratio in times]),
        by_size=_by_size(times),
    )
    return FittedCost(
        cost=cost,
        steps=len(steps),
        error_percent=100 * statistics.median(errors),
        error_p95_percent=100 * errors[int(0.95 * (len(errors) - 1))],
        total_error_percent=100 * (predicted / total - 1),
        left_out_percent=100 * (1 - len(steps) / found),
    )


def _by_stretches(steps: list[Measured]) -> tuple[list[Measured], float, list[float]]:
    """Returns the steps that count, in the order in which they were computed as those given are;
    the knee; and coefficients."""
    knee = _knee(steps)
    apart = _apart(steps, knee)
    values = _fitted(apart)
    undisturbed = _undisturbed(values, apart)
    if len(undisturbed) == len(steps) or len(undisturbed) < FEWEST_STEPS:
        return apart, knee, values
    steps = [steps[at] for at in undisturbed]
    knee = _knee(steps)
    apart = _apart(steps, knee)
    return apart, knee, _fitted(apart)


def _undisturbed(values: list[float], steps: list[Measured]) -> list[int]:
    """Returns the places of all steps but those in stretches that were held up. A kind of steps
    that was only seen in such a stretch is its own measure, and isn't left out for being slow."""
    kinds: dict[tuple[int, int], list[float]] = {}
    ratios: list[tuple[tuple[int, int], float]] = []
    for step in steps:
        predicted = max(_predict(values, step), SHORTEST)
        kind = round(math.log2(predicted)), round(math.log2(step.row[2]))
        ratios.append((kind, step.compute / predicted))
        kinds.setdefault(kind, []).append(step.compute / predicted)
    quick = {kind: sorted(found)[len(found) // 4] for kind, found in kinds.items()}
    kept: list[int] = []
    for begin in range(0, len(steps), STRETCH):
        stretch = ratios[begin : begin + STRETCH]
        if statistics.median(ratio / quick[kind] for kind, ratio in stretch) <= HELD_UP:
            kept += range(begin, begin + len(stretch))
    return kept


def _knee(steps: list[Measured]) -> float:
    """Tokens whose arithmetic takes as long as reading the weights; infinite where the steps don't
    show that fewer of them cost nothing."""
    sample = steps[:: 1 + len(steps) // MOST_TRIED]
    best, least = math.inf, math.inf
    for knee in KNEES:
        apart = _apart(sample, knee)
        values = _fitted(apart)
        loss = sum(abs(_error(values, step)) for step in apart)
        if loss < least * (1.0 if math.isinf(least) else WORTH):
            best, least = knee, loss
    return best


def _fitted(steps: list[Measured]) -> list[float]:
    """Coefficients."""
    values = _least_squares(steps, [step.compute for step in steps])
    for _ in range(PASSES):
        sizes = []
        for step in steps:
            predicted = max(_predict(values, step), SHORTEST)
            error = max(abs(step.compute / predicted - 1), LEAST_ERROR)
            sizes.append(predicted * math.sqrt(error))
        values = _least_squares(steps, sizes)
    return values


def _apart(steps: list[Measured], knee: float) -> list[Measured]:
    """The steps with rows that coefficients of what is fitted are multiplied by."""
    found = []
    for step in steps:
        one, tokens, sequences, pairs = step.row
        row = (max(one, tokens / knee), tokens - sequences, sequences, pairs)
        found.append(Measured(row, step.compute, step.rest))
    return found


def _times(
    values: list[float], steps: list[Measured], overhead: float
) -> list[tuple[float, float]]:
    """Returns how long each step is predicted to take, in milliseconds, and how many times as long
    it took, with what lay outside the computation; steps held up by something else are included."""
    found = []
    for step in steps:
        predicted = max(_predict(values, step) + overhead, SHORTEST)
        found.append((predicted, (step.compute + max(step.rest, 0.0)) / predicted))
    return found


def _spread(ratios: list[float]) -> tuple[float, ...]:
    ordered = sorted(ratios)
    return tuple(round(ordered[int(share * len(ordered))], 4) for share in SPREAD)


def _by_size(times: list[tuple[float, float]]) -> tuple[SizeSpread, ...]:
    """A size ends where it has its part of all steps, or of all time: the longest steps are few,
    and what holds a step up for a moment is less of them than of others. Those that are predicted
    to take equally long are of one size."""
    ordered = sorted(times)
    whole = sum(predicted for predicted, _ in ordered)
    found: list[SizeSpread] = []
    begin, part = 0, 0.0
    for end, (predicted, _) in enumerate(ordered, start=1):
        part += predicted / whole + 1 / len(ordered)
        left = len(ordered) - end
        if left and (
            part < 1 / SIZES or min(left, end - begin) < OF_A_SIZE or ordered[end][0] == predicted
        ):
            continue
        most = (predicted + ordered[end][0]) / 2 if left else predicted
        found.append(SizeSpread(most, _spread([ratio for _, ratio in ordered[begin:end]])))
        begin, part = end, 0.0
    return tuple(found)


def _steps(recording: RecordingFile) -> Iterator[Measured]:
    """Pairs plans with results, by the step's number in the workers' sessions. Of a step's ranks
    the slowest counts."""
    plans: dict[int, tuple[Row, float]] = {}
    answers: dict[int, list[float]] = {}
    ranks = recording.core.state.facts.config.parallel.ranks
    finished = 0.0
    try:
        for record in recording.records():
            if record.name == "worker_opened":
                plans.clear()
                answers.clear()
            elif record.name == "step" and record.decision is not None:
                for plan in record.decision.plans:
                    # Of several passes, and with drafts or after them, the rows aren't known.
                    if not plan.get("extra_steps") and not _drafts(plan):
                        plans[plan["step"]] = (_row(plan), record.arguments[-1])
            else:
                result = _result(record)
                if result is None:
                    continue
                times = answers.setdefault(result.step, [])
                times.append(result.compute_seconds)
                if len(times) < ranks:
                    continue
                seconds = max(answers.pop(result.step))
                now = record.arguments[-1]
                sent = plans.pop(result.step, None)
                if sent is not None and seconds > 0:
                    compute = 1000 * seconds
                    taken = 1000 * (now - max(finished, sent[1]))
                    yield Measured(sent[0], compute, taken - compute)
                finished = now
    except Torn:
        pass


def _result(record: RecordedEvent) -> Result | None:
    if record.name != "worker_received":
        return None
    message = record.arguments[1]
    return message if isinstance(message, Result) else None


def _drafts(plan: dict[str, object]) -> bool:
    return any(work.draft or work.after_drafts for work in work_of(plan))


def _row(plan: dict[str, object]) -> Row:
    work = work_of(plan)
    tokens, pairs = extent(work)
    return 1.0, float(tokens), float(len(work)), float(pairs)


def _predict(values: list[float], step: Measured) -> float:
    return sum(value * term for value, term in zip(values, step.row, strict=True))


def _error(values: list[float], step: Measured) -> float:
    return _predict(values, step) / step.compute - 1


def _least_squares(steps: list[Measured], sizes: list[float]) -> list[float]:
    """Non-negative: of every choice of terms, solved exactly, the best whose terms are positive.

    There are four terms, so all choices are looked at.  sizes: what each error is relative to.
    """
    size = len(steps[0].row)
    scale = [max(step.row[at] for step in steps) or 1.0 for at in range(size)]
    gram = [[0.0] * size for _ in range(size)]
    moment = [0.0] * size
    for step, size_of in zip(steps, sizes, strict=True):
        wanted = step.compute / size_of
        row = [term / factor / size_of for term, factor in zip(step.row, scale, strict=True)]
        for at, one in enumerate(row):
            moment[at] += one * wanted
            for other in range(at, size):
                gram[at][other] += one * row[other]
    for at in range(size):
        for other in range(at):
            gram[at][other] = gram[other][at]
    best, least = [0.0] * size, 0.0
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            found = _solve(
                [[gram[i][j] for j in chosen] for i in chosen], [moment[i] for i in chosen]
            )
            if found is None or min(found) < 0:
                continue
            # |y - Xv|² less the constant: -2 v·m + v·G v, which is -v·m at the minimum.
            loss = -sum(value * moment[at] for value, at in zip(found, chosen, strict=True))
            if loss < least:
                least, best = loss, [0.0] * size
                for value, at in zip(found, chosen, strict=True):
                    best[at] = value / scale[at]
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivoting; None where the matrix is singular."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        if abs(rows[pivot][at]) < 1e-12 * max(abs(matrix[at][at]), 1e-300):
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for row in range(size):
            if row != at:
                factor = rows[row][at] / rows[at][at]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[at], strict=True)]
    return [rows[at][size] / rows[at][at] for at in range(size)]
