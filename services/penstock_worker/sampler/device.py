"""Samples by the CUDA kernels, without waiting for them.

Nothing here reads from the device before `DeviceSamples.sampled`. A step is launched with what the
host knows by then; tokens that it doesn't know yet are counted on the device, for penalties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.common import LogitsAdjustments, TokenLogprobs, TokenSampling
from penstock_kernels.triton.sampling.adjustments import adjust_rows
from penstock_kernels.triton.sampling.argmax import argmax
from penstock_kernels.triton.sampling.log_probs import MOST, TopLogProbs, log_probs
from penstock_kernels.triton.sampling.rows import SamplingRows
from penstock_kernels.triton.sampling.sample import sample_rows
from penstock_worker.sampler.adjustments import adjustments_of
from penstock_worker.sampler.device_adjustments import SlotCounts, StepAdjustments, adjusted
from penstock_worker.sampler.interface import IMPOSSIBLE, NOT_FINITE, SampledToken, SampleRequest
from penstock_worker.sampler.listed import listed_logprobs, listed_places
from penstock_worker.sampler.transfers import Fetched, transfers

_FAILED = SampledToken(error=NOT_FINITE)


class DeviceSamples:
    """The tokens of a step, which the device may still be sampling."""

    def __init__(
        self,
        requests: list[SampleRequest],
        tokens: Tensor,
        fetched: Fetched,
        reported: dict[int, int],
        listed: dict[int, int] | None = None,
    ) -> None:
        """`tokens` is [rows] int64 on the device, where -1 means that the row has a logit that is
        not finite. `reported` maps rows whose log-probabilities are fetched to their place among
        these. `listed` maps rows with listed ids to the place of the first among those of all."""
        self.tokens = tokens
        self._requests = requests
        self._fetched = fetched
        self._logprob_places = reported
        self._listed_places = listed or {}

    def done(self) -> bool:
        """Returns whether `sampled` would return without waiting."""
        return self._fetched.done()

    def sampled(self) -> list[SampledToken]:
        """Waits for this step's tokens, but for nothing that was queued after them.

        Must be called before the requests' adjustments are advanced by any later token.
        """
        tokens, *arrays = self._fetched.arrays()
        choices = [SampledToken(token) if token >= 0 else _FAILED for token in tokens.tolist()]
        if arrays:
            own, ids, top, *listed = arrays
            tops = _HostTopLogProbs(own, ids, top)
            for row, place in self._logprob_places.items():
                token, sampling = choices[row].token, self._requests[row].sampling
                if token is None or sampling.logprobs is None:
                    continue
                if row in self._listed_places:
                    values = listed[0][self._listed_places[row] :]
                    logprobs = listed_logprobs(
                        token, tops.of(place, 0), sampling.logprob_ids, values
                    )
                else:
                    logprobs = tops.of(place, sampling.logprobs)
                choices[row] = SampledToken(token, logprobs)
        return [
            choice if request.adjustments is None else request.judge(choice)
            for request, choice in zip(self._requests, choices, strict=True)
        ]


class _HostTopLogProbs:
    """TopLogProbs, copied to the host."""

    def __init__(self, own: np.ndarray, ids: np.ndarray, top: np.ndarray) -> None:
        self._own: list[float] = np.maximum(own, np.float32(IMPOSSIBLE)).tolist()
        self._ids: list[list[int]] = ids.tolist()
        self._top: list[list[float]] = np.maximum(top, np.float32(IMPOSSIBLE)).tolist()

    def of(self, place: int, count: int) -> TokenLogprobs:
        ids, top = self._ids[place][:count], self._top[place][:count]
        return TokenLogprobs(self._own[place], tuple(ids), tuple(top))


class DeviceSampler:
    """Samples for slots 0 to max_slots - 1, on torch's current stream. Must be used by one thread.

    It samples the same tokens as the reference, as far as the device's exp equals the host's. It
    keeps 4 * max_slots * vocab bytes on the device, for the counts of penalties.
    """

    fingerprint = "triton"
    in_order = True

    def __init__(
        self, device: torch.device, vocab: int, max_slots: int, *, batch_invariant: bool = False
    ) -> None:
        """With `batch_invariant`, each row is sampled by the same compiled code whatever the other
        rows request. Otherwise a step without any top_k, top_p or min_p takes a shorter path
        through the same sums."""
        self._vocab = vocab
        self._batch_invariant = batch_invariant
        self._transfers = transfers(device)
        self._table = SlotTable(max_slots, vocab)
        self._counts = SlotCounts(device, vocab, max_slots)

    def forget(self, slot: int) -> None:
        """Forgets what is kept of a slot, because its sequence is gone, or because what was
        launched for it has failed."""
        self._table.forget(slot)
        self._counts.forget(slot)

    def needs_host(self, request: SampleRequest) -> bool:
        """Returns whether the request can be made only when the host knows the slot's newest
        token."""
        if request.allowed is not None:
            return True
        return request.adjustments is not None and request.adjustments.ban_follows_output

    def launch(
        self, logits: Tensor, requests: list[SampleRequest], slots: list[int]
    ) -> DeviceSamples:
        """Queues the sampling of one token for each row.

        `logits`: [rows, vocab] float32 on the device, contiguous. They are not modified, and must
        not be until the queue has passed this call.
        `requests`: `emitted` includes tokens that are still being sampled; the counts in
        `adjustments` may lack these.
        `slots`: those of the rows, distinct.

        Raises ValueError for a slot with penalties whose counts neither the host nor the device
        has.
        """
        self._table.learn(requests, slots)
        places = np.array(slots, dtype=np.int64)
        which = adjusted(requests)
        greedy = self._table.greedy(places)
        wanted = self._table.logprobs(places)
        reported = np.flatnonzero(wanted >= 0)
        arrays: dict[str, np.ndarray] = {}
        if not greedy:
            arrays["wide"] = self._table.wide(places, [request.emitted for request in requests])
            arrays["top_k"] = self._table.top_k(places)
        step = StepAdjustments(requests, slots, which, self._counts, self._vocab) if which else None
        if step is not None:
            arrays |= step.arrays()
        if 0 < len(reported) < len(requests):
            arrays["told"] = reported
        listed = listed_places(requests, arrays)
        sent = self._send(arrays)
        draws = None if greedy else _sampling_rows(sent)
        cuts = not greedy and (self._batch_invariant or self._table.cuts(places))
        if step is None:
            tokens = _sampled_tokens(logits, draws, holes=False, cuts=cuts)
        else:
            raw = argmax(logits)
            adjusted_logits = prefer_timestamps(adjust_rows(logits, step.rows(sent)), requests)
            tokens = _sampled_tokens(adjusted_logits, draws, holes=True, cuts=cuts)
            tokens = torch.where(raw < 0, raw, tokens)
            step.count(sent, tokens)
        if not len(reported):
            return DeviceSamples(requests, tokens, self._transfers.fetch([tokens]), {})
        tops = _top_log_probs(logits, tokens, int(wanted.max()), sent.get("told"))
        shown = [tokens, tops.own, tops.ids, tops.top]
        if listed:
            shown.append(log_probs(logits[sent["listed rows"]], sent["listed ids"], 0).own)
        places_of = {row: place for place, row in enumerate(reported.tolist())}
        return DeviceSamples(requests, tokens, self._transfers.fetch(shown), places_of, listed)

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        """Queues Sampler.score for logits on the device. Calling the result waits for the scores,
        but for nothing that was queued after them."""
        (given,) = self._transfers.send([np.array(tokens, dtype=np.int64)])
        tops = top_log_probs(logits, given, min(count, self._vocab))
        fetched = self._transfers.fetch([argmax(logits), tops.own, tops.ids, tops.top])

        def scores() -> list[TokenLogprobs] | None:
            best, *arrays = fetched.arrays()
            if (best < 0).any():
                return None
            found = _HostTopLogProbs(*arrays)
            return [found.of(row, count) for row in range(len(tokens))]

        return scores

    def warm_up(self, logits: Tensor) -> None:
        """Launches all kernels, so that they are compiled, and allocates the most memory that a
        step of so many rows can need (except for more log-probabilities than the kernel supports).
        Waits for the device.

        Forgets all slots. `logits` is as for `launch`.
        """
        slots = list(range(len(logits)))
        greedy, drawn = TokenSampling(0, temperature=0.0), TokenSampling(0, top_k=5, top_p=0.5)
        counted = LogitsAdjustments(presence=1.0)
        changed = TokenSampling(0, top_p=0.5, logprobs=0, adjustments=counted)
        whole = [TokenSampling(0), TokenSampling(0, adjustments=counted)]
        held = TokenSampling(0, temperature=0.0, min_tokens=1, held_back=(0,))
        some = [TokenSampling(0, temperature=0.0, logprobs=count) for count in (1, 20, 64)]
        for sampling in (greedy, drawn, changed, held, *whole, *some):
            adjustments = adjustments_of(sampling, [0], 1, self._vocab)
            requests = [SampleRequest(sampling, 0, 0, adjustments=adjustments) for _ in slots]
            self.launch(logits, requests, slots).sampled()
        for slot in slots:
            self.forget(slot)

    def _send(self, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
        if not arrays:
            return {}
        return dict(zip(arrays, self._transfers.send(list(arrays.values())), strict=True))


def _sampled_tokens(
    logits: Tensor, draws: SamplingRows | None, *, holes: bool, cuts: bool
) -> Tensor:
    """Returns the sampled tokens, or the argmax if `draws` is None. For `holes` and `cuts` see
    sample_rows."""
    if draws is None:
        return argmax(logits, holes=holes)
    return sample_rows(logits, draws, holes=holes, cuts=cuts)


def _sampling_rows(sent: dict[str, Tensor]) -> SamplingRows:
    temperature, top_p, min_p = sent["wide"][:3].view(torch.float64).unbind()
    seed, sequence, token = sent["wide"][3:].unbind()
    return SamplingRows(temperature, sent["top_k"], top_p, min_p, seed, sequence, token)


def _top_log_probs(logits: Tensor, tokens: Tensor, count: int, rows: Tensor | None) -> TopLogProbs:
    """Returns the log-probabilities of the given rows, or of all rows if `rows` is None."""
    if rows is None:
        return top_log_probs(logits, tokens, count)
    return top_log_probs(logits[rows], tokens[rows], count)


_SIZES = (0, 8, 32, MOST)
"""Numbers of top tokens that the kernel is called with. It is compiled for each of them."""

_SORTED_ROWS = 16
"""Rows that are sorted at a time, if more top tokens are requested than the kernel supports."""


def top_log_probs(logits: Tensor, tokens: Tensor, count: int) -> TopLogProbs:
    """Returns the log-probabilities of each row's token and of its `count` most likely ones. There
    may be more of these than asked for, which doesn't change the first.

    `logits` is [rows, vocab] float32, contiguous. `tokens` is [rows] int64, where -1 means none.
    """
    vocab = logits.shape[1]
    if count <= MOST:
        size = next(size for size in _SIZES if size >= count)
        return log_probs(logits, tokens, min(size, vocab))
    own = log_probs(logits, tokens, 0).own
    parts = [_sorted(rows, count) for rows in logits.split(_SORTED_ROWS)]
    return TopLogProbs(own, *(torch.cat(each) for each in zip(*parts, strict=True)))


def _sorted(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns (ids, log-probabilities) of the most likely tokens; of equal ones, the lower id comes
    first."""
    shifted = logits - logits.amax(-1, keepdim=True)
    total = torch.exp(shifted).sum(-1, keepdim=True, dtype=torch.float64)
    ids = torch.sort(shifted, dim=-1, descending=True, stable=True).indices[:, :count]
    return ids, shifted.gather(1, ids) - torch.log(total).float()


def prefer_timestamps(logits: Tensor, requests: list[SampleRequest]) -> Tensor:
    """Bans all but the timestamps in rows where these are more probable together than any other
    token. Queued; the host doesn't wait.

    logits: [rows, vocab] float32, adjusted, -inf where banned; changed in place.  Each row is
    summed by itself, so that others don't change its bits.
    """
    for row, request in enumerate(requests):
        speech = None if request.adjustments is None else request.adjustments.speech
        rules = None if speech is None else speech.timestamps
        if rules is None:
            continue
        left = logits[row].double()
        together = torch.logsumexp(left[rules.first :], 0)
        prevails = together > left[: rules.first].max()
        text = logits[row, : rules.first]
        text.masked_fill_(prevails, float("-inf"))
    return logits


_TEMPERATURE, _TOP_P, _MIN_P, _SEED, _SEQUENCE, _TOKEN = range(6)
NO_LOGPROBS = -1
"""What stands in place of a number of log-probabilities: none requested."""


class SlotTable:
    """Learns a slot's parameters from its first SampleRequest. Slots are numbered from 0 to slots -
    1; `vocab` is the number of ids."""

    def __init__(self, slots: int, vocab: int) -> None:
        self._vocab = vocab
        self._known: list[tuple[TokenSampling, int] | tuple[None, int]] = [(None, -1)] * slots
        self._wide = np.zeros((6, slots), np.int64)
        self._floats = self._wide.view(np.float64)
        self._top_k = np.zeros(slots, np.int32)
        self._logprobs = np.full(slots, NO_LOGPROBS, np.int32)

    def forget(self, slot: int) -> None:
        self._known[slot] = (None, -1)

    def learn(self, requests: list[SampleRequest], slots: list[int]) -> None:
        """Stores the parameters that are new."""
        known = self._known
        for request, slot in zip(requests, slots, strict=True):
            sampling, index = known[slot]
            if sampling is not request.sampling or index != request.index:
                self._take(slot, request)

    def _take(self, slot: int, request: SampleRequest) -> None:
        sampling = request.sampling
        self._known[slot] = (sampling, request.index)
        self._floats[_TEMPERATURE, slot] = sampling.temperature or 0.0  # Not -0.0.
        self._floats[_TOP_P, slot] = sampling.top_p
        self._floats[_MIN_P, slot] = sampling.min_p
        self._wide.view(np.uint64)[_SEED, slot] = sampling.seed
        self._wide[_SEQUENCE, slot] = request.index
        self._top_k[slot] = min(max(sampling.top_k, 0), self._vocab)
        wanted = sampling.logprobs
        self._logprobs[slot] = NO_LOGPROBS if wanted is None else min(wanted, self._vocab)

    def wide(self, slots: np.ndarray, emitted: list[int]) -> np.ndarray:
        """Returns [6, rows] int64: temperature, top_p and min_p as the bits of float64, then seed,
        sequence index and token index. The number of rows is rounded up to an even one, so that
        each of the six is aligned to 16 bytes.

        `slots` is [rows]; `emitted` is the token index of each row.
        """
        rows = len(emitted)
        gathered = np.zeros((6, rows + rows % 2), np.int64)
        gathered[:, :rows] = self._wide[:, slots]
        gathered[_TOKEN, :rows] = emitted
        return gathered

    def greedy(self, slots: np.ndarray) -> bool:
        """Returns whether all of these slots take the most likely token."""
        return not self._wide[_TEMPERATURE, slots].any()

    def cuts(self, slots: np.ndarray) -> bool:
        """Returns whether any of these slots samples from less than the whole vocabulary."""
        top_k = self._top_k[slots]
        cut = (top_k > 0) & (top_k < self._vocab)
        cut |= (self._floats[_TOP_P, slots] < 1.0) | (self._floats[_MIN_P, slots] > 0.0)
        return bool((cut & (self._floats[_TEMPERATURE, slots] > 0.0)).any())

    def top_k(self, slots: np.ndarray) -> np.ndarray:
        """Returns [rows] int32; 0 is off."""
        return self._top_k[slots]

    def logprobs(self, slots: np.ndarray) -> np.ndarray:
        """Returns [rows] int32: the number of top log-probabilities requested, or NO_LOGPROBS."""
        return self._logprobs[slots]
