"""From a generation's deltas to RequestOutputs, of the kind that the caller asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.client.beam_params import Hypothesis
from penstock.client.deltas import SequenceDelta
from penstock.client.generation import Generation
from penstock.llm.outputs import (
    CompletionOutput,
    Logprob,
    PromptLogprobs,
    RequestMetrics,
    RequestOutput,
)
from penstock.protocol.common import FinishReason, TokenLogprobs
from penstock.request.sampling_params import RequestOutputKind, SamplingParams
from penstock.text.tokenizer import Tokenizer


class Assembly:
    """A request's output, which grows with each delta."""

    def __init__(
        self, generation: Generation, prompt: str | None, tokenizer: Tokenizer, in_front: int = 0
    ) -> None:
        """in_front: ids before the prompt that was given, which aren't shown."""
        self._generation = generation
        self._in_front = in_front
        self._tokenizer = tokenizer
        self._kind = generation.params.output_kind
        self._begun = time.monotonic()
        self._metrics = RequestMetrics(arrival_time=time.time())
        self._whole = RequestOutput(
            generation.name,
            prompt,
            generation.prompt_token_ids[in_front:] if in_front else generation.prompt_token_ids,
            [_empty(index, generation.params) for index in range(generation.params.n)],
            metrics=self._metrics,
        )
        self._texts: list[list[str]] = [[] for _ in self._whole.outputs]
        """Texts of each sequence that are not written into its output yet."""

    def take(self, deltas: list[SequenceDelta]) -> RequestOutput | None:
        """What the caller gets of these deltas: the same object, grown (CUMULATIVE, and
        FINAL_ONLY at the end), or a new one that holds only them (DELTA)."""
        finished = self._generation.finished
        self._note_time(deltas, finished)
        first = self._whole.prompt_logprobs is None
        if first:
            self._whole.prompt_logprobs = self._prompt_logprobs()
        if self._kind is RequestOutputKind.DELTA:
            return self._news(deltas, finished, first)
        for delta in deltas:
            self._add(self._whole.outputs[delta.index], delta)
            self._texts[delta.index].append(delta.text)
        self._whole.finished = finished
        self._whole.num_cached_tokens = self._generation.cached_tokens
        if not finished and self._kind is not RequestOutputKind.CUMULATIVE:
            return None
        self._write_texts()
        return self._whole

    def _add(self, output: CompletionOutput, delta: SequenceDelta) -> None:
        """Appends a delta to the sequence that it belongs to, all but its text."""
        if delta.logprobs is not None and output.logprobs is not None:
            ranked = not self._generation.params.logprob_token_ids
            for token, entry in zip(delta.token_ids, delta.logprobs, strict=True):
                output.logprobs.append(by_token(token, entry, self._tokenizer, ranked=ranked))
                output.cumulative_logprob = (output.cumulative_logprob or 0.0) + entry.logprob
        output.token_ids.extend(delta.token_ids)
        output.finish_reason = delta.finish_reason
        output.stop_reason = delta.stop_reason
        output.error = delta.error

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        found = _prompt_logprobs(self._generation, self._tokenizer)
        if found is None or not self._in_front:
            return found
        return [None, *found[self._in_front + 1 :]]

    def _write_texts(self) -> None:
        """Joins the texts so far. Only called when somebody sees them: a long text is not copied
        for each of its tokens."""
        for output, texts in zip(self._whole.outputs, self._texts, strict=True):
            if texts:
                output.text += "".join(texts)
                texts.clear()

    def _news(self, deltas: list[SequenceDelta], finished: bool, first: bool) -> RequestOutput:
        whole = self._whole
        outputs = []
        for delta in deltas:
            output = _empty(delta.index, self._generation.params)
            self._add(output, delta)
            output.text = delta.text
            total = whole.outputs[delta.index]
            if output.cumulative_logprob is not None:
                output.cumulative_logprob += total.cumulative_logprob or 0.0
                total.cumulative_logprob = output.cumulative_logprob
            outputs.append(output)
        return RequestOutput(
            whole.request_id,
            whole.prompt,
            whole.prompt_token_ids,
            outputs,
            finished,
            self._generation.cached_tokens,
            prompt_logprobs=whole.prompt_logprobs if first else None,
            metrics=self._metrics,
        )

    def _note_time(self, deltas: list[SequenceDelta], finished: bool) -> None:
        metrics = self._metrics
        now = metrics.arrival_time + (time.monotonic() - self._begun)
        if any(delta.token_ids for delta in deltas):
            if metrics.first_token_time is None:
                metrics.first_token_time = now
            metrics.last_token_time = now
        if finished:
            metrics.finished_time = now


def timed_out_output(
    name: str, prompt: str | None, prompt_token_ids: list[int], params: SamplingParams
) -> RequestOutput:
    """What is returned of a request whose deadline passed before it could be submitted."""
    outputs = [CompletionOutput(index, finish_reason="timeout") for index in range(params.n)]
    return RequestOutput(name, prompt, prompt_token_ids, outputs, finished=True)


def _empty(index: int, params: SamplingParams) -> CompletionOutput:
    if params.num_logprobs is None:
        return CompletionOutput(index)
    return CompletionOutput(index, cumulative_logprob=0.0, logprobs=[])


def _prompt_logprobs(generation: Generation, tokenizer: Tokenizer) -> PromptLogprobs | None:
    """What a generation's first delta has brought of its prompt's log-probabilities."""
    entries = generation.prompt_logprobs
    if entries is None:
        return None
    return [
        None if entry is None else by_token(token, entry, tokenizer)
        for token, entry in zip(generation.prompt_token_ids, entries, strict=False)
    ]


def by_token(
    token: int, entry: TokenLogprobs, tokenizer: Tokenizer, *, ranked: bool = True
) -> dict[int, Logprob]:
    """The emitted token and the others that are reported, by id. ranked: these are the likeliest,
    and not those of a list."""
    top = {
        id_: Logprob(value, rank if ranked else None, tokenizer.token_text(id_))
        for rank, (id_, value) in enumerate(
            zip(entry.top_ids, entry.top_logprobs, strict=True), start=1
        )
    }
    if token not in top:
        top[token] = Logprob(entry.logprob, None, tokenizer.token_text(token))
    return top


# What beam_search returns. Names and shapes as in vLLM.


@dataclass(slots=True)
class BeamSearchSequence:
    """One hypothesis. tokens: the prompt's and its own, the one that ended it included; text: of
    its own.  score: cum_logprob / number of its own tokens ** length_penalty.
    logprobs: as CompletionOutput's, where they were asked for."""

    tokens: list[int]
    text: str
    cum_logprob: float
    score: float
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The hypotheses of one prompt, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def beam_output(
    prompt_token_ids: list[int], hypotheses: list[Hypothesis], tokenizer: Tokenizer
) -> BeamSearchOutput:
    """The hypotheses of a prompt's token ids."""
    return BeamSearchOutput([_sequence(prompt_token_ids, each, tokenizer) for each in hypotheses])


def _sequence(
    prompt_token_ids: list[int], found: Hypothesis, tokenizer: Tokenizer
) -> BeamSearchSequence:
    logprobs = found.logprobs
    if logprobs is not None:
        shown = [
            by_token(token, entry, tokenizer)
            for token, entry in zip(found.token_ids, logprobs, strict=True)
        ]
    return BeamSearchSequence(
        tokens=[*prompt_token_ids, *found.token_ids],
        text=found.text,
        cum_logprob=found.cumulative_logprob,
        score=found.score,
        finish_reason=found.finish_reason,
        stop_reason=found.stop_reason,
        logprobs=None if logprobs is None else shown,
    )
