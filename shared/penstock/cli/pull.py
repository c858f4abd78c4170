"""`penstock pull`: a model, found or downloaded, and prepared."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Finds a model (alias, name on the hub, folder, .gguf file), downloads what is missing"
        " or has changed, and prepares it, so that a later start needs no network. An interrupted"
        " download resumes, and all hashes are checked. For a repository of GGUF files,"
        " NAME:Q4_K_M or NAME:FILE.gguf selects one. Prints the prepared folder."
    )
    parser.epilog = examples(
        "penstock pull smollm2-135m",
        "penstock pull owner/name --json",
        "penstock pull owner/name-GGUF:Q4_K_M",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.add_argument("--json", action="store_true", help="What was found, as JSON.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0. Raises ModelNotFound, UnsupportedModel, StartupError."""
    if not arguments.model:
        raise InvalidRequest("MODEL is empty")
    from penstock.prepare import prepare

    folder = prepare(arguments.model, cache_dir=arguments.cache_dir, progress=_say, fetch="newest")
    print(json.dumps(_facts(folder)) if arguments.json else folder)
    return 0


def _facts(folder: Path) -> dict[str, object]:
    from penstock.prepare import load_manifest

    model = load_manifest(folder)
    return {
        "folder": str(folder),
        "name": model.name,
        "source": model.source,
        "architecture": model.family,
        "max_model_len": model.config.max_position,
        "weights": model.weights.dtype,
        "files": list(model.weights.files),
        "bytes": sum(Path(file).stat().st_size for file in model.weights.files),
        "chat_template": model.has_chat_template,
        "digest": model.digest,
    }


def _say(words: str) -> None:
    print(f"penstock: {words}", file=sys.stderr)
