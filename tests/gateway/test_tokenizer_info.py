"""GET /tokenizer_info: what clients take from a tokenizer_config.json, as transformers reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from penstock.model.prepared_model import GenerationDefaults
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import CHATML, byte_level_tokenizer
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import CONTEXT, FakeEngineClient, welcome

URL = "/tokenizer_info"


async def test_it_says_what_clients_look_up(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    assert (await http.get(URL)).json() == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "add_bos_token": False,
        "eos_token": "<|end|>",
        "added_tokens_decoder": {
            str(END): {
                "content": "<|end|>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        },
        "chat_template": engine.text.template.source,
    }


async def test_transformers_reads_it(
    http: httpx.AsyncClient, engine: FakeEngineClient, tmp_path: Path
) -> None:
    """Beside the tokenizer.json it makes the tokenizer, with its template."""
    backend: Backend = byte_level_tokenizer()
    ids = backend.get_vocab(with_added_tokens=True)
    content = backend.to_str().encode()
    engine.template.source = CHATML
    tokenizer = Tokenizer(content, add_bos=False, bos_token_id=None)
    engine.text = replace(engine.text, tokenizer=tokenizer)
    ends = (ids["<|im_end|>"], ids["<|endoftext|>"])
    generation = GenerationDefaults(eos_token_ids=ends, bos_token_id=ids["<|endoftext|>"])
    engine.welcome = welcome(generation=generation)
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_bytes((await http.get(URL)).content)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert (read.bos_token, read.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert read.model_max_length == CONTEXT
    text = read.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert read.encode(text) == backend.encode(text).ids
    assert json.loads((await http.get(URL)).content)["add_bos_token"] is False


async def test_of_several_one_is_named(http: httpx.AsyncClient) -> None:
    assert (await http.get(URL, params={"model": "gpt-4"})).status_code == 404
    assert (await http.get(URL, params={"colour": "red"})).status_code == 400


async def test_what_a_model_lacks_is_left_out(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.text = replace(engine.text, template=None)
    engine.welcome = welcome(generation=GenerationDefaults())
    found = (await http.get(URL)).json()
    assert not {"chat_template", "bos_token", "eos_token"} & set(found)
