"""What --speculative-config and its keyword say, and what is wrong with it."""

from __future__ import annotations

import argparse

import msgspec
import pytest

from penstock.cli import serve
from penstock.cli.parser import Parser
from penstock.config.settings import SpeculativeSettings
from penstock.errors import InvalidRequest
from penstock.llm.keywords import engine_config
from penstock.model.speculation import SpeculativeConfig


def by_flag(text: str) -> SpeculativeConfig | None:
    parser = Parser()
    serve.add(parser)
    arguments: argparse.Namespace = parser.parse_args(["--speculative-config", text])
    return serve._config(arguments).engine.speculation.config


def test_flag_and_keyword_mean_the_same() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    wanted = SpeculativeConfig(**given)
    assert by_flag('{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4}') == wanted
    assert engine_config({"speculative_config": given}).speculation.config == wanted
    assert by_flag("{}") == SpeculativeConfig(method="suffix")
    assert engine_config({}).speculation.config == by_flag("auto")
    assert engine_config({"speculative_config": None}) == engine_config({})


@pytest.mark.parametrize("word", ["auto", "AUTO", " auto "])
def test_without_being_asked_for_it_is_suffix(word: str) -> None:
    assert by_flag(word) == SpeculativeConfig(method="suffix", automatic=True)
    with pytest.raises(InvalidRequest, match="automatic is not known; auto in place of an object"):
        by_flag('{"method": "suffix", "automatic": true}')


@pytest.mark.parametrize("word", ["off", "none", "null", "OFF"])
def test_it_can_be_off(word: str) -> None:
    assert by_flag(word) is None
    assert engine_config({"speculative_config": word}).speculation.config is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"method": "magic"}', "'magic' is not served; allowed are ngram, suffix"),
        ('{"method": "ngram", "speed": 2}', "speed.*JSON object with method, num_spec"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens is 0; allowed are 1 to 64"),
        ('{"num_speculative_tokens": "3"}', "num_speculative_tokens.*allowed are auto, off"),
        ('{"prompt_lookup_min": 9}', "prompt_lookup_min is 9 and prompt_lookup_max 8"),
        ('{"method": "suffix", "model": "x"}', "computes nothing and has no separate model"),
        ("fast", "allowed are auto, off, or a JSON object"),
        ("[1]", "allowed are auto, off, or a JSON object"),
        ("{", "allowed are auto, off, or a JSON object"),
    ],
)
def test_a_wrong_speculative_setting_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"speculative_config: .*{words}") as raised:
        by_flag(text)
    assert raised.value.param == "speculative_config"
    with pytest.raises(InvalidRequest, match=words):
        engine_config({"speculative_config": text})


def test_another_model_takes_the_place_of_what_was_named() -> None:
    off = SpeculativeSettings(speculative_config="off")
    assert off.with_model("/folder") is off


def said(text: str) -> SpeculativeConfig:
    found = SpeculativeSettings(speculative_config=text).config
    assert found is not None
    return found


def test_heads_are_named_as_elsewhere() -> None:
    eagle = said('{"method": "eagle3", "model": "/heads/one", "num_speculative_tokens": 3}')
    assert (eagle.method, eagle.model, eagle.before) == ("eagle3", "/heads/one", ())
    for name in ("deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "gemma4_mtp"):
        assert said(f'{{"method": "{name}"}}') == said('{"method": "mtp"}')
    assistant = said('{"method": "gemma4_mtp", "model": "hub/name"}')
    assert assistant == said('{"method": "mtp", "model": "hub/name"}')
    assert (assistant.method, assistant.model) == ("mtp", "hub/name")
    for text, words in (
        ('{"method": "eagle3"}', "method eagle3 needs a draft model"),
        ('{"method": "suffix", "model": "x"}', "suffix computes nothing and has no separate model"),
        ('{"method": "medusa"}', "method 'medusa' is not served"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            said(text)


def test_a_list_says_the_order_of_methods() -> None:
    asked = '{"method": ["suffix", "eagle3"], "model": "hub/name", "num_speculative_tokens": 3}'
    assert (said(asked).before, said(asked).method) == (("suffix",), "eagle3")
    elsewhere = SpeculativeSettings(speculative_config=asked).with_model("/prepared")
    assert elsewhere.config == msgspec.structs.replace(said(asked), model="/prepared")
    assert said('{"method": ["ngram", "deepseek_mtp"]}').method == "mtp"
    for methods in ('["mtp", "suffix"]', '["suffix", "suffix"]', "[]", '["suffix", 3]'):
        with pytest.raises(InvalidRequest, match=r"order of preference|is not served"):
            said(f'{{"method": {methods}}}')
    with pytest.raises(InvalidRequest, match="a list of methods says their order"):
        said('{"method": "mtp", "before": ["suffix"]}')
