"""Grammars for the default model: sound, broken, ambiguous and hostile ones."""

from __future__ import annotations

import json

from penstock.protocol.common import Grammar

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"enum": ["red", "green"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "colour", "tags"],
    "additionalProperties": False,
}
CHOICES = ['yes "indeed"\n', "日本🙂", "no\\way", "yes"]
SUMS = 'start: NUMBER ("+" NUMBER)~2..4 "=" NUMBER\nNUMBER: /[0-9]{1,3}/\n'
GRAMMARS = {
    1: Grammar("json_schema", json.dumps(PERSON)),
    2: Grammar("regex", r"[A-Z][a-z]{2,9} (is|was) \d{2,4}\."),
    3: Grammar("choice", json.dumps(CHOICES)),
    4: Grammar("lark", SUMS),
    5: Grammar("json_object"),
}
BAD = {
    "Invalid type: foo": Grammar("json_schema", '{"type": "foo"}'),
    "double quotes: line 1": Grammar("json_schema", "{"),
    "/nope": Grammar("json_schema", '{"$ref": "#/nope"}'),
    "recursion limit": Grammar("json_schema", '{"type":"array","items":' * 300 + "{}" + "}" * 300),
    "unclosed group": Grammar("regex", "(a"),
    "unknown name": Grammar("lark", "start: nothing"),
    "at least one string": Grammar("choice", "[]"),
    "not a GBNF grammar": Grammar("gbnf", "root ::= item+ ((("),
    "structural_tag needs format": Grammar("structural_tag", "{}"),
    "has the type 'poem'": Grammar("structural_tag", '{"format": {"type": "poem"}}'),
}
AMBIGUOUS = Grammar(
    "lark",
    "start: e\ne: " + " | ".join(["e " * count for count in (8, 6, 5, 4, 3, 2)]) + '| "a" | "b"\n',
)
"""A grammar most of whose first 40 masks take tens of milliseconds; then there are too many ways of
reading."""


def schema(value: object) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


HOSTILE = {
    "a multiple": schema({"type": "integer", "multipleOf": 1_000_003}),
    "an intersection": Grammar(
        "lark", "start: T\nT: /(.*a.{60}.*)/ & ~/(.*b.{60}.*)/ & /(.*c.{45}.*)/"
    ),
}


BOUNDED = {
    "nested quantifiers": Grammar("regex", "((((a*)*)*)*)*b"),
    "nested repeats": Grammar("regex", "((a{1,100}){1,100}){1,100}"),
    "a wide automaton": Grammar("regex", "[ab]*a[ab]{200}c"),
    "a reference to itself": schema({"$ref": "#"}),
    "references in a circle": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "references that double": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {"d40": {"type": "string"}}
            | {
                f"d{i}": {
                    "type": "object",
                    "properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "ab"},
                }
                for i in range(40)
            },
        }
    ),
    "a product of choices": schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(6)]} for i in range(9)
            ]
        }
    ),
    "100,000 values": schema({"enum": list(range(100_000))}),
    "deep": Grammar("json_schema", '{"type":"array","items":' * 2000 + "{}" + "}" * 2000),
    "deep parentheses": Grammar("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "deep GBNF": Grammar("gbnf", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "a long repeat": Grammar("lark", 'start: a{1,1000000}\na: "x" | "y" "z"\n'),
    "repeats of repeats": Grammar(
        "lark", 'start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: "x" | "y"\n'
    ),
}


TAG = {
    "structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f="],
}
NEWER = {
    "format": {
        "type": "sequence",
        "elements": [
            {
                "type": "tag",
                "begin": "<think>",
                "content": {"type": "any_text"},
                "end": "</think>",
            },
            {"type": "or", "elements": [{"type": "const_string", "value": v} for v in "xy"]},
            {"type": "regex", "pattern": "a/[bc]+"},
            {
                "type": "tags_with_separator",
                "separator": ";",
                "at_least_one": True,
                "tags": [
                    {
                        "begin": "<g>",
                        "content": {"type": "grammar", "grammar": 'start: "one"'},
                        "end": "</g>",
                    }
                ],
            },
        ],
    }
}
GBNF = 'root ::= item+\nitem ::= "- " [a-z]{1,5} "\\n"'
