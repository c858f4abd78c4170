"""Bodies in which two places are large at once: every place that may grow, with everything that
multiplies it.

A pair of places becomes a body of some shape: both as large as they are taken, one of them small,
one beyond what is taken, or the whole as large as a body may be.  What is text is of a kind that
depends on pair and turn, so that other turns have others.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from penstock_gateway.http.operations import Operation
from testing.costs.answering_core import Answer
from testing.costs.fillers import KINDS, length_of
from testing.costs.recipes import Recipe
from tests.gateway.costs.edges import GROWING, UNKNOWN, edges, filling
from tests.gateway.costs.operations import by_path, example, models_of, operations, path_of
from tests.gateway.costs.sites import Filling, Leaf, Site, body_with, sites_of

LARGEST_BODY = 33_000_000
"""Bytes, a little less than a gateway takes."""
USUAL_BODY = 400_000
NUMBERS = {
    "n": 64,
    "best_of": 64,
    "n_cmpl": 64,
    "logprobs": 20,
    "top_logprobs": 20,
    "prompt_logprobs": 20,
    "n_probs": 20,
    "max_tokens": 512,
    "max_completion_tokens": 512,
    "n_predict": 512,
    "max_output_tokens": 512,
    "options.num_predict": 512,
    "truncate_prompt_tokens": 16,
    "dimensions": 1024,
    "top_n": 2048,
    "thinking_token_budget": 64,
    "thinking_budget": 64,
}
"""Whole numbers that multiply something, and a large value of each."""
FLAGS = (
    "stream",
    "logprobs",
    "echo",
    "return_token_ids",
    "return_tokens",
    "return_tokens_as_token_ids",
    "return_token_strs",
    "return_token_offsets",
    "return_prompt_text",
    "return_documents",
    "return_text",
    "with_pieces",
    "use_beam_search",
    "post_sampling_probs",
    "timings_per_token",
    "continue_final_message",
    "raw",
    "ignore_eos",
)
"""Switches that make an answer, or the work for it, larger."""
LONG_ANSWER = Answer(tokens=256)
ANYTHING = ("nested list", "nested object", "list", "table", "number", "schema")
"""What may stand where anything may, beside texts."""
SHAPES = ("edges", "few", "many", "beyond", "whole")


class Pair(NamedTuple):
    """Two places of an operation's bodies."""

    path: str
    field: Site
    multiplier: Site

    @property
    def name(self) -> str:
        return f"{self.path}: {self.field.name} ({self.field.kind}) x {self.multiplier.name}"

    @property
    def number(self) -> int:
        """A number of its own, which others' names don't change."""
        return zlib.crc32(self.name.encode())


def places_of(operation: Operation) -> tuple[list[Site], list[Site]]:
    """What may grow, and what multiplies it: of lists and objects those that take something, unless
    none does."""
    sites = sites_of(operation.body)
    growing = [site for site in sites if site.kind in GROWING]
    lists = [site for site in growing if site.kind in ("list", "table")]
    factors = [site for site in lists if _takes(operation.path, site)] or lists or growing
    numbers = [site for site in sites if site.kind == "number" and site.name in NUMBERS]
    flags = [site for site in sites if site.kind == "flag" and site.name in FLAGS]
    return growing, [*factors, *numbers, *flags]


def _takes(path: str, site: Site) -> bool:
    """Whether a gateway takes anything there, as far as is known."""
    return bool(edges().get(path, {}).get(f"{site.name} {site.kind}", 1))


def _is_rare(pair: Pair) -> bool:
    names = {*pair.field.path, *pair.multiplier.path}
    return not RARE.isdisjoint(names) or not _takes(pair.path, pair.field)


def pairs_of(operation: Operation) -> Iterator[Pair]:
    """Every growing place with every multiplier; of two lists in either role once."""
    growing, factors = places_of(operation)
    seen: set[frozenset[Site]] = set()
    for field, factor in itertools.product(growing, factors):
        both = frozenset((field, factor))
        if field != factor and both not in seen and apart(field, factor):
            seen.add(both)
            yield Pair(operation.path, field, factor)


def apart(field: Site, factor: Site) -> bool:
    """Whether both can be there: a place that holds the other is a list or an object."""
    shorter, longer = sorted((field, factor), key=lambda site: len(site.path))
    inside = longer.path[: len(shorter.path)] == shorter.path
    return not inside or (
        len(longer.path) > len(shorter.path) and shorter.kind in ("list", "table")
    )


@cache
def all_pairs() -> tuple[Pair, ...]:
    return tuple(pair for operation in operations() for pair in pairs_of(operation))


class Part(NamedTuple):
    """A place of a body, and how large it is there. kind: of its text."""

    site: Site
    size: int
    kind: str = "words"


def recipe_with(path: str, parts: Sequence[Part], most: int, name: str) -> Recipe | None:
    """The body in which these are as large as they should be, or smaller where it had more than
    `most` bytes. None where they don't go together in one body."""
    operation = by_path()[path]
    parts = list(parts)
    for _ in range(80):
        fillings = {part.site.path: _filled(part) for part in parts}
        try:
            body = body_with(operation.body, example(operation), fillings)
        except ValueError:
            return None
        if length_of(body) <= most:
            break
        growing = [part for part in parts if part.site.kind in GROWING]
        largest = max(growing, key=lambda part: part.size)
        at = parts.index(largest)
        parts[at] = largest._replace(size=max(1, largest.size // 2))
    models = models_of(operation)
    number = zlib.crc32(name.encode()) % 7
    long = any(part.site.kind == "number" for part in parts)
    return Recipe(
        name=name,
        model=models[number % len(models)],
        path=path_of(operation),
        body=body,
        answer=LONG_ANSWER if long else Answer(),
    )


def recipe_of(pair: Pair, shape: str, kind: str, *, most: int = USUAL_BODY) -> Recipe | None:
    """The body of a pair. kind: of a text, or of ANYTHING.  most: bytes.  None as recipe_with."""
    field, factor = _sizes(pair, shape, most)
    parts = (Part(pair.field, field, kind), Part(pair.multiplier, factor))
    return recipe_with(pair.path, parts, most, f"{pair.name}, {shape}, {kind}")


def _sizes(pair: Pair, shape: str, most: int) -> tuple[int, int]:
    field, factor = edge_of(pair.path, pair.field), edge_of(pair.path, pair.multiplier)
    match shape:
        case "few":
            return field, min(factor, 16)
        case "many":
            return min(field, 16), factor
        case "beyond":
            return field, 4 * factor
        case "whole":
            return max(field, most), factor
        case _:
            return field, factor


def edge_of(path: str, site: Site) -> int:
    """How much of a place is taken."""
    if site.kind not in GROWING:
        return 1
    return edges().get(path, {}).get(f"{site.name} {site.kind}") or UNKNOWN[site.kind]


def _filled(part: Part) -> Filling:
    site, size, kind = part
    if site.kind == "number":
        return Leaf(NUMBERS[site.name])
    if site.kind == "flag":
        return Leaf(True)
    if site.kind != "any" or kind not in ANYTHING:
        return filling(site, size, kind if kind in KINDS else "words")
    return Leaf(_anything(size, kind))


def _anything(size: int, kind: str) -> Any:
    match kind:
        case "nested list":
            return {"$nested": [min(size, 900), "list"]}
        case "nested object":
            return {"$nested": [min(size, 900), "object"]}
        case "list":
            return {"$many": [max(1, size // 4), "a"]}
        case "table":
            return {"$table": [max(1, size // 16), "a"]}
        case "number":
            return {"$number": size}
        case _:
            return {"$schema": [max(1, size // 64), 40]}


def kinds_of(site: Site) -> tuple[str, ...]:
    if site.kind == "text":
        return KINDS
    return (*ANYTHING, "words", "escapes") if site.kind == "any" else ("words",)


def every_product() -> Iterator[Recipe]:
    """Each pair in each shape, with three kinds of text."""
    for pair in all_pairs():
        kinds = kinds_of(pair.field)
        chosen = dict.fromkeys(kinds[(pair.number + n) % len(kinds)] for n in range(3))
        for shape, kind in itertools.product(SHAPES, chosen):
            most = LARGEST_BODY if shape == "whole" else 10 * USUAL_BODY
            made = recipe_of(pair, shape, kind, most=most)
            if made is not None:
                yield made


RARE = frozenset(
    (
        *("model", "id", "request_id", "cache_salt", "user", "metadata", "service_tier", "name"),
        *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "moderation"),
        *("prompt_cache_options", "session_id", "penstock_receipt", "guided_decoding_backend"),
        *("guided_whitespace_pattern", "whitespace_pattern", "media_io_kwargs", "keep_alive"),
        *("mm_processor_kwargs", "logits_processors", "kv_transfer_params", "vllm_xargs"),
        *("ec_transfer_params", "detail", "uuid", "audio", "web_search_options", "modalities"),
        *("client_metadata", "access_programs", "background_options", "context_management"),
        *("cache_control", "diagnostics", "inference_geo", "speed", "user_profile_id"),
        *("workspace_id", "billing_policy", "fallbacks", "fallback_credit_token", "container"),
        *("mcp_servers", "thread", "status", "server_label", "outcome", "file_id", "file_url"),
        *("image_url", "audio_url", "video_url", "input_audio", "samplers", "lora", "options"),
        *("num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa"),
        *("low_vram", "use_mmap", "use_mlock", "f16_kv", "logits_all", "vocab_only", "tfs_z"),
        *("embedding_only", "draft_num_predict", "repeat_last_n", "penalize_newline"),
        *("typical_p", "mirostat", "mirostat_eta", "mirostat_tau", "items", "data_1", "data_2"),
        *("queries", "prompt_embeds", "image", "images", "verbosity", "truncation"),
    )
)
"""Fields that have no effect on an answer, or are another name of a field: their pairs come less
often."""
RARELY = 12
LARGE_EVERY = 80
"""One in so many products of a turn is as large as a body may be."""


def pairs_of_turn(turn: int, turns: int) -> Iterator[tuple[Pair, int]]:
    """A part of the pairs, each with a number that chooses its shape and its kind of text: in
    `turns` turns that follow one another, every pair comes once; those of RARE fields, and of
    places that take nothing, in RARELY times as many."""
    for pair in all_pairs():
        own = turns * RARELY if _is_rare(pair) else turns
        if pair.number % own == turn % own:
            yield pair, pair.number // own + turn // own


def drawn(pair: Pair, draw: int) -> Recipe | None:
    """The body of a pair in the shape and kind of that number. None as recipe_with."""
    kinds = kinds_of(pair.field)
    large = draw % LARGE_EVERY == 0
    shape = "whole" if large else SHAPES[draw % (len(SHAPES) - 1)]
    most = LARGEST_BODY if large else USUAL_BODY
    return recipe_of(pair, shape, kinds[draw % len(kinds)], most=most)


def products_of_turn(turn: int, turns: int) -> Iterator[Recipe]:
    """The bodies of a turn's pairs."""
    made = (drawn(pair, draw) for pair, draw in pairs_of_turn(turn, turns))
    return (recipe for recipe in made if recipe is not None)
