"""Which tokens are a message's, where its text is parted from thoughts and calls."""

from __future__ import annotations

import random
from functools import partial
from itertools import groupby

import pytest

from penstock.parsing import Content, OutputParser, tool_parser
from penstock.parsing.formats.think import THINK
from penstock.parsing.output import ChainedParser
from penstock.parsing.thinking import ThinkBlocks
from penstock.text.detokenizer import ByteLevelDetokenizer
from penstock.text.token_table import TokenBytes
from penstock_gateway.chat.answer_reading import LogprobReader, ReadEvent
from penstock_gateway.generate.logprobs import ChatLogprob

CALL = '{"name": "f", "arguments": {"a": "x{y"}}'


class Tokens:
    """A text cut into tokens at random, within characters too; a few of no text between them."""

    def __init__(self, text: str, dice: random.Random) -> None:
        pieces = [b""]
        self.ids: list[int] = []
        self.places: list[tuple[int, int]] = []
        """The characters of each: those that have a byte of it."""
        raw = text.encode()
        character = [at for at, letter in enumerate(text) for _ in letter.encode()]
        start = 0
        while start < len(raw):
            if not dice.randrange(6):
                self.ids.append(0)
                self.places.append((-1, -1))
            end = min(len(raw), start + dice.randrange(1, 7))
            pieces.append(raw[start:end])
            self.ids.append(len(pieces) - 1)
            self.places.append((character[start], character[end - 1] + 1))
            start = end
        self.table = TokenBytes.of(pieces)

    def logprobs(self) -> list[ChatLogprob]:
        return [ChatLogprob(str(place), 0.0, [], []) for place in range(len(self.ids))]


def calls(name: str) -> OutputParser:
    return tool_parser(name, "")(["f"])


def hermes() -> OutputParser:
    return calls("hermes")


def thinking_hermes() -> OutputParser:
    return ChainedParser(ThinkBlocks(THINK, ""), calls("hermes"))


CASES: list[tuple[object, list[tuple[bool, str]]]] = [
    (hermes, [(True, "aé<t<<tool"), (False, f"<tool_call>{CALL}</tool_call>\n"), (True, "a<")]),
    (hermes, [(False, f" <tool_call>\n{CALL}\n</tool_call>\n"), (True, "call 👋👋")]),
    (hermes, [(False, "  "), (True, f"<tool_call>so [{CALL}]")]),
    (thinking_hermes, [(False, "<think>\nHm <b\n</think>\n\n"), (True, "think\n<<")]),
    (thinking_hermes, [(True, " <thin ice>")]),
    (partial(ThinkBlocks, THINK, "<think>"), [(False, "aa</thin</think>\n"), (True, "hé")]),
    (partial(calls, "llama3_json"), [(False, CALL), (True, ";\ndone é")]),
    (partial(calls, "json"), [(False, f"```json\n[{CALL}]\n```"), (True, "\nwell")]),
    (partial(calls, "json"), [(True, '[{"name": "g", "arguments": {}}]')]),
    (partial(calls, "mistral"), [(True, "[TOOL_\n"), (False, f"[TOOL_CALLS][{CALL}]")]),
]


@pytest.mark.parametrize(("make", "parts"), CASES)
def test_a_token_is_a_message_s_where_a_character_is(
    make: partial[OutputParser], parts: list[tuple[bool, str]]
) -> None:
    text = "".join(part for _, part in parts)
    is_content = [content for content, part in parts for _ in part]
    for seed in range(40):
        dice = random.Random(seed)
        tokens = Tokens(text, dice)
        told = read(make(), text, tokens, dice)
        assert "".join(one.event.text for one in told if isinstance(one.event, Content)) == "".join(
            part for content, part in parts if content
        )
        shown = {int(each.token) for one in told for each in one.logprobs}
        for place, (start, end) in enumerate(tokens.places):
            if start >= 0:
                assert (place in shown) == any(is_content[start:end]), (seed, place)
        assert_in_order_and_once(told)


def read(parser: OutputParser, text: str, tokens: Tokens, dice: random.Random) -> list[ReadEvent]:
    """In pieces; text comes with the tokens that complete it, or later."""
    reader = LogprobReader(parser, ByteLevelDetokenizer(tokens.table))
    complete = ByteLevelDetokenizer(tokens.table)
    logprobs, told, sure, given = tokens.logprobs(), [], 0, 0
    for place, token in enumerate(tokens.ids):
        sure += len(complete.push([token]))
        upto = dice.randrange(given, sure + 1)
        told += reader.read(text[given:upto], [token], [logprobs[place]])
        given = upto
    told += reader.read(text[given:], [], [])
    return [*told, *reader.finish()]


def assert_in_order_and_once(told: list[ReadEvent]) -> None:
    places = [int(each.token) for one in told for each in one.logprobs]
    assert places == sorted(set(places))
    assert all(not one.logprobs for one in told if not isinstance(one.event, Content))


def test_the_pieces_don_t_matter() -> None:
    parts = CASES[0][1]
    text = "".join(part for _, part in parts)
    tokens = Tokens(text, random.Random(1))
    seen = []
    for seed in range(20):
        told = read(hermes(), text, tokens, random.Random(seed))
        seen.append(
            [
                (kind, [each.token for one in group for each in one.logprobs])
                for kind, group in groupby(told, key=lambda one: type(one.event))
            ]
        )
    assert all(one == seen[0] for one in seen)


def test_the_last_tokens_have_no_text() -> None:
    table = TokenBytes.of([b"ab", b"c", b""])
    reader = LogprobReader(hermes(), ByteLevelDetokenizer(table))
    logprobs = [ChatLogprob(str(place), 0.0, [], []) for place in range(3)]
    [one] = reader.read("ab", [0, 1, 2], logprobs)  # "c" was a stop string.
    assert [each.token for each in one.logprobs] == ["0"]
    assert reader.finish() == []
    assert [each.token for each in reader.rest()] == ["1", "2"]
    assert reader.rest() == []
