"""`penstock chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.cli.answers import Facts, LocalModel, Question, RemoteModel, Source
from penstock.cli.http_client import DEFAULT_URL, Unreachable, add_server_arguments, client
from penstock.cli.line_input import LineInput
from penstock.cli.media_files import (
    KINDS,
    add_media,
    content_with,
    given_parts,
    media_part,
    words_of,
)
from penstock.cli.parser import Parser, examples, nearest
from penstock.cli.sampling_arguments import (
    add_engine,
    add_sampling,
    engine_settings,
    refuse_settings,
    sampling,
)
from penstock.cli.terminal import Style, printable
from penstock.errors import InvalidRequest, PenstockError
from penstock.model.media_facts import MediaKind

HELP = """\
  /system [TEXT]  set the system message; without TEXT: show it; a dash: none
  /image FILE     show a picture with the next message
  /audio FILE     play a sound with the next message
  /video FILE     show a video with it
  /clear          forget the conversation, keep the system message
  /save FILE      write the conversation: as JSON where FILE ends so, else as Markdown
  /help           this
  /exit           leave; Ctrl-D does too

  A line that ends with a backslash goes on. Three quotes (\""") begin and end a longer text.
  Ctrl-C stops an answer. A message that begins with a slash: write two."""


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock chat [MODEL] [--flag VALUE ...]"
    parser.description = (
        "Chats with a running system. With a MODEL and without --url, starts an engine for it; "
        f"with neither, uses the system at {DEFAULT_URL}. In the chat, /help lists the commands. "
        "With a MODEL, every engine setting of `penstock serve` is a flag here too."
    )
    parser.epilog = examples(
        "penstock chat",
        "penstock chat --url http://127.0.0.1:8001 --system 'You are a helpful assistant.'",
        "penstock chat smollm2-135m --temperature 0.2 --max-tokens 256",
        "penstock chat --image photo.jpg",
        "penstock chat --audio question.wav",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="Start an engine with it.")
    parser.add_argument("--system", metavar="TEXT", default="", help="The system message.")
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_media(parser)
    add_server_arguments(parser, default=None)
    parser.add_argument("--model", dest="remote_model", metavar="NAME", help="With --url: which.")
    add_sampling(parser)
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0 once the person leaves. Raises InvalidRequest and PenstockError."""
    wanted = sampling(arguments)
    source = _source(arguments)
    try:
        history = ChatHistory(arguments.system)
        history.media = given_parts(arguments)
        return chat_with(source, history, wanted, arguments).run()
    finally:
        source.close()


def chat_with(
    source: Source, history: ChatHistory, wanted: dict[str, Any], arguments: argparse.Namespace
) -> Chat:
    """A chat that asks for what was given, and where nothing was for what the model's card says."""
    added = source.chat_params()
    usual = str(added.pop("system", ""))
    history.system = history.system or usual
    longest = added.pop("max_tokens", None)
    if arguments.sampling_max_tokens is not None:
        longest = None
    return Chat(source, history, {**added, **wanted}, longest)


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.model and arguments.url:
        raise InvalidRequest("MODEL starts an engine, --url uses a running one: give one of them")
    if arguments.model:
        local = LocalModel(arguments.model, engine_settings(arguments), verbose=arguments.verbose)
        if not local.has_template:
            local.close()
            raise InvalidRequest(f"{local.name} has no chat template; use `penstock run --raw`")
        return local
    refuse_settings(arguments)
    server = client(arguments)
    try:
        return RemoteModel(server, arguments.remote_model or server.first_model())
    except Unreachable as error:
        if arguments.url:
            raise
        raise Unreachable(
            f"{error}; `penstock serve` starts a server there, `penstock chat MODEL` needs none"
        ) from None


class Chat:
    """The loop: read, answer, again."""

    def __init__(
        self,
        source: Source,
        conversation: ChatHistory,
        wanted: dict[str, object],
        longest: int | None = None,
    ) -> None:
        """longest: tokens of an answer where `wanted` doesn't say; None: as the context allows."""
        self._longest = longest
        self._source = source
        self._conversation = conversation
        self._sampling = wanted
        self._style = Style(sys.stdout)
        self._leaving = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._system,
            **{f"/{kind}": partial(self._bring, kind) for kind in KINDS},
            "/clear": self._clear,
            "/save": self._save,
            "/help": lambda _: self._note(HELP),
            "/exit": self._exit,
            "/quit": self._exit,
        }
        self._input = LineInput(list(self._commands))

    def run(self) -> int:
        """Returns the exit status: 0; 1 if an answer failed and stdin is no terminal."""
        failed = False
        if self._input.interactive:
            self._note(f"{self._source.name}, {self._source.place}. /help lists what you can type.")
        try:
            while not self._leaving:
                try:
                    message = self._input.message()
                except EOFError:
                    break
                except KeyboardInterrupt:
                    self._note("\n(Ctrl-D or /exit leaves)")
                    continue
                try:
                    failed |= not self._take(message)
                except KeyboardInterrupt:  # between the answer's end and the next prompt
                    self._note("")
        finally:
            if self._input.interactive and not self._leaving:
                print()
            self._input.close()
        return int(failed and not self._input.interactive)

    def _take(self, message: str) -> bool:
        """A command, or a message to answer. Returns whether it went well."""
        if not message.strip():
            return True
        if message.startswith("/") and not message.startswith("//"):
            name, _, rest = message.strip().partition(" ")
            return self._command(name, rest.strip())
        return self._answer(message.removeprefix("/") if message.startswith("//") else message)

    def _command(self, name: str, rest: str) -> bool:
        command = self._commands.get(name)
        if command is None:
            near = nearest(name, list(self._commands))
            hint = f"did you mean {near}?" if near else "/help lists what there is"
            self._complain(f"there is no {name}; {hint}")
            return False
        command(rest)
        return True

    def _answer(self, message: str) -> bool:
        self._conversation.ask(message)
        messages = list(self._conversation.messages())
        question = Question(self._sampling, messages=messages, longest=self._longest)
        facts = Facts()
        stopped, error = False, None
        answer = self._source.answer(question, facts)
        try:
            for text in answer:
                print(printable(text), end="", flush=True)
        except KeyboardInterrupt:
            stopped = True
        except PenstockError as failure:
            error = failure
        finally:
            answer.close()  # type: ignore[attr-defined]
        if facts.text and not facts.text.endswith("\n"):
            print(flush=True)
        self._conversation.answered(facts.text)
        if error is not None:
            self._complain(str(error))
        elif self._input.interactive:
            self._note(_summary(facts, stopped))
        return error is None

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = "" if text == "-" else text
        self._note(f"system: {self._conversation.system or '(none)'}")

    def _bring(self, kind: MediaKind, file: str) -> None:
        if not file:
            self._complain(f"/{kind} needs the name of a FILE")
            return
        try:
            self._conversation.media.append(media_part(kind, file))
        except InvalidRequest as error:
            self._complain(str(error))
            return
        count = len(self._conversation.media)
        self._note(f"the next message brings {count} file{'s' if count > 1 else ''}")

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        self._note("forgotten")

    def _save(self, file: str) -> None:
        if not file:
            self._complain("/save needs the name of a FILE")
            return
        try:
            self._note(f"written: {self._conversation.save(file)}")
        except OSError as error:
            self._complain(f"{file}: {error.strerror}")

    def _exit(self, _: str) -> None:
        self._leaving = True

    def _note(self, text: str) -> None:
        # A script gets the answers alone.
        if self._input.interactive:
            print(self._style.paint(text, "dim"), flush=True)

    def _complain(self, text: str) -> None:
        print(Style(sys.stderr).paint(f"penstock: {text}", "red"), file=sys.stderr, flush=True)


def _summary(facts: Facts, stopped: bool) -> str:
    if stopped:
        return "(stopped)"
    words = f"{facts.completion_tokens} tokens"
    if facts.completion_tokens > 1:
        words += f", {facts.tokens_per_second:.1f}/s"
    if facts.finish_reason == "repetition":
        words += ", stopped as it repeated itself"
    elif facts.finish_reason == "length":
        words += ", cut by the limit of tokens"
    return f"({words})\n"


class ChatHistory:
    """The conversation of `penstock chat`, and how it is written to a file.

    system: the system message, empty for none.  turns: user and assistant messages so far.
    media: parts that the next question brings.
    """

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.turns: list[dict[str, Any]] = []
        self.media: list[dict[str, Any]] = []

    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation in the form that the API takes."""
        head: list[dict[str, Any]] = (
            [{"role": "system", "content": self.system}] if self.system else []
        )
        return [*head, *self.turns]

    def ask(self, text: str) -> None:
        self.turns.append({"role": "user", "content": content_with(self.media, text)})
        self.media = []

    def answered(self, text: str) -> None:
        """Keeps an answer, or what there was of it; without one the question is taken back, since
        templates want turns to alternate."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def clear(self) -> None:
        """Forgets the turns, and keeps the system message."""
        self.turns.clear()
        self.media = []

    def save(self, file: str) -> Path:
        """Writes it: JSON where the name ends so, else Markdown. Raises OSError."""
        path = Path(file).expanduser()
        text = self.as_json() if path.suffix == ".json" else self.as_markdown()
        path.write_text(text, encoding="utf-8")
        return path

    def as_json(self) -> str:
        return json.dumps({"messages": self.messages()}, ensure_ascii=False, indent=1) + "\n"

    def as_markdown(self) -> str:
        parts = [
            f"## {one['role']}\n\n{words_of(one['content']).strip()}\n" for one in self.messages()
        ]
        return "\n".join(parts)
