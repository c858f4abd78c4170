"""`penstock run`: one prompt, one answer; a conversation where a person gives no prompt."""

from __future__ import annotations

import argparse
import json
import shlex
import sys

from penstock.cli.answers import Facts, LocalModel, Question, RemoteModel, Source
from penstock.cli.chat import ChatHistory, chat_with
from penstock.cli.http_client import add_server_arguments, client
from penstock.cli.media_files import add_media, content_with, given_files, given_parts
from penstock.cli.parser import Parser, examples, warn
from penstock.cli.sampling_arguments import (
    add_engine,
    add_sampling,
    engine_settings,
    refuse_settings,
    sampling,
)
from penstock.cli.terminal import printable
from penstock.errors import InvalidRequest

LONGEST = 1024
"""Tokens of an answer by default: a small model that finds no end would fill its context, which
takes minutes."""


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock run MODEL [PROMPT] [--flag VALUE ...]"
    parser.description = (
        "Answers one prompt and exits. Only the text goes to stdout. Starts an engine for it, or "
        "with --url asks a running system. Without PROMPT it is `chat` in a terminal; elsewhere, "
        "or with a dash, it reads stdin. Every engine setting of `penstock serve` is a flag here "
        "too."
    )
    parser.epilog = examples(
        'penstock run smollm2-135m "What is the capital of Germany?" --temperature 0',
        "penstock run smollm2-135m",
        "git diff | penstock run smollm2-135m --system 'Explain this change.'",
        'penstock run smollm2-135m --raw "The capital of France is" --max-tokens 8 --json',
        'penstock run --url http://127.0.0.1:8000 "Say hello."',
    )
    parser.add_argument("words", nargs="*", metavar="MODEL PROMPT", help="With --url: only PROMPT.")
    parser.add_argument("--system", metavar="TEXT", help="The conversation's system message.")
    parser.add_argument(
        "--raw", action="store_true", help="Continue the prompt as it is, without a chat template."
    )
    parser.add_argument("--json", action="store_true", help="One JSON object at the end.")
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_media(parser)
    add_server_arguments(parser, default=None)
    parser.add_argument("--model", dest="remote_model", metavar="NAME", help="With --url: which.")
    add_sampling(parser, longest=str(LONGEST))
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0, or 130 when Ctrl-C ended the answer. Raises InvalidRequest and PenstockError."""
    model, prompt = _words(arguments)
    wanted = sampling(arguments)
    if prompt is None and _in_terminal(arguments):
        return _chat(arguments, model, wanted)
    if prompt in (None, "-"):
        prompt = _from_stdin(model)
    question = _question(arguments, prompt, wanted)
    question.longest = LONGEST if arguments.sampling_max_tokens is None else None
    source = _source(arguments, model)
    try:
        if isinstance(source, LocalModel) and not source.has_template:
            question = _without_template(question, arguments)
        return _answer(source, question, arguments.json)
    finally:
        source.close()


def _words(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    words = list(arguments.words)
    model = None if arguments.url else (words.pop(0) if words else arguments.remote_model)
    if arguments.url:
        refuse_settings(arguments)
    elif model is None:
        raise InvalidRequest("MODEL is missing; or name a running system with --url")
    if len(words) > 1:
        raise InvalidRequest("there is more than one PROMPT; put it in quotes")
    return model, words[0] if words else None


def _in_terminal(arguments: argparse.Namespace) -> bool:
    """Whether a person sits there who named a model and nothing to ask it."""
    plain = not (arguments.raw or arguments.json)
    return plain and sys.stdin.isatty() and sys.stdout.isatty()


def _chat(arguments: argparse.Namespace, model: str | None, wanted: dict[str, object]) -> int:
    source = _source(arguments, model)
    try:
        if isinstance(source, LocalModel) and not source.has_template:
            raise InvalidRequest(f"{source.name} has no chat template; give a PROMPT to continue")
        history = ChatHistory(arguments.system or "")
        history.media = given_parts(arguments)
        return chat_with(source, history, wanted, arguments).run()
    finally:
        source.close()


def _from_stdin(model: str | None) -> str:
    if sys.stdin.isatty():
        print("penstock: reading the prompt; Ctrl-D ends it", file=sys.stderr)
    prompt = sys.stdin.read()
    if not prompt.strip() and model is not None:
        words = shlex.quote(model)
        raise InvalidRequest(
            f"there is no prompt: {model!r} is taken for the MODEL, and stdin is empty; give both"
            f" (`penstock run {words} PROMPT`, or `penstock run MODEL {words}`)"
        )
    return prompt


def _question(arguments: argparse.Namespace, prompt: str, wanted: dict[str, object]) -> Question:
    if not prompt.strip():
        raise InvalidRequest("the prompt is empty")
    if arguments.raw:
        if arguments.system is not None:
            raise InvalidRequest("--system is for a conversation; --raw has none")
        for kind, _ in given_files(arguments):
            raise InvalidRequest(f"--{kind} is for a conversation; --raw has none")
        return Question(wanted, prompt=prompt)
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    content = content_with(given_parts(arguments), prompt)
    return Question(wanted, messages=[*system, {"role": "user", "content": content}])


def _without_template(question: Question, arguments: argparse.Namespace) -> Question:
    """A model without a chat template goes on with the text."""
    if question.messages is None:
        return question
    if arguments.system is not None:
        raise InvalidRequest("--system: this model has no chat template")
    for kind, _ in given_files(arguments):
        raise InvalidRequest(f"--{kind}: this model has no chat template")
    text = question.messages[-1]["content"]
    return Question(question.sampling, prompt=text, longest=question.longest)


def _source(arguments: argparse.Namespace, model: str | None) -> Source:
    if arguments.url:
        return RemoteModel(client(arguments), arguments.remote_model)
    return LocalModel(model or "", engine_settings(arguments), verbose=arguments.verbose)


def _answer(source: Source, question: Question, as_json: bool) -> int:
    facts = Facts()
    code = 0
    on_terminal = sys.stdout.isatty()
    try:
        for text in source.answer(question, facts):
            if not as_json:
                print(printable(text) if on_terminal else text, end="", flush=True)
    except KeyboardInterrupt:
        facts.finish_reason, code = "abort", 130
    if as_json:
        print(json.dumps(_report(source, facts), ensure_ascii=False))
    elif not facts.text.endswith("\n"):
        print(flush=True)
    if facts.finish_reason == "length" and question.longest is not None:
        warn(
            f"cut off after {facts.completion_tokens} tokens; --max-tokens N allows more, and -1 "
            "as many as the context has room for"
        )
    return code


def _report(source: Source, facts: Facts) -> dict[str, object]:
    first = facts.first_text_seconds
    return {
        "model": source.name,
        "text": facts.text,
        "finish_reason": facts.finish_reason,
        "prompt_tokens": facts.prompt_tokens,
        "completion_tokens": facts.completion_tokens,
        "seconds": round(facts.seconds, 4),
        "first_text_seconds": None if first is None else round(first, 4),
    }
