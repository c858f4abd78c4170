"""lm-evaluation-harness's model that asks `penstock.LLM`, without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import AutoTokenizer

from penstock import LLM, SamplingParams

SEED = 1234
"""The seed of the harness's own requests over HTTP."""


class PenstockLM(TemplateLM):
    """All requests of a task are given to the library at once. `hear` gets each as it would be
    asked over HTTP, with what was said."""

    def __init__(
        self, model: str, tokenizer: str, window: int, hear: Callable[..., None], **settings: Any
    ) -> None:
        super().__init__()
        self._llm = LLM(model, **settings)
        self._tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self._longest = window - 1
        self._hear = hear

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eos_token_id

    def tok_encode(self, string: str, **_: Any) -> list[int]:
        return self._tokenizer(string, add_special_tokens=False).input_ids

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        prompts = [(context + rest)[-self._longest :] for _, context, rest in requests]
        params = SamplingParams(
            temperature=0, max_tokens=1, logprobs=1, prompt_logprobs=1, seed=SEED
        )
        given = [{"prompt_token_ids": ids} for ids in prompts]
        found = []
        outputs = self._llm.generate(given, params, use_tqdm=False)
        for (_, _, rest), ids, output in zip(requests, prompts, outputs, strict=True):
            answer = output.outputs[0]
            told = [*output.prompt_logprobs[1:], *answer.logprobs]
            own = [each[id] for each, id in zip(told, [*ids[1:], *answer.token_ids], strict=True)]
            best = [max(one.logprob for one in each.values()) for each in told]
            mine = [each.logprob for each in own]
            asked: dict[str, Any] = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True}
            text = self._tokenizer.decode(ids) + answer.text
            self._hear(
                {**asked, "temperature": 0, "seed": SEED}, text, [None, *mine], [None, *best]
            )
            begin = len(ids) - len(rest) - 1
            scored = slice(begin, len(ids) - 1)
            found.append((sum(mine[scored]), mine[scored] == best[scored]))
        return found

    def loglikelihood_rolling(self, requests: list[Any], **_: Any) -> list[float]:
        found = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.eot_token_id,
                max_seq_len=self._longest - 1,
                context_len=1,
            )
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            found.append(sum(total for total, _ in self._loglikelihood_tokens(parts)))
        return found

    def generate_until(self, requests: list[Any], **_: Any) -> list[str]:
        prompts, all_params, asked = [], [], []
        for context, settings in (request.args for request in requests):
            more = dict(settings)
            more.pop("do_sample", None)
            stop = handle_stop_sequences(more.pop("until"), self._tokenizer.eos_token)
            most, temperature = more.pop("max_gen_toks"), more.pop("temperature", 0)
            shared = {"temperature": temperature, "seed": SEED, **more}
            ids = self.tok_encode(context)
            prompts.append({"prompt_token_ids": ids})
            all_params.append(SamplingParams(max_tokens=most, stop=stop, **shared))
            asked.append({"prompt": [ids], "max_tokens": most, **shared})
        outputs = self._llm.generate(prompts, all_params, use_tqdm=False)
        for body, output in zip(asked, outputs, strict=True):
            answer = output.outputs[0]
            pairs = zip(answer.token_ids, answer.logprobs, strict=True)
            own = [each[id].logprob for id, each in pairs]
            best = [max(one.logprob for one in each.values()) for each in answer.logprobs]
            self._hear(body, answer.text, own, best)
        return [output.outputs[0].text for output in outputs]
