"""Scripted engines with a real tokenizer, a real template and a long context."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client import ModelText, SequenceDelta
from penstock.client.pool_request import PoolResult
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import Pooling, Vectors
from penstock.protocol.to_frontend import Limits
from penstock.request.sampling_params import SamplingParams
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from testing.scripted_engine import byte_tokenizer_json
from tests.gateway.fake_engine import (
    FakeEngineClient,
    FakeGeneration,
    Step,
    logprobs_of,
    say,
    welcome,
)

CONTEXT = 131_072
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if documents %}{{ documents }}{% endif %}"
    "{% if x %}{{ x }}{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Shows all that it is given."""
LIMITS = Limits(
    max_model_len=CONTEXT,
    vocab_size=256,
    max_waiting_requests=100_000,
    max_num_seqs=8,
    max_grammar_bytes=262_144,
)
SIZE = 32


def model_text() -> ModelText:
    tokens = Tokenizer.from_bytes(byte_tokenizer_json(), add_bos=False, bos_token_id=None)
    return ModelText(tokens, ChatTemplate(TEMPLATE, tokens))


class GeneratingEngine(FakeEngineClient):
    """Says little, whatever it is asked."""

    def __init__(self) -> None:
        super().__init__(say("a", finish="length"))
        self.text = model_text()
        self.welcome = welcome(limits=LIMITS)


class PoolingEngine(FakeEngineClient):
    """Gives vectors of zeros."""

    def __init__(self, *labels: str) -> None:
        super().__init__()
        self.text = model_text()
        config = PoolingConfig(mode="mean", normalize=True, size=SIZE, labels=labels)
        tasks = ("classify",) if labels else ("embed",)
        self.welcome = welcome(limits=LIMITS, pooling=config, pooling_tasks=tasks)

    async def pool(
        self, prompt_token_ids: list[int], pooling: Pooling, **others: Any
    ) -> PoolResult:
        size = 1 if self.welcome.pooling and self.welcome.pooling.labels else SIZE
        return PoolResult(Vectors((size,), bytes(4 * size)), len(prompt_token_ids))


class TellingEngine(GeneratingEngine):
    """Says so many tokens at once, shared among a request's sequences, with the log-probabilities
    that are asked for, also of its prompt."""

    def __init__(self, told: int) -> None:
        super().__init__()
        self.told = told
        self.entries = [logprobs_of(token, 20) for token in range(256)]
        self.script = self.tell

    def tell(self, prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        ids = [ord("a") + place % 26 for place in range(self.told // params.n)]
        yield [
            SequenceDelta(
                index=index,
                text=bytes(ids).decode(),
                token_ids=ids,
                logprobs=None if params.logprobs is None else [self.entries[id] for id in ids],
                finish_reason="length",
            )
            for index in range(params.n)
        ]

    async def submit(
        self, prompt_token_ids: list[int], params: SamplingParams, **others: Any
    ) -> FakeGeneration:
        generation = await super().submit(prompt_token_ids, params, **others)
        if params.prompt_logprobs is not None:
            generation.prompt_logprobs = [None, *(self.entries[id] for id in prompt_token_ids[1:])]
        return generation
