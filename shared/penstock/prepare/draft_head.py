"""A folder in the hub's format with a head that drafts for a model, as a Checkpoint."""

from __future__ import annotations

from penstock.families.eagle3 import read_eagle3
from penstock.formats.fields import Fields
from penstock.model.config import GenerationDefaults, HeadConfig, WeightFiles
from penstock.prepare.checkpoint import Checkpoint, check_config
from penstock.prepare.odd_values import odd_values_refused

NO_TOKENIZER = b"{}"
"""tokenizer.json of a head, whose tokens are those of the model that it drafts for."""


def read_head(stated: Fields) -> HeadConfig:
    """Raises UnsupportedModel for a head that isn't served."""
    with odd_values_refused(stated.where):
        config = read_eagle3(stated)
    check_config(config, stated.where)
    return config


def head_checkpoint(stated: Fields, weights: WeightFiles) -> Checkpoint:
    """Returns what a folder holds whose config.json is that of a head. Tokenizer, template and
    defaults of generation are those of the model that it drafts for."""
    return Checkpoint(
        config=read_head(stated),
        generation=GenerationDefaults(),
        weights=weights,
        tokenizer_json=NO_TOKENIZER,
        chat_template="",
        add_bos=False,
    )
