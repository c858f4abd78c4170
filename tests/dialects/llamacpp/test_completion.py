"""What clients of llama-server ask: /completion and /props."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from penstock.errors import InvalidRequest
from penstock.model.prepared_model import GenerationDefaults
from penstock.request.structured_outputs import StructuredOutputs
from penstock_dialects.llamacpp.completion import _bias
from tests.gateway import sse
from tests.gateway.byte_tokenizer import ByteTokenizer
from tests.gateway.fake_engine import CONTEXT, HELLO, FakeEngineClient, say, welcome

COMPLETION = "/completion"
DONE = "data: [DONE]\n\n"


async def _asked(http: httpx.AsyncClient, **fields: Any) -> Any:
    reply = await http.post(COMPLETION, json=fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_prompt_is_continued(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    shown = await _asked(http, prompt="a", n_predict=8, response_fields=[])
    prompt, params, _ = engine.submitted[0]
    assert (prompt, params.max_tokens) == ([*b"a"], 8)
    assert (shown["content"], shown["stop"], shown["prompt"]) == (f"{HELLO}0", True, "a")
    assert (shown["tokens"], shown["index"], shown["tokens_evaluated"]) == ([], 0, 1)
    assert shown["timings"]["predicted_n"] == shown["tokens_predicted"] > 0
    assert shown["generation_settings"]["n_predict"] == 8
    assert shown["has_new_line"] is False


async def test_defaults_are_the_models_and_else_llama_cpps(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    await _asked(http, prompt="a")
    params = engine.submitted[-1][1]
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    engine.welcome = welcome(generation=GenerationDefaults(temperature=0.3, top_k=7))
    shown = await _asked(http, prompt="a", top_p=1)
    params = engine.submitted[-1][1]
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.3, 7, 1, 0.05)
    assert shown["generation_settings"]["top_k"] == 7


async def test_what_is_asked_for_arrives(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    await _asked(
        http,
        prompt="a",
        n_predict=-1,
        temperature=-1,
        top_k=-5,
        seed=-1,
        stop=["x"],
        repeat_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        grammar='root ::= "a"',
        typical_p=1.0,
        mirostat=0,
        mirostat_tau=5,
        lora=[],
        id_slot=-1,
        cache_prompt=True,
    )
    _, params, _ = engine.submitted[-1]
    assert (params.temperature, params.top_k, params.stop) == (0.0, 0, ["x"])
    assert (params.repetition_penalty, params.seed) == (1.5, None)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
    assert params.max_tokens == CONTEXT - 1
    assert params.structured_outputs == StructuredOutputs(grammar='root ::= "a"')
    await _asked(http, prompt="a", json_schema={"const": 42})
    assert engine.submitted[-1][1].structured_outputs == StructuredOutputs(json={"const": 42})
    await _asked(http, prompt="a", ignore_eos=True)
    assert engine.submitted[-1][1].ignore_eos


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([97, 98], [[97, 98]]),
        ([97, "bc", 100], [[*b"abcd"]]),
        (["ab", 99], [[*b"abc"]]),
        ({"prompt_string": "ab"}, [[*b"ab"]]),
        (["ab", "cd"], [[*b"ab"], [*b"cd"]]),
        ([[97, "b"], "cd", {"prompt_string": "e"}], [[*b"ab"], [*b"cd"], [*b"e"]]),
        (["ab"], [[*b"ab"]]),
    ],
)
async def test_prompts_of_every_form(
    http: httpx.AsyncClient, engine: FakeEngineClient, prompt: Any, ids: list[list[int]]
) -> None:
    shown = await _asked(http, prompt=prompt, n_predict=4)
    assert [each for each, _, _ in engine.submitted] == ids
    is_list = isinstance(prompt, list) and not any(type(each) is int for each in prompt)
    replies = shown if is_list else [shown]
    assert [each["prompt"] for each in replies] == [bytes(each).decode() for each in ids]
    assert [each["index"] for each in replies] == list(range(len(ids)))
    assert [each["tokens_evaluated"] for each in replies] == [len(each) for each in ids]


async def test_a_stream_ends_with_the_whole_story(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = say("one\ntwo", finish="stop", stop_reason="###")
    reply = await http.post(COMPLETION, json={"prompt": "a", "stream": True})
    *pieces, last = sse.parse(reply.text + DONE)
    assert "".join(piece["content"] for piece in pieces) == "one\ntwo0"
    assert {piece["stop"] for piece in pieces} == {False}
    assert sum(len(piece["tokens"]) for piece in pieces) == pieces[-1]["tokens_predicted"]
    assert (last["stop_type"], last["stopping_word"], last["has_new_line"]) == ("word", "###", True)
    assert "completion_probabilities" not in pieces[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_probabilities_and_tokens_are_those_of_chat(
    http: httpx.AsyncClient, engine: FakeEngineClient, stream: bool
) -> None:
    fields = {"prompt": "a", "n_predict": 8, "n_probs": 2, "return_tokens": True}
    reply = await http.post(COMPLETION, json={**fields, "stream": stream})
    shown = sse.parse(reply.text + DONE) if stream else [reply.json()]
    told = [token for each in shown for token in each.get("completion_probabilities", ())]
    assert engine.submitted[-1][1].logprobs == 2
    messages = [{"role": "user", "content": "a"}]
    chat = {"messages": messages, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    whole = (await http.post("/v1/chat/completions", json=chat)).json()["choices"][0]
    wanted = whole["logprobs"]["content"]
    assert [(each["token"], each["logprob"], each["bytes"]) for each in told] == [
        (each["token"], each["logprob"], each["bytes"]) for each in wanted
    ]
    assert [len(each["top_logprobs"]) for each in told] == [
        len(each["top_logprobs"]) for each in wanted
    ]
    assert [each["id"] for each in told] == whole["token_ids"]
    if not stream:
        assert shown[0]["tokens"] == whole["token_ids"]


async def test_biases_of_ids_and_texts(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    await _asked(http, prompt="a", logit_bias=[[98, 1.5], ["cd", -0.5], [101, False]])
    assert engine.submitted[-1][1].logit_bias == {98: 1.5, 99: -0.5, 100: -0.5, 101: -100.0}
    await _asked(http, prompt="a", logit_bias={"98": 2, "c": False})
    assert engine.submitted[-1][1].logit_bias == {98: 2.0, 99: -100.0}


@pytest.mark.usefixtures("prepared_here")
@pytest.mark.parametrize(
    ("biases", "encoded"),
    [
        ([["b", 1]] * 1025, 0),
        ({f"b{number}": 1 for number in range(1025)}, 0),
        ([["b" * 256, 1]] * 100, 64),
    ],
)
def test_biases_are_counted_before_texts_are_tokenised(biases: Any, encoded: int) -> None:
    texts = []

    class Counting(ByteTokenizer):
        def encode(self, text: str, **how: Any) -> list[int]:
            texts.append(text)
            return super().encode(text, **how)

    with pytest.raises(InvalidRequest, match="are allowed") as refused:
        _bias(biases, Counting(), 1024)  # type: ignore[arg-type]
    assert refused.value.param == "logit_bias"
    assert len(texts) == encoded


async def test_the_wanted_fields_are_those_of_the_whole_reply(http: httpx.AsyncClient) -> None:
    asked = {"prompt": "a", "n_predict": 4, "n_probs": 2, "n_cmpl": 2}
    wanted = [
        "tokens_predicted", "content", "generation_settings", "generation_settings/top_k",
        "completion_probabilities", "generation_settings/stop/0", "timings/x", "nothing", "content",
    ]  # fmt: skip
    answers = await _asked(http, **asked, response_fields=wanted)
    for whole, shown in zip(await _asked(http, **asked), answers, strict=True):
        assert [*shown] == wanted[:5]
        assert shown.pop("generation_settings/top_k") == whole["generation_settings"]["top_k"]
        assert shown == {name: whole[name] for name in shown}


async def test_a_prompt_may_be_computed_ahead(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    shown = await _asked(http, prompt="a", n_predict=0, return_tokens=True, n_probs=1)
    assert (shown["content"], shown["tokens"], shown["tokens_predicted"]) == ("", [], 0)
    assert engine.submitted[-1][1].max_tokens == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[97], ["a", [1]]]}, "prompt[1][1]"),
        ({"prompt": [97, [98]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [97] + ["b"] * 1024}, "prompt"),
        ({"prompt": "a" * (CONTEXT + 1)}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["AA=="]}}, "prompt.multimodal_data"),
        ({"n_predict": -1, "n_cmpl": 2000}, "n_cmpl"),
        ({"n_probs": 1000}, "n_probs"),
        ({"n_probs": -1}, "n_probs"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"mirostat": 2}, "mirostat"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"logit_bias": [["x" * 2000, 1]]}, "logit_bias"),
        ({"logit_bias": [[97, True]]}, "logit_bias"),
        ({"logit_bias": [[97]]}, "logit_bias"),
        ({"logit_bias": [[97.5, 1]]}, "logit_bias"),
        ({"logit_bias": [["a", "b"]]}, "logit_bias"),
        ({"logit_bias": [[97000, 1]]}, "logit_bias"),
        ({"response_fields": ["a"] * 129}, "response_fields"),
        ({"response_fields": ["a/" * 65]}, "response_fields"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
    ],
)
async def test_what_cannot_be_is_named(
    http: httpx.AsyncClient, engine: FakeEngineClient, fields: dict[str, Any], param: str
) -> None:
    refused = await http.post(COMPLETION, json={"prompt": "a", **fields})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param
    assert param in refused.text
    assert not engine.submitted


async def test_props_tell_what_is_served(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    reply = await http.get("/props")
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    assert shown["default_generation_settings"]["n_ctx"] == CONTEXT
    assert shown["default_generation_settings"]["params"]["top_k"] == 40
    assert shown["total_slots"] == engine.welcome.limits.max_num_seqs
    assert shown["model_alias"] == engine.welcome.model
    assert shown["modalities"] == {"vision": False, "audio": False}
    assert shown["chat_template"] == engine.text.template.source
    assert (await http.get("/props", params={"model": "nobody"})).status_code == 404
    assert msgspec.json.decode(reply.content)["build_info"].startswith("penstock ")


async def test_paths_that_llama_server_has_besides(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    sent = {"prompt": "a", "n_predict": 4, "response_fields": ["content", "prompt"]}
    replies = [(await http.post(path, json=sent)).json() for path in (COMPLETION, "/completions")]
    assert replies[0] == replies[1]
    chat = {"messages": [{"role": "user", "content": "a"}]}
    replies = [
        (await http.post(path, json=chat)).json()["choices"]
        for path in ("/v1/chat/completions", "/chat/completions")
    ]
    assert replies[0] == replies[1]
    lists = [(await http.get(path)).json() for path in ("/v1/models", "/models")]
    assert lists[0] == lists[1]


async def test_tokens_with_their_pieces_and_back(http: httpx.AsyncClient) -> None:
    sent = {"content": "aé", "with_pieces": True}
    shown = (await http.post("/tokenize", json=sent)).json()["tokens"]
    first, second = "é".encode()
    assert shown == [
        {"id": 97, "piece": "a"},
        {"id": first, "piece": [first]},
        {"id": second, "piece": [second]},
    ]
    ids = {"tokens": [each["id"] for each in shown]}
    assert (await http.post("/detokenize", json=ids)).json() == {"prompt": "aé", "content": "aé"}
