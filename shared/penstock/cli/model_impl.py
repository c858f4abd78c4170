"""`--model-impl`, `--language-model-only` and `--mmproj` of the commands beside `serve`."""

from __future__ import annotations

from typing import get_args

from penstock.cli.parser import Parser
from penstock.config.settings import ModelImpl


def add_model_impl(parser: Parser) -> None:
    """Adds flags that say whose code describes the model's layers, and whether its tower is left
    out."""
    parser.add_argument(
        "--model-impl",
        choices=get_args(ModelImpl),
        default="auto",
        help="As for `penstock serve`; default: auto.",
    )
    parser.add_argument(
        "--language-model-only",
        action="store_true",
        help="As for `penstock serve`: leave out the vision and audio parts.",
    )
    parser.add_argument(
        "--mmproj",
        metavar="PATH",
        help="As for `penstock serve`: for a .gguf file, the file with its vision or audio part.",
    )
