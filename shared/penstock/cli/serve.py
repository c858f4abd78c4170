"""`penstock serve`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.packaged import offer_package
from penstock.cli.parser import Parser, examples
from penstock.config import flags
from penstock.config.flags import resolve
from penstock.config.model_list import ModelEntry, check_for_several, checked, config_of, read_list
from penstock.config.settings import ModelSettings, ServeConfig
from penstock.config.tree import replace_settings
from penstock.errors import InvalidRequest
from penstock.model.prepared_model import PreparedModel
from penstock.net.exposure import configured_keys
from penstock.prepare import load_manifest
from penstock.prepare.resolve import check_could_be
from penstock.process import logs
from penstock.process.children import set_title
from penstock.request.api_keys import ENVIRONMENT
from penstock.request.lora import check_adapters

INTERRUPTED = 130

log = logs.get(__name__)


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.usage = "penstock serve [MODEL ...] [--flag VALUE ...]"
    parser.description = (
        "Starts gateways, engine core and worker, restarts any that die, and stops them all on"
        " SIGTERM or Ctrl-C."
    )
    parser.epilog = examples(
        "penstock serve",
        "penstock serve ./my-model --port 8001 --gateways 2",
        "penstock serve smollm2-135m --dtype float32 --max-num-seqs 64",
        "penstock serve smollm2-135m all-minilm-l6-v2",
        "penstock serve --models models.yaml --models-memory-gib 16",
        "penstock serve --config penstock.yaml",
    )
    parser.add_argument(
        "positional_models",
        nargs="*",
        metavar="MODEL",
        help="Same as --model. To serve several models, see --models.",
    )
    flags.add_settings(parser, flags.SERVE)
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"The only key of a server without a key file. Set {ENVIRONMENT} in the environment "
        "instead to keep it out of the shell's history.",
    )
    flags.add_foreign(parser)
    library = parser.add_argument_group("For front ends other than HTTP, and workers elsewhere")
    library.add_argument("--no-http", action="store_true", help="Start no gateway.")
    library.add_argument(
        "--frontend-endpoint",
        metavar="ENDPOINT",
        help="Where the engine core listens for front ends; default: a private ipc socket.",
    )
    library.add_argument(
        "--worker-endpoint",
        metavar="ENDPOINT",
        help="Where the engine core listens for workers; default: a private ipc socket. With "
        "--executor ray and nodes elsewhere: tcp://ADDRESS:PORT that they reach.",
    )
    library.add_argument(
        "--report-fd",
        type=int,
        metavar="FD",
        help='Pipe that gets one JSON line, {"ready": true, "start": …} or {"error": '
        '"…"}. When its reader goes away, the system stops.',
    )
    parser.set_defaults(run=run_serve)


def run_serve(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C: 0, or 130 where Ctrl-C came before it was ready. Raises
    InvalidRequest and StartupError."""
    from penstock.cli.processes import OwnRole
    from penstock.supervisor.ahead import ForkedAhead
    from penstock.supervisor.replicas import EngineAddresses
    from penstock.supervisor.report import StartupReport
    from penstock.supervisor.system import SystemOptions, run_system

    report = None if arguments.report_fd is None else StartupReport(arguments.report_fd)
    try:
        config = _config(arguments)
        models = _models(config, arguments)
    except InvalidRequest as error:
        if report is not None:
            report.send_error(str(error))
        raise
    if report is None:  # Else a program started us, and there is no user to ask.
        for model in [entry.model for entry in models] or [config.engine.model.model]:
            offer_package(model)
    logs.setup("supervisor", level=config.log.log_level, form=config.log.log_format)
    set_title("supervisor")
    ahead = ForkedAhead()
    ahead.fork(_roles(config, models, http=not arguments.no_http), OwnRole())
    served = run_system(
        config,
        SystemOptions(
            announce=lambda url, model_dir: _announce(url, model_dir, config, models),
            http=not arguments.no_http,
            endpoints=EngineAddresses(arguments.frontend_endpoint, arguments.worker_endpoint),
            report=report,
            models=models,
            ahead=ahead,
        ),
    )
    return 0 if served else INTERRUPTED


def _roles(config: ServeConfig, models: tuple[ModelEntry, ...], *, http: bool) -> tuple[str, ...]:
    """Returns the role of each process that will be needed whatever the model is: first the one
    that has most to import."""
    engines = 0 if models else config.data_parallel_size
    workers = engines * config.engine.parallel.ranks if config.executor == "local" else 0
    return ("worker",) * workers + ("fork-server",) * http + ("engine",) * engines


def _config(arguments: argparse.Namespace) -> ServeConfig:
    config = resolve(arguments)
    _ = config.engine.speculation.config  # What it says wrongly is said before anything starts.
    flags.check_foreign_flags(arguments)
    if arguments.api_key is not None:
        if not arguments.api_key:
            raise InvalidRequest("--api-key is empty; `penstock key` makes one")
        os.environ[ENVIRONMENT] = arguments.api_key
    named = arguments.positional_models
    if not named:
        return config
    flag = getattr(arguments, "setting_model", named[0])
    if flag != named[0] or (len(named) > 1 and hasattr(arguments, "setting_model")):
        raise InvalidRequest(f"two models were named, {named[0]!r} and --model {flag!r}")
    return config if len(named) > 1 else replace_settings(config, {"model": named[0]})


def _models(config: ServeConfig, arguments: argparse.Namespace) -> tuple[ModelEntry, ...]:
    """Several models; empty: there is one. Raises InvalidRequest and ModelNotFound."""
    named, file = arguments.positional_models, config.models.models
    if file is None and len(named) < 2:
        return ()
    if file is not None and (named or hasattr(arguments, "setting_model")):
        raise InvalidRequest("models were named together with --models; put them into its list")
    for flag in ("no_http", "frontend_endpoint", "worker_endpoint"):
        if getattr(arguments, flag):
            raise InvalidRequest(
                f"--{flag.replace('_', '-')} is for one model; engine cores elsewhere are started "
                "by `penstock engine`, and named by --engine-endpoint NAME=ENDPOINT of a gateway"
            )
    check_for_several(config)
    if file is not None:
        entries = read_list(file)
    else:
        for model in named:
            check_could_be(model)
        entries = checked([ModelEntry(model=model) for model in named], "the models named")
    check_adapters(entries)
    for entry in entries:
        config_of(entry, config, len(entries))  # What is wrong is said before anything starts.
    return entries


def _announce(
    url: str, model_dir: Path | None, config: ServeConfig, models: tuple[ModelEntry, ...]
) -> None:
    """What a person at a terminal wants to see; the only thing on stdout."""
    if not url:
        return
    if model_dir is None:
        _announce_several(url, config, models)
        return
    model = load_manifest(model_dir)
    settings = config.engine.model
    name = next(iter(settings.served_names), model.name)
    has_keys = configured_keys(config.gateway) is not None
    line = curl_line(url, name, example_for(model, settings), has_keys=has_keys)
    how = f" (${ENVIRONMENT}: one of the API keys)" if has_keys else ""
    chat = "" if model.pooling else f"Chat: {url}/\n"
    _print(f"Penstock is ready: {name} on {url}\n{chat}Try it{how}:\n  {line}")


def _announce_several(url: str, config: ServeConfig, models: tuple[ModelEntry, ...]) -> None:
    has_keys = configured_keys(config.gateway) is not None
    names = ",".join(entry.name for entry in models)
    key = f' -H "authorization: Bearer ${ENVIRONMENT}"' if has_keys else ""
    _print(f"Penstock is ready: {names} on {url}\nWhat they are:\n  curl {url}/v1/models{key}")


def _print(text: str) -> None:
    """Writes to stdout. A full disk or a closed pipe doesn't end the server."""
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("stdout can't be written", reason=error.strerror)
        # What is left of it must not fail at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# The line that `penstock serve` prints for a first request: right for the model and the keys.


class Example(msgspec.Struct, frozen=True):
    """A request that such a model answers. body: without the model's name.  file: that a form sends
    in a body's place."""

    path: str
    body: dict[str, Any] = {}
    file: str = ""


CHAT = Example(
    "/v1/chat/completions",
    {
        "messages": [
            # The default model's own system prompt makes it ramble once its weights are quantised.
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "temperature": 0,
        "stream": True,
    },
)
COMPLETION = Example(
    "/v1/completions",
    {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0, "stream": True},
)
EMBEDDING = Example("/v1/embeddings", {"input": "The capital of France is Paris."})
CLASSIFICATION = Example("/classify", {"input": "The capital of France is Paris."})
TRANSCRIPTION = Example("/v1/audio/transcriptions", file="recording.wav")


def example_for(model: PreparedModel, settings: ModelSettings) -> Example:
    """What a model is asked that is served with these settings."""
    stated = model.pooling
    wanted = settings.runner == "pooling" or settings.convert != "auto"
    if settings.runner != "generate" and (stated is not None or wanted):
        labels = stated is not None and stated.labels and settings.convert != "embed"
        return CLASSIFICATION if labels else EMBEDDING
    if model.media is not None and model.media.transcription is not None:
        return TRANSCRIPTION
    chats = model.has_chat_template or settings.chat_template is not None
    return CHAT if chats else COMPLETION


def curl_line(url: str, model: str, example: Example = CHAT, *, has_keys: bool = False) -> str:
    """One line to paste into a shell. has_keys: it sends the key that the environment holds."""
    key = f' -H "authorization: Bearer ${ENVIRONMENT}"' if has_keys else ""
    target = f"{url}{example.path}"
    if example.file:
        return f"curl {target}{key} -F file=@{example.file}"
    json = msgspec.json.encode({"model": model, **example.body}).decode().replace("'", "'\\''")
    return f"curl -N {target} -H 'content-type: application/json'{key} -d '{json}'"
