"""What a model wrote is shown to it again, to the token: the answer as the gateway gives it, sent
back as a part of the conversation, through the model's own template.

The templates of releases aren't part of the repository: PENSTOCK_RELEASES names the folder where
they and their tokenizers lie. What they write otherwise is in `tests.shared.formats.rewritten`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import ModelText
from penstock.config.settings import GatewayConfig
from penstock.llm.prompts import render_chat
from penstock.model.prepared_model import GenerationDefaults
from penstock.request.sampling_params import SamplingParams
from penstock.text.detokenizer import make_detokenizer
from penstock.text.template import ChatTemplate, RenderedChat
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.chat.messages import Message, template_messages
from penstock_gateway.chat.output_parsing import read_as
from penstock_gateway.chat.parsed_choice import ParsedChoice, whole_message
from penstock_gateway.chat.parsing_spec import AnswerModel
from penstock_gateway.chat.prompt import ChatPrompt
from penstock_gateway.chat.tools import FunctionDefinition, Tool, ToolUse
from penstock_gateway.generate.chunked_reply import Pace
from testing.tiny_models import byte_level_tokenizer
from tests.met import met
from tests.shared.formats.all_cases import ALL
from tests.shared.formats.case import TOOLS
from tests.shared.formats.hands import HANDS, HERMES, THINK, XML, XML_KEYS, Hand
from tests.shared.formats.rewritten import REWRITES
from tests.shared.formats.turns import TURNS, Call, Turn
from tests.thinning import part

RELEASES = Path(os.environ.get("PENSTOCK_RELEASES", ""))
FOLDER = RELEASES / "llamacpp/models/templates"
releases = pytest.mark.skipif(
    "PENSTOCK_RELEASES" not in os.environ or not FOLDER.is_dir(),
    reason="PENSTOCK_RELEASES names no folder with the templates of releases",
)
pytestmark = pytest.mark.timeout(120)

ASKED = {"role": "user", "content": "What is the weather?"}
OFFERED = [FunctionDefinition(name=name, parameters=schema) for name, schema in TOOLS.items()]
USE = ToolUse(tuple(Tool(function=each) for each in OFFERED), "free")
THINKING = {"enable_thinking": True, "thinking": True}


async def _no_documents(messages: list[Message]) -> list[Message]:
    raise AssertionError("there are none")


class Model(NamedTuple):
    """A template with a tokenizer, and how its model writes."""

    template: ChatTemplate
    tokenizer: Tokenizer
    hand: Hand

    def filled(self, sent: list[Any]) -> RenderedChat:
        """What the model reads of a conversation as clients send it."""
        given = msgspec.convert(sent, list[Message])
        messages = asyncio.run(template_messages(given, 100, _no_documents)).messages
        tools = USE.for_template()
        return self.template.filled(self.template.arranged(messages), tools=tools, **THINKING)

    def message(self, text: str, prompt: str) -> Any:
        """The answer with this text, as a client gets it."""
        asked = ChatPrompt([], prompt)
        model = AnswerModel(GatewayConfig(), self.template.source, self.tokenizer)
        params, spec = read_as(
            model, USE, asked, SamplingParams(), include_reasoning=True, largest_grammar=2**18
        )
        ids = self.tokenizer.encode(text, add_special=False)
        detokenizer = make_detokenizer(self.tokenizer, params.skip_special_tokens)
        text = detokenizer.push(ids) + detokenizer.finish()
        parsed = None if spec is None else ParsedChoice(spec.parsing(model))
        whole = asyncio.run(whole_message(text, ids, parsed, Pace()))
        return json.loads(msgspec.json.encode(whole))


class Trip(NamedTuple):
    """asked: the prompt.  text: what the model wrote.  message: as the client got it.
    shown: the next prompt."""

    asked: RenderedChat
    text: str
    message: dict[str, Any]
    shown: RenderedChat

    @property
    def ids(self) -> list[str]:
        return [call["id"] for call in self.message.get("tool_calls") or ()]


def round_trip(model: Model, turn: Turn) -> Trip:
    asked = model.filled([ASKED])
    assert model.hand.always or not model.hand.begun(asked.text)
    text = model.hand.writes(turn, asked.text)
    end = model.hand.ends[bool(turn.calls)]
    message = model.message(text.removesuffix(end), asked.text)
    trip = Trip(asked, text, message, asked)
    told = [{"role": "tool", "tool_call_id": id, "content": "Rain."} for id in trip.ids]
    return trip._replace(shown=model.filled([ASKED, message, *(told or [ASKED])]))


def expected(trip: Trip, template: str, turn: str) -> str:
    """The prompt and the answer, with what the template rewrites."""
    whole = trip.asked.text + trip.text
    # What the prompt has begun of the answer may be rewritten too.
    tail = max(len(trip.asked.text) - 40, 0)
    for rewrite in REWRITES.get(template, ()):
        if turn not in rewrite.turns:
            continue
        at = whole.rfind(rewrite.old, tail)
        assert at >= 0, f"{rewrite} changes nothing"
        new = rewrite.new
        if trip.ids:
            new = new.replace("{first}", trip.ids[0]).replace("{last}", trip.ids[-1])
        whole = whole[:at] + new + whole[at + len(rewrite.old) :]
    return whole


def tried(hand: Hand) -> list[str]:
    """Turns that its model writes."""
    return [name for name, turn in TURNS.items() if hand.tries(turn)]


def model_of(source: str, hand: Hand, tokenizer: Tokenizer) -> Model:
    bos = min(tokenizer.special_tokens.values(), default=1)
    generation = GenerationDefaults(eos_token_ids=(2,), bos_token_id=bos)
    return Model(ChatTemplate(source, tokenizer, generation=generation), tokenizer, hand)


def tiny_tokenizer() -> Tokenizer:
    content = byte_level_tokenizer().to_str().encode()
    return Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)


@releases
@pytest.mark.parametrize(
    ("name", "hand"),
    [pytest.param(name, hand, id=name) for hand in HANDS for name in hand.templates],
)
def test_a_release_s_template_shows_what_its_model_wrote(name: str, hand: Hand) -> None:
    model = model_of((FOLDER / f"{name}.jinja").read_text(), hand, tiny_tokenizer())
    for turn in tried(hand):
        trip = round_trip(model, TURNS[turn])
        whole = expected(trip, name, turn)
        assert trip.shown.text[: len(whole)] == whole, turn
    model.template.close()


@releases
@pytest.mark.parametrize("name", [name for hand in HANDS for name in hand.templates])
def test_a_release_s_template_takes_functions_without_anything(name: str) -> None:
    """Clients leave out descriptions and parameters; ten of these templates look at them."""
    model = model_of((FOLDER / f"{name}.jinja").read_text(), HANDS[0], tiny_tokenizer())
    bare = [FunctionDefinition(name="now"), FunctionDefinition(name="f", parameters={})]
    bare.append(FunctionDefinition(name="g", parameters={"type": "object"}))
    use = ToolUse(tuple(Tool(function=each) for each in bare), "free")
    filled = model.template.filled([ASKED], tools=use.for_template())
    assert "What is the weather?" in filled.text
    model.template.close()


@releases
@pytest.mark.parametrize("hand", [each for each in HANDS if each.tokenizer], ids=lambda h: h.name)
def test_with_its_tokenizer_the_ids_are_the_same(hand: Hand) -> None:
    """The answer's own, behind the prompt's: what the prefix cache compares."""
    file = RELEASES / "tokenizers" / hand.tokenizer / "models/tokenizer.json"
    tokenizer = Tokenizer.from_bytes(file.read_bytes(), add_bos=False, bos_token_id=None)
    for name in hand.templates:
        model = model_of((FOLDER / f"{name}.jinja").read_text(), hand, tokenizer)
        for turn in tried(hand):
            trip = round_trip(model, TURNS[turn])
            whole = expected(trip, name, turn)
            if whole == trip.asked.text + trip.text:
                ids = trip.asked.encode(None) + tokenizer.encode(trip.text, add_special=False)
                assert trip.shown.encode(None)[: len(ids)] == ids, (name, turn)
            assert trip.shown.text[: len(whole)] == whole, (name, turn)
        model.template.close()


def test_every_template_of_the_cases_is_tried() -> None:
    tried = {name for hand in HANDS for name in hand.templates}
    assert {name for family in ALL for name in family.templates} <= tried
    assert REWRITES.keys() <= tried


# --- templates of our own, which show all that they get

TURN = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
THOUGHTS
{%- for call in message.tool_calls or [] %}{% set f = call.function %}
{%- if not loop.first or message.content %}{{ '\n' }}{% endif %}CALL{% endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
JSON_CALL = (
    """{{ '<tool_call>\n{"name": "' + f.name + '", "arguments": ' + f.arguments ~ '}' }}"""
    "{{ '\n</tool_call>' }}"
)
XML_CALL = (
    "{{ '<tool_call>\n<function=' + f.name + '>\n' }}{% for k, v in f.arguments.items() %}"
    "{{ '<parameter=' + k + '>\n' + (v if v is string else v | tojson) + '\n</parameter>\n' }}"
    "{% endfor %}{{ '</function>\n</tool_call>' }}"
)
THOUGHTS = """
{%- if message.reasoning_content %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}
{{- message.content }}"""
PARTS = """
{%- if message.content is string %}{{- message.content }}{% else %}{% for part in message.content %}
{{- '[THINK]' + part.thinking + '[/THINK]' if part.type == 'thinking' else part.text }}
{%- endfor %}{% endif %}"""
OURS = Hand(("ours",), HERMES, thinks=THINK, space="\n", between="\n")
OUR_XML = Hand(("ours",), XML, XML_KEYS, thinks=THINK, space="\n", between="\n")
OUR_PARTS = Hand(("ours",), HERMES, thinks="[THINK]{}[/THINK]", between="\n")
TOJSON_CALL = JSON_CALL.replace("f.arguments ~", "f.arguments|tojson +")


def template(thoughts: str, call: str) -> str:
    return TURN.replace("THOUGHTS", thoughts).replace("CALL", call)


def without_space(source: str) -> str:
    """Nothing between a text and calls."""
    return source.replace("not loop.first or message.content", "not loop.first")


OWN = {
    "tojson": (template(THOUGHTS, TOJSON_CALL), OURS),
    "arguments as a text": (template(THOUGHTS, JSON_CALL.replace("~", "+")), OURS),
    "arguments printed": (template(THOUGHTS, JSON_CALL), OURS),
    "keys and values": (template(THOUGHTS, XML_CALL), OUR_XML),
    "thoughts in parts": (without_space(template(PARTS, TOJSON_CALL)), OUR_PARTS),
}


@pytest.fixture(params=OWN)
def own(request: pytest.FixtureRequest) -> Iterator[Model]:
    source, hand = OWN[request.param]
    model = model_of(source, hand, tiny_tokenizer())
    yield model
    model.template.close()


def test_a_template_shows_what_the_model_wrote(own: Model) -> None:
    turns = {**TURNS, "all": Turn("Hm.", "Let me see.", TURNS["two calls"].calls)}
    for name, turn in turns.items():
        trip = round_trip(own, turn)
        whole = trip.asked.text + trip.text
        assert trip.shown.text[: len(whole)] == whole, name
        ids = own.tokenizer.encode(whole, add_special=False)[:-1]
        assert trip.shown.encode(None)[: len(ids)] == ids, name


SPACES = st.sampled_from(["", " ", "  ", "\n  "])
STRINGS = st.sampled_from(
    ['""', r'"\u00e9\ud83d\ude00"', '"é, {b: 1}"', r'"\"\\\/\n"', r'"\u003c|im_end|>"', '"</a>"']
)
NUMBERS = ["1", "1.0", "-0.0", "1e5", "1E+2", "10.50"]
LEAVES = STRINGS | st.sampled_from([*NUMBERS, "-0", "true", "null"])


def _object(spaces: list[str], members: dict[str, str]) -> str:
    a, b, c, d = spaces
    return "{" + a + f"{b},{c}".join(f"{k}{d}:{a}{v}" for k, v in members.items()) + d + "}"


def _array(spaces: list[str], items: list[str]) -> str:
    a, b, c, _ = spaces
    return f"[{a}{f'{b},{c}'.join(items)}{b}]"


FOUR = st.lists(SPACES, min_size=4, max_size=4)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(_object, FOUR, st.dictionaries(STRINGS, inner, max_size=3))
        | st.builds(_array, FOUR, st.lists(inner, max_size=3))
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def ours() -> Iterator[Model]:
    model = model_of(*OWN["tojson"], tiny_tokenizer())
    yield model
    model.template.close()


@pytest.fixture(scope="module")
def our_xml() -> Iterator[Model]:
    model = model_of(*OWN["keys and values"], tiny_tokenizer())
    yield model
    model.template.close()


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(a=OBJECTS, b=OBJECTS, spaces=FOUR, number=st.sampled_from(NUMBERS))
def test_however_arguments_are_spelled(
    ours: Model, our_xml: Model, a: str, b: str, spaces: list[str], number: str
) -> None:
    met("spaces", any(spaces))
    text = f'{{ "b":{_object(spaces, {chr(34) + "x" + chr(34): b})}, "a": {a} }}'
    trip = round_trip(ours, Turn(calls=(Call("add", (), text),)))
    assert trip.shown.text.startswith(trip.asked.text + trip.text)
    call = Call("add", (("b", f"[{b}]"), ("a", number)))
    trip = round_trip(our_xml, Turn(calls=(call,)))
    assert trip.shown.text.startswith(trip.asked.text + trip.text)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (
            '{"a":1,"b":{"c":[1.50,"x,y:z"],"d":{}}}',
            '{"a": 1, "b": {"c": [1.50, "x,y:z"], "d": {}}}',
        ),
        ('{"a":1, "b":2}', '{"a":1, "b":2}'),
        ("{}", "{}"),
    ],
)
def test_json_without_spaces_gets_those_of_the_template(ours: Model, sent: str, shown: str) -> None:
    """JSON without any space, which clients in JavaScript write of what they have read."""
    call = {"id": "1", "function": {"name": "add", "arguments": sent}}
    told = {"role": "tool", "tool_call_id": "1", "content": "Rain."}
    text = ours.filled([ASKED, {"role": "assistant", "tool_calls": [call]}, told]).text
    assert f'"arguments": {shown}}}\n' in text


def test_what_a_client_writes_in_a_call_ends_no_turn(ours: Model) -> None:
    """Neither by a special token, nor by one whose letters are escaped."""
    for token in ("<|im_end|>", r"\u003c|im_end|>"):
        text = f'{{"a":  "{token}", "b": 1}}'
        call = {"id": "1", "function": {"name": "add", "arguments": text}}
        filled = ours.filled([ASKED, {"role": "assistant", "tool_calls": [call]}])
        assert text in filled.text
        assert filled.encode(None).count(ours.tokenizer.special_tokens["<|im_end|>"]) == 2


def test_the_library_shows_calls_as_the_gateway_does(ours: Model) -> None:
    """Arguments are a text in OpenAI's API; an object is taken, too."""
    text = '{"a":  1e5, "b": "\\u00e9"}'
    known = ModelText(ours.tokenizer, ours.template)
    for arguments, shown in ((text, text), ({"a": 1}, '{"a": 1}')):
        call = {"id": "1", "function": {"name": "add", "arguments": arguments}}
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        filled = render_chat([ASKED, turn, ASKED], known, add_generation_prompt=True)
        assert f'{{"name": "add", "arguments": {shown}}}\n' in filled
