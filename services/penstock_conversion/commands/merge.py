"""`penstock merge`: an adapter folded into its base model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.columns import columns, decimal
from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock_conversion.merge.run import MergedModel

MOST_SHARD_GB = 1000.0


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Folds an adapter (LoRA, DoRA) into its base model, and writes a folder in the Hugging "
        "Face format. Quantised bases are refused: merge first, then `penstock quantize`."
    )
    parser.epilog = examples(
        "penstock merge ./Qwen3-0.6B ./adapters/sql --output Qwen3-0.6B-sql",
        "penstock quantize ./Qwen3-0.6B-sql --to Q4_K_M",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "adapter", metavar="ADAPTER", help="A folder in PEFT's format, a .gguf file, or its name"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", help="Of the merged model (default: MODEL-ADAPTER, here)."
    )
    parser.add_argument(
        "--max-shard-gb",
        type=float,
        default=5.0,
        metavar="GB",
        help="Size of a file of weights, at most (default: 5); a larger matrix has its own.",
    )
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0. Raises InvalidRequest, ModelNotFound, UnsupportedModel, StartupError."""
    for name in ("model", "adapter"):
        if not getattr(arguments, name):
            raise InvalidRequest(f"{name.upper()} is empty")
    if not 0 < arguments.max_shard_gb <= MOST_SHARD_GB:
        raise InvalidRequest(
            f"--max-shard-gb is {arguments.max_shard_gb:g}; allowed are numbers above 0, up to"
            f" {MOST_SHARD_GB:g}"
        )
    import msgspec

    if arguments.output is None:
        names = (Path(each).name for each in (arguments.model, arguments.adapter))
        arguments.output = "-".join(names)
    outcome = _merged(arguments)
    if arguments.json:
        print(msgspec.json.encode(outcome, enc_hook=str).decode())
    else:
        rows = [
            ("folder", str(outcome.path)),
            ("size", f"{decimal(outcome.size)} in {outcome.files} file(s)"),
            ("changed", f"{outcome.modules:,} matrices"),
        ]
        print(columns(rows))
    return 0


def _merged(arguments: argparse.Namespace) -> MergedModel:
    from penstock_worker.machine.torch_import import import_torch

    import_torch()
    from penstock_conversion.merge.run import MergeOptions, merge

    return merge(
        MergeOptions(
            arguments.model,
            arguments.adapter,
            output=Path(arguments.output),
            most_shard_bytes=round(arguments.max_shard_gb * 1e9),
            cache_dir=arguments.cache_dir,
        )
    )
