"""Flags that say how a model's files are read, for the commands other than `serve`."""

from __future__ import annotations

import argparse
from typing import get_args

from penstock.cli.parser import Parser
from penstock.config.settings import ModelImpl, ModelSettings
from penstock.prepare.overrides import overrides_of


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
    for name in ("hf-overrides", "rope-scaling"):
        parser.add_argument(
            f"--{name}", default="", metavar="JSON", help="As for `penstock serve`."
        )


def overrides_given(arguments: argparse.Namespace) -> str:
    """What `prepare` is given for these flags. Raises StartupError."""
    return overrides_of(
        ModelSettings(hf_overrides=arguments.hf_overrides, rope_scaling=arguments.rope_scaling)
    )
