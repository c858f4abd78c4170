"""Results of the ranks that compute a step together."""

from __future__ import annotations

from collections import deque

import msgspec

from penstock.config.settings import ParallelSettings
from penstock.protocol.from_worker import Result
from penstock_engine.request.step_in_flight import UnfitResult


class RankResults:
    """A step is settled when every rank's result for it is there. Each rank's come in order; one
    may be ahead of another by as many steps as are in flight.

    latest: the last step's result, put together.
    """

    def __init__(self, parallel: ParallelSettings) -> None:
        self.latest: Result | None = None
        self._last_stage = parallel.ranks - parallel.tensor_parallel_size
        """First rank of the last stage, which leads the group."""
        self._step = 0
        self._ahead: list[deque[Result]] = [deque() for _ in range(parallel.ranks)]

    def clear(self) -> None:
        """A group begins anew."""
        self._step = 0
        for results in self._ahead:
            results.clear()

    def take(self, rank: int, result: Result, in_flight: int) -> Result | None:
        """The step that this result makes complete; None: others have to come first.

        in_flight: steps that were sent and are not settled.  Raises UnfitResult.
        """
        if len(self._ahead) == 1:
            self.latest = result
            return result
        mine = self._ahead[rank]
        expected = self._step + len(mine) + 1
        if result.step != expected or len(mine) >= in_flight:
            sent = "was to come" if len(mine) < in_flight else "was not expected"
            raise UnfitResult(
                f"rank {rank} returned a result for step {result.step}; {expected} {sent}"
            )
        if result.slots and rank != self._last_stage:
            raise UnfitResult(
                f"rank {rank} returned results for slots; only rank {self._last_stage} may"
            )
        mine.append(result)
        if not all(self._ahead):
            return None
        self._step += 1
        self.latest = self._merged([results.popleft() for results in self._ahead])
        return self.latest

    def _merged(self, results: list[Result]) -> Result:
        """The lead's, and the time of the rank that took longest. By rank."""
        last_stage = results[self._last_stage :]
        if any(result.sampled != last_stage[0].sampled for result in last_stage):
            raise UnfitResult(
                f"ranks disagree on what step {self._step} sampled: "
                f"{[result.sampled for result in last_stage]}"
            )
        slowest = max(result.compute_seconds for result in results)
        return msgspec.structs.replace(last_stage[0], compute_seconds=slowest)
