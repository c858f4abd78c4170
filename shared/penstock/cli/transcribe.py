"""`penstock transcribe`: the text of a recording, by a model here or by a running system."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.http_client import add_server_arguments, client
from penstock.cli.parser import Parser, examples
from penstock.cli.sampling_arguments import add_engine, engine_settings, refuse_settings
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.transcription.wishes import Wishes

FORMATS = ("text", "json", "srt", "vtt", "verbose_json")
MAX_BYTES = 1 << 30
"""Most bytes of a file; a server has its own, smaller bound."""


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock transcribe MODEL FILE [--flag VALUE ...]"
    parser.description = (
        "Writes the text of a recording (WAV, MP3, …; with PyAV also M4A, MP4, …) to stdout. "
        "Starts an engine for it, or with --url asks a running system. Every engine setting of "
        "`penstock serve` is a flag here too."
    )
    parser.epilog = examples(
        "penstock transcribe openai/whisper-tiny talk.mp3",
        "penstock transcribe openai/whisper-tiny talk.mp3 --language de --format srt",
        "penstock transcribe --url http://127.0.0.1:8000 talk.mp3 --translate",
    )
    parser.add_argument("words", nargs="*", metavar="MODEL FILE", help="With --url: only FILE.")
    parser.add_argument(
        "--language", metavar="CODE", help="Spoken language, for example de; default: detected."
    )
    parser.add_argument("--translate", action="store_true", help="Translate into English.")
    parser.add_argument("--prompt", metavar="TEXT", help="Spelling of names and words.")
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0: the likeliest tokens, and higher temperatures if these look wrong.",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="The same seed gives the same text.")
    parser.add_argument(
        "--pauses", action="store_true", help="Cut a long recording at quiet places."
    )
    parser.add_argument(
        "--word-times", action="store_true", help="Times of each word; with verbose_json."
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="Default: text.")
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_server_arguments(parser, default=None)
    parser.add_argument("--model", dest="remote_model", metavar="NAME", help="With --url: which.")
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises InvalidRequest and PenstockError."""
    model, file = _words(arguments)
    if arguments.word_times and (arguments.format != "verbose_json" or arguments.translate):
        raise InvalidRequest(
            "--word-times goes with --format verbose_json, and without --translate"
        )
    data = _read(file)
    written = (_remote if arguments.url else _local)(arguments, model, file, data)
    sys.stdout.write(written if written.endswith("\n") else f"{written}\n")
    sys.stdout.flush()
    return 0


def _words(arguments: argparse.Namespace) -> tuple[str, str]:
    words = list(arguments.words)
    if arguments.url:
        refuse_settings(arguments)
        words = [arguments.remote_model or "", *words]
    elif arguments.remote_model is not None:
        words = [arguments.remote_model, *words]
    if len(words) != 2:
        raise InvalidRequest("give MODEL and FILE; or with --url only FILE")
    return words[0], words[1]


def _read(file: str) -> bytes:
    path = Path(file).expanduser()
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InvalidRequest(f"{file} has {size} bytes; at most {MAX_BYTES} are taken")
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read: {error.strerror}") from None


def _remote(arguments: argparse.Namespace, model: str, file: str, data: bytes) -> str:
    fields = {
        "model": model,
        "response_format": arguments.format,
        "language": arguments.language,
        "prompt": arguments.prompt,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "chunking_strategy": "auto" if arguments.pauses else None,
    }
    given = [(name, str(value)) for name, value in fields.items() if value not in (None, "")]
    if arguments.word_times:
        given += [("timestamp_granularities[]", each) for each in ("segment", "word")]
    task = "translations" if arguments.translate else "transcriptions"
    form, content_type = _form(given, Path(file).name, data)
    return client(arguments).post_form(f"/v1/audio/{task}", form, content_type).decode()


def _form(fields: list[tuple[str, str]], file_name: str, data: bytes) -> tuple[bytes, str]:
    """multipart/form-data, and its content type."""
    boundary = f"penstock-{os.urandom(16).hex()}"
    name = "".join(each if each.isprintable() and each not in '"\\' else "_" for each in file_name)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'
    parts: list[bytes] = []
    for key, value in fields:
        parts += [(head % (key, "")).encode(), value.encode(), b"\r\n"]
    parts += [(head % ("file", f'; filename="{name}"')).encode(), data, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def _local(arguments: argparse.Namespace, model: str, file: str, data: bytes) -> str:
    from penstock.cli.answers import LocalModel

    source = LocalModel(model, engine_settings(arguments), verbose=arguments.verbose)
    try:
        written, _ = source.transcribe(data, _wishes(arguments)).whole(arguments.format)
        return written.decode()
    finally:
        source.close()


def _wishes(arguments: argparse.Namespace) -> Wishes:
    from penstock.transcription.wishes import Wishes

    stated: dict[str, Any] = {
        "language": arguments.language,
        "prompt": arguments.prompt,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
    }
    given = {name: value for name, value in stated.items() if value is not None}
    return Wishes(
        **given,
        translate=arguments.translate,
        pauses=arguments.pauses,
        silence=arguments.format == "verbose_json",
        words=arguments.word_times,
    )
