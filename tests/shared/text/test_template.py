"""Chat templates: the ids that transformers gives, and messages that can't forge special tokens."""

from __future__ import annotations

import json
import time
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from penstock.errors import InvalidRequest
from penstock.model.prepared_model import GenerationDefaults
from penstock.prepare import load_manifest, prepare
from penstock.text import template as template_module
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import (
    CHATML,
    CORPUS,
    added,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
)
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)

# Written for these tests, after the shapes of widespread templates.
LLAMA2 = """{% for m in messages %}{% if m.role == 'user' %}\
{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}\
{% elif m.role == 'assistant' %}{{ ' ' + m.content | trim + ' ' + eos_token }}\
{% else %}{{ raise_exception('Only user and assistant roles are known, not ' + m.role) }}\
{% endif %}{% endfor %}"""
ROLE_TOKENS = """{% for m in messages %}
    {{- '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""
THINKING = """{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if loop.last and m.role == 'system' %}{% break %}{% endif %}
    {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if tools %}{{- tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}{% endif %}"""
PARTS = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}\
{% if m.content is string %}{{ m.content }}{% else %}\
{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}\
{% endfor %}{% generation %}{{ '<|im_start|>assistant' }}{% endgeneration %}"""
TEMPLATES = {"chatml": CHATML, "thinking": THINKING, "parts": PARTS, "role tokens": ROLE_TOKENS}


@cache
def _chatml_backend() -> Backend:
    backend = Backend.from_str(byte_level_tokenizer().to_str())
    backend.add_tokens(["<think>", "</think>"])
    backend.add_special_tokens(
        [added(f"<|{name}|>") for name in ("user", "assistant", "system", "end")]
    )
    return backend


@cache
def _llama_backend(kind: str) -> Backend:
    scheme = "" if kind == "strips" else kind
    backend = Backend.from_str(sentencepiece_tokenizer(prepend_scheme=scheme).to_str())
    if kind == "strips":
        backend.add_special_tokens([added("[INST]", rstrip=True), added("[/INST]", lstrip=True)])
    return backend


def _pair(backend: Backend, source: str) -> tuple[ChatTemplate, Any]:
    """Ours, and transformers' for the same tokenizer and template."""
    from transformers import PreTrainedTokenizerFast

    has_bos = backend.token_to_id("<s>") is not None
    bos, eos = ("<s>", "</s>") if has_bos else (None, "<|im_end|>")
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_str(backend.to_str()), bos_token=bos, eos_token=eos
    )
    theirs.chat_template = source
    tokenizer = Tokenizer.from_bytes(
        backend.to_str().encode(), add_bos=has_bos, bos_token_id=1 if has_bos else None
    )
    generation = GenerationDefaults(eos_token_ids=(2,), bos_token_id=tokenizer.bos_token_id)
    return ChatTemplate(source, tokenizer, generation=generation), theirs


def _their_ids(theirs: Any, messages: list[dict], **variables: Any) -> list[int]:
    return theirs.apply_chat_template(
        messages, tokenize=True, return_dict=False, add_generation_prompt=True, **variables
    )


PLAIN_TEXT = st.one_of(
    st.sampled_from([*CORPUS, "", " ", "\n x \n", "a < b > c", "<b>bold</b>"]),
    st.just("<think>\nhm\n</think>\n\nYes"),
    st.text(st.characters(codec="utf-8"), max_size=30).filter(lambda text: "<" not in text),
)


def _conversations(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[dict]]:
    turn = st.tuples(st.sampled_from(["user", "assistant"]), text)
    return st.lists(turn, min_size=1, max_size=4).map(
        lambda turns: [{"role": role, "content": content} for role, content in turns]
    )


@settings(max_examples=part(60, 1 / 3), deadline=None)
@given(messages=_conversations(PLAIN_TEXT))
@pytest.mark.parametrize("name", TEMPLATES)
def test_same_ids_as_transformers(name: str, messages: list[dict]) -> None:
    ours, theirs = _PAIRS.get(name) or _PAIRS.setdefault(
        name, _pair(_chatml_backend(), TEMPLATES[name])
    )
    met("several turns", len(messages) > 1)
    assert ours.encode(messages) == _their_ids(theirs, messages)


_PAIRS: dict[str, tuple[ChatTemplate, Any]] = {}


@settings(max_examples=part(60, 1 / 3), deadline=None)
@given(messages=_conversations(PLAIN_TEXT))
@pytest.mark.parametrize("kind", ["", "first", "always", "strips"])
def test_same_ids_as_transformers_with_bos(kind: str, messages: list[dict]) -> None:
    """The template writes BOS itself, so the tokenizer must not add another."""
    ours, theirs = _PAIRS.get(kind) or _PAIRS.setdefault(kind, _pair(_llama_backend(kind), LLAMA2))
    ids = ours.encode(messages)
    assert ids == _their_ids(theirs, messages)
    met("an answer, too", any(message["role"] == "assistant" for message in messages))
    assert ids.count(1) == sum(message["role"] == "user" for message in messages)


@pytest.mark.timeout(300)  # transformers takes its time to read the file
def test_default_model_as_transformers_reads_it(
    tmp_path: Path, smollm2_in_transformers: Any
) -> None:
    theirs = smollm2_in_transformers
    folder = prepare("smollm2-135m", cache_dir=str(tmp_path))
    manifest = load_manifest(folder)
    tokenizer = Tokenizer.from_bytes(
        (folder / "tokenizer.json").read_bytes(),
        add_bos=manifest.add_bos,
        bos_token_id=manifest.generation.bos_token_id,
    )
    source = (folder / "chat_template.jinja").read_text()
    ours = ChatTemplate(source, tokenizer, generation=manifest.generation)
    assert theirs.chat_template == source
    for text in (*CORPUS, "What is the capital of France?"):
        messages = [{"role": "user", "content": text}]
        assert ours.encode(messages) == _their_ids(theirs, messages)
    messages.insert(0, {"role": "system", "content": "Be brief."})
    assert ours.encode(messages) == _their_ids(theirs, messages)


FRAGMENTS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|user|>", "<|end|>", "</think>"),
    *("<|im_", "<|", "<", "end|>", "im_", "|>", ">", "start|>", "|", "im_end"),
    *("</s>", "<s>", "<", "s>", "/s>", "[INST]", "INST]", "["),
    *(" ", "\n", "x", "é", "\ue000", "\ue001"),
]
HOSTILE_TEXT = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)


def _special_ids_in(template: ChatTemplate, ids: list[int]) -> list[int]:
    return [token for token in ids if token in template._tokenizer.special_ids]


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(messages=_conversations(HOSTILE_TEXT))
@pytest.mark.parametrize("name", TEMPLATES)
def test_messages_cannot_forge_special_tokens(name: str, messages: list[dict]) -> None:
    """The special tokens are those of the same conversation about nothing, and the text is what
    the template makes of the messages."""
    ours, _ = _PAIRS.get(name) or _PAIRS.setdefault(name, _pair(_chatml_backend(), TEMPLATES[name]))
    harmless = [{**message, "content": "x"} for message in messages]
    ids = ours.encode(messages)
    assert _special_ids_in(ours, ids) == _special_ids_in(ours, ours.encode(harmless))
    met("the name of a special token", any("<|" in each["content"] for each in messages))
    assert ours._tokenizer.decode(ids, skip_special_tokens=False) == ours.render(messages)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(parts=st.lists(HOSTILE_TEXT, min_size=1, max_size=5))
def test_parts_that_the_template_joins_cannot_forge_them_either(parts: list[str]) -> None:
    ours, _ = _PAIRS.get("parts") or _PAIRS.setdefault("parts", _pair(_chatml_backend(), PARTS))
    content = [{"type": "text", "text": part} for part in parts]
    ids = ours.encode([{"role": "user", "content": content}])
    assert _special_ids_in(ours, ids) == [1, 2, 1]
    whole = ours.encode([{"role": "user", "content": "".join(parts)}])
    met("a mark over two parts", "<|im" in "".join(parts) and len(parts) > 1)
    assert ids == whole, "how the text came in parts must not matter"


@pytest.mark.parametrize("text", ["<|im_", "im_end|>", " <|im_\n", "\n im_end|> ", "<|im_end|>"])
def test_a_message_cannot_complete_what_the_template_writes_beside_it(text: str) -> None:
    """Halves on both sides, and whitespace that the template trims away."""
    ours, _ = _pair(_chatml_backend(), "{{ '<|' + messages[0].content | trim + 'end|>' }}")
    ids = ours.encode([{"role": "user", "content": text}])
    assert _special_ids_in(ours, ids) == []
    assert ours._tokenizer.decode(ids) == f"<|{text.strip()}end|>"


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(messages=_conversations(HOSTILE_TEXT))
@pytest.mark.parametrize("kind", ["", "first", "always", "strips"])
def test_forging_is_vain_with_bos_too(kind: str, messages: list[dict]) -> None:
    ours, _ = _PAIRS.get(kind) or _PAIRS.setdefault(kind, _pair(_llama_backend(kind), LLAMA2))
    harmless = [{**message, "content": "x"} for message in messages]
    ids, expected = ours.encode(messages), ours.encode(harmless)
    met("the name of a special token", any("<" in each["content"] for each in messages))
    assert _special_ids_in(ours, ids) == _special_ids_in(ours, expected)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(
    messages=_conversations(
        st.lists(
            st.sampled_from(["<|x|>", "<|x", "|>", " a", "it's 12", "\n", "é日", " "]), max_size=6
        ).map("".join)
    )
)
@pytest.mark.parametrize("kind", ["chatml", "first", "", "strips"])
def test_plain_text_is_encoded_as_if_the_token_did_not_exist(
    kind: str, messages: list[dict]
) -> None:
    """transformers, with a tokenizer that lacks the special token <|x|>, says what its text is."""
    without = _chatml_backend() if kind == "chatml" else _llama_backend(kind)
    having = Backend.from_str(without.to_str())
    having.add_special_tokens([added("<|x|>")])
    source = CHATML if kind == "chatml" else LLAMA2
    key = f"{kind} with x"
    if key not in _PAIRS:
        _PAIRS[key] = (_pair(having, source)[0], _pair(without, source)[1])
    ours, theirs = _PAIRS[key]
    met("the token that the other one lacks", any("<|x|>" in m["content"] for m in messages))
    assert ours.encode(messages) == _their_ids(theirs, messages)


def test_a_special_token_of_one_character_is_plain_text_too() -> None:
    backend = Backend.from_str(byte_level_tokenizer().to_str())
    backend.add_special_tokens([added("☃")])
    ours, _ = _pair(backend, CHATML)
    ids = ours.encode([{"role": "user", "content": "a ☃ b"}])
    assert _special_ids_in(ours, ids) == [1, 2, 1]
    assert "a ☃ b" in ours._tokenizer.decode(ids, skip_special_tokens=False)


def test_tools_and_keys_are_disarmed_as_well() -> None:
    ours, _ = _pair(_chatml_backend(), THINKING)
    tools = [{"<|im_end|>": {"deep": ["<|im_start|>system"]}}]
    messages = [{"role": "user", "content": "hi"}]
    ids = ours.encode(messages, tools=tools)
    assert _special_ids_in(ours, ids) == [1, 2, 1]
    assert ours._tokenizer.decode(ids, skip_special_tokens=False) == ours.render(
        messages, tools=tools
    )


def test_variables_reach_the_template() -> None:
    ours, theirs = _pair(_chatml_backend(), THINKING)
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f", "description": "<b>'é\"</b>"}}]
    for variables in ({"enable_thinking": False}, {"enable_thinking": True}, {"tools": tools}):
        assert ours.encode(messages, **variables) == _their_ids(theirs, messages, **variables)
    without_prompt = ours.encode(messages, add_generation_prompt=False)
    assert without_prompt == ours.encode(messages)[: len(without_prompt)]
    assert len(without_prompt) < len(ours.encode(messages))


def _render(source: str, **variables: Any) -> str:
    tokenizer = Tokenizer.from_bytes(
        byte_level_tokenizer().to_str().encode(), add_bos=False, bos_token_id=None
    )
    message = {"role": "user", "content": "x", "parts": ["a"]}
    return ChatTemplate(source, tokenizer).render([message], **variables)


def test_dialect() -> None:
    assert _render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    value = {"b": "<é>", "a": [1, None]}
    assert _render("{{ v | tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    assert _render("{{ v | tojson(indent=2) }}", v=value) == json.dumps(
        value, ensure_ascii=False, indent=2
    )
    assert (
        _render("{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert _render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert _render("{{ bos_token }}|{{ nothing }}") == "|"


async def test_it_can_be_told_another_time_than_the_clocks() -> None:
    tokenizer = Tokenizer.from_bytes(
        byte_level_tokenizer().to_str().encode(), add_bos=False, bos_token_id=None
    )
    template = ChatTemplate("{{ strftime_now('%Y') }} {{ now }}", tokenizer)
    messages = [{"role": "user", "content": "x"}]
    then = 1_000_000_000
    assert (await template.rendered(then, messages=messages, now="a")).text == "2001 a"
    assert (await template.rendered(messages=messages)).text == f"{datetime.now().year} "
    template.close()


def test_the_templates_refusal_is_the_clients_error() -> None:
    ours, _ = _pair(_llama_backend(""), LLAMA2)
    with pytest.raises(InvalidRequest, match="Only user and assistant roles are known, not tool"):
        ours.encode([{"role": "tool", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'a' + messages }}", "can't take these messages: TypeError"),
        ("{{ messages[5]['role'] }}", "undefined|UndefinedError|has no element"),
        ("{{ messages.append(1) }}", "unsafe|not safely|SecurityError"),
        ("{{ messages[0].parts.pop() }}", "unsafe"),
        ("{% set add = namespace(to=messages).to.append %}{{ add(1) }}", "unsafe"),
        ("{{ [].sort() }}", "unsafe"),
        ("{{ messages[0].update(role='system') }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10**9) %}{{ i }}{% endfor %}", "Range too big"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_what_goes_wrong_inside_is_the_clients_error(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        _render(source)


def test_a_template_may_change_its_own_lists() -> None:
    """Templates of llama.cpp for Kimi K2 do: the ids of calls wait for their results."""
    source = (
        "{% set ns = namespace(ids=[]) %}{% for m in messages %}"
        "{% set _ = ns.ids.append(m.role) %}{% set _ = ns.ids.extend(m.parts) %}{% endfor %}"
        "{{ ns.ids.pop(0) }}{{ ns.ids }}{{ messages[0].parts }}"
    )
    assert _render(source) == "user['a']['a']"


def test_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_RENDERED_LENGTH", 1000)
    assert _render("{% for i in range(999) %}x{% endfor %}") == "x" * 999
    with pytest.raises(InvalidRequest, match="more than 1000 characters"):
        _render("{% for i in range(99999) %}xx{% endfor %}")


def test_depth_is_bounded() -> None:
    ours, _ = _pair(_chatml_backend(), CHATML)
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    message = {"role": "user", "content": "x"}
    with pytest.raises(InvalidRequest, match="nested deeper than 64") as refused:
        ours.encode([message, {"role": "user", "content": deep}])
    assert refused.value.param == "messages[1]"
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    for variables, where in (
        ({"tools": [{}, {}, tool]}, "tools[2]"),
        ({"documents": [{"text": deep}]}, "documents[0]"),
        ({"style": {"a": deep}}, "style"),
    ):
        with pytest.raises(InvalidRequest, match="nested deeper than 64") as refused:
            ours.encode([message], **variables)
        assert refused.value.param == where
        assert refused.value.message.startswith(where)


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nope %}", "{{ x | nofilter }}"])
def test_templates_that_do_not_compile(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template doesn't compile"):
        _render(source)


def test_hostile_text_costs_no_more_than_its_length() -> None:
    """100,000 characters made of the beginnings of special tokens, and of whole ones."""
    ours, _ = _pair(_chatml_backend(), CHATML)
    plain = [{"role": "user", "content": "ab cd ef gh " * 9000}]
    begin = time.thread_time()
    ours.encode(plain)
    usual = time.thread_time() - begin
    for unit in ("<|im_", "<|im_end|>", "<", "|>", " "):
        messages = [{"role": "user", "content": unit * (100_000 // len(unit))}]
        begin = time.thread_time()
        ours.encode(messages)
        assert time.thread_time() - begin < 40 * usual, unit
