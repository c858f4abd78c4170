"""The part of LLM and AsyncLLM that is for pooling models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from tqdm import tqdm

from penstock.client.late_interaction import max_sim
from penstock.client.pool_request import PoolResult, compares_tokens
from penstock.client.pooling_inputs import (
    cosine,
    limit_of,
    pair_up,
    refuse_instruction,
    scores_pairs,
)
from penstock.errors import InvalidRequest, PenstockError
from penstock.llm.adapters import GivenAdapters
from penstock.llm.background_loop import BackgroundLoop
from penstock.llm.pooling_jobs import (
    PoolJob,
    Scored,
    alone_jobs,
    jobs_for,
    pair_jobs,
    pooled,
    run_job,
    scored_inputs,
)
from penstock.llm.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from penstock.llm.prompts import Prompt, prompt_list
from penstock.protocol.common import Pooling, PoolingTask
from penstock.protocol.to_frontend import Welcome
from penstock.request.lora import LoRARequest
from penstock.request.pooling_params import PoolingParams
from penstock.request.terms import Terms

if TYPE_CHECKING:
    from penstock.client import ModelText


class AsyncPooling:
    """Mixed into AsyncLLM."""

    async def encode(
        self: Any,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """Yields the one output of a request to a pooling model.

        Leaving early aborts the request.  Raises InvalidRequest, Overloaded, EngineUnavailable,
        DeadlineExceeded or RequestFailed.
        """
        await self.start()
        terms = Terms.checked(priority=priority, deadline_ms=deadline_ms)
        (terms,) = await self.with_adapters([terms], lora_request)
        (job,) = jobs_for(self, [prompt], pooling_params or PoolingParams(), None, terms)
        name = request_id if request_id is not None else f"library-pool-{next(self._numbers)}"
        client = self._started()
        result = await pooled(client, self._desk, job, name)
        yield PoolingRequestOutput(
            name, _array(result), job.given.prompt_token_ids, num_cached_tokens=result.cached_tokens
        )


class PoolingCalls:
    """Mixed into LLM: blocking calls, one output per prompt, in the prompts' order.

    All raise ValueError for a bad prompt, a bad setting, or a model that can't do it, before
    anything runs.
    """

    _llm: Any
    _loop: BackgroundLoop
    _numbers: Iterator[int]

    def _text(self) -> ModelText:
        raise NotImplementedError

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: GivenAdapters = None,
        truncate_prompt_tokens: int | None = None,
        pooling_task: PoolingTask | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What the model gives, as arrays: of a model for embeddings each token's vector, unless
        pooling_task or pooling_params say otherwise."""
        given = (prompts, lora_request)
        runs = self._pool(given, pooling_params, pooling_task, truncate_prompt_tokens, use_tqdm)
        return [_output(PoolingRequestOutput, run, _array(run.result)) for run in runs]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        lora_request: GivenAdapters = None,
        truncate_prompt_tokens: int | None = None,
        pooling_params: PoolingParams | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """One vector for each prompt, as outputs.embedding."""
        given = (prompts, lora_request)
        runs = self._pool(given, pooling_params, "embed", truncate_prompt_tokens, use_tqdm)
        return [
            _output(EmbeddingRequestOutput, run, EmbeddingOutput(run.result.values()))
            for run in runs
        ]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        lora_request: GivenAdapters = None,
        truncate_prompt_tokens: int | None = None,
        pooling_params: PoolingParams | None = None,
    ) -> list[ClassificationRequestOutput]:
        """A score for each label of the model, as outputs.probs."""
        given = (prompts, lora_request)
        runs = self._pool(given, pooling_params, "classify", truncate_prompt_tokens, use_tqdm)
        return [
            _output(ClassificationRequestOutput, run, ClassificationOutput(run.result.values()))
            for run in runs
        ]

    def score(
        self,
        data_1: Scored,
        data_2: Scored,
        *,
        use_tqdm: bool = True,
        lora_request: GivenAdapters = None,
        truncate_prompt_tokens: int | None = None,
        pooling_params: PoolingParams | None = None,
        instruction: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """outputs.score for each pair: one text with each of many, or each with its own.

        By the head of a cross-encoder; else the cosine of two embeddings, or what late interaction
        makes of the vectors of their tokens (data_1 are the queries). Of a model that takes
        pictures, {"content": [parts]} has several inputs, each of which is a text or a picture.
        instruction: what makes a document a good one, in place of the model's own.
        """
        text, welcome = self._text(), self._welcome()
        first, second = scored_inputs(data_1), scored_inputs(data_2)
        pairs = pair_up(len(first), len(second))
        params = pooling_params or PoolingParams()
        cut = _cut(params, truncate_prompt_tokens)
        limit = limit_of(cut, welcome)
        if not scores_pairs(welcome):
            if not isinstance(lora_request, (LoRARequest, type(None))):
                raise InvalidRequest("score takes one adapter for all texts", param="lora_request")
            if compares_tokens(welcome):
                refuse_instruction(instruction)
                params = msgspec.structs.replace(params, truncate_prompt_tokens=cut)
                return self._late_scores(first, second, pairs, params, lora_request, use_tqdm)
            embedded = self._embedded(
                [*first, *second], params, cut, lora_request, use_tqdm, instruction
            )
            return [_cosine(embedded[one], embedded[len(first) + two]) for one, two in pairs]
        asked = Pooling("classify", activate=params.use_activation)
        jobs = pair_jobs(
            [(first[one], second[two]) for one, two in pairs],
            text,
            welcome,
            limit=limit,
            asked=asked,
            instruction=instruction,
        )
        runs = self._run_jobs(self._adapted(jobs, lora_request), use_tqdm)
        return [
            _output(ScoringRequestOutput, run, ScoringOutput(run.result.values()[0]))
            for run in runs
        ]

    def _embedded(
        self,
        given: list[Prompt],
        params: PoolingParams,
        cut: int | None,
        lora_request: GivenAdapters,
        use_tqdm: bool,
        instruction: str | None,
    ) -> list[EmbeddingRequestOutput]:
        """Vectors of what is compared."""
        text, welcome = self._text(), self._welcome()
        limit = limit_of(cut, welcome)
        jobs = alone_jobs(given, text, welcome, limit=limit, instruction=instruction)
        if jobs is None:
            return self.embed(
                given,
                use_tqdm=use_tqdm,
                lora_request=lora_request,
                truncate_prompt_tokens=cut,
                pooling_params=params,
            )
        return [
            _output(EmbeddingRequestOutput, run, EmbeddingOutput(run.result.values()))
            for run in self._run_jobs(self._adapted(jobs, lora_request), use_tqdm)
        ]

    def _late_scores(
        self,
        first: list[Prompt],
        second: list[Prompt],
        pairs: list[tuple[int, int]],
        params: PoolingParams,
        lora_request: GivenAdapters,
        use_tqdm: bool,
    ) -> list[ScoringRequestOutput]:
        of_queries = msgspec.structs.replace(params, input_type="query")
        jobs = jobs_for(self._llm, first, of_queries, "token_embed", Terms())
        jobs += jobs_for(self._llm, second, params, "token_embed", Terms())
        runs = self._run_jobs(self._adapted(jobs, lora_request), use_tqdm)
        return [_max_sim(runs[one], runs[len(first) + two]) for one, two in pairs]

    def _welcome(self) -> Welcome:
        return self._llm.welcome

    def _pool(
        self,
        given: tuple[Prompt | Sequence[Prompt], GivenAdapters],
        params: PoolingParams | None,
        task: PoolingTask | None,
        truncate: int | None,
        use_tqdm: bool,
    ) -> list[_Run]:
        self._text()  # Raises if it is closed.
        params = params or PoolingParams()
        if truncate is not None:
            params = msgspec.structs.replace(params, truncate_prompt_tokens=truncate)
        jobs = jobs_for(self._llm, prompt_list(given[0]), params, task, Terms())
        return self._run_jobs(self._adapted(jobs, given[1]), use_tqdm)

    def _adapted(self, jobs: list[PoolJob], adapters: GivenAdapters) -> list[PoolJob]:
        terms = self._loop.run(self._llm.with_adapters([job.terms for job in jobs], adapters))
        return [replace(job, terms=each) for job, each in zip(jobs, terms, strict=True)]

    def _run_jobs(self, jobs: list[PoolJob], use_tqdm: bool) -> list[_Run]:
        with tqdm(total=len(jobs), desc="requests", disable=not use_tqdm) as bar:
            # Interrupted by Ctrl-C, what still runs is aborted in the engine.
            return self._loop.run(self._run_all_jobs(jobs, bar))

    async def _run_all_jobs(self, jobs: list[PoolJob], bar: tqdm[Any]) -> list[_Run]:
        window = asyncio.Semaphore(self._llm.window)

        async def run(job: PoolJob) -> _Run:
            async with window:
                name = f"library-pool-{next(self._numbers)}"
                result = await run_job(self._llm, job, name)
            bar.update()
            return _Run(name, job, result)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run(job)) for job in jobs]
        except* PenstockError as failures:
            # The others have been cancelled; the caller gets the first error as it is.
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    job: PoolJob
    result: PoolResult


def _cut(params: PoolingParams, truncate: int | None) -> int | None:
    return params.truncate_prompt_tokens if truncate is None else truncate


def _array(result: PoolResult) -> PoolingOutput:
    data = np.frombuffer(result.vectors.data, dtype="<f4").reshape(result.vectors.shape)
    places = result.vectors.places
    return PoolingOutput(data, None if places is None else np.frombuffer(places, dtype="<i4"))


def _output(kind: type[Any], run: _Run, outputs: Any) -> Any:
    return kind(
        run.name,
        outputs,
        run.job.given.prompt_token_ids,
        num_cached_tokens=run.result.cached_tokens,
    )


def _max_sim(query: _Run, document: _Run) -> ScoringRequestOutput:
    return ScoringRequestOutput(
        f"{query.name}_{document.name}",
        ScoringOutput(max_sim(query.result, document.result)),
        query.job.given.prompt_token_ids + document.job.given.prompt_token_ids,
    )


def _cosine(one: EmbeddingRequestOutput, other: EmbeddingRequestOutput) -> ScoringRequestOutput:
    return ScoringRequestOutput(
        f"{one.request_id}_{other.request_id}",
        ScoringOutput(cosine(one.outputs.embedding, other.outputs.embedding)),
        one.prompt_token_ids + other.prompt_token_ids,
    )
