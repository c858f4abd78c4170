"""Random pictures in prompts, for our runner and for transformers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from penstock.forms.anyres import AnyresImages
from penstock.forms.canvas import CanvasImages
from penstock.forms.documents import DocumentImages
from penstock.forms.fitted import FittedImages
from penstock.forms.fixed import FixedImages
from penstock.forms.naflex import NaflexImages
from penstock.forms.overlapping import OverlappingImages
from penstock.forms.patches import PatchImages
from penstock.forms.pooled import PooledImages
from penstock.forms.registry import ImagePreparation
from penstock.forms.rows import RowImages
from penstock.forms.sheets import SheetImages
from penstock.forms.sliced import SlicedImages
from penstock.forms.twofold import TwofoldImages
from penstock.forms.windowed import WindowedImages
from penstock.media.layout import layout
from penstock.media.prepared import write
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.protocol.media import Media, MediaItem
from tests.worker.driver import Job
from tests.worker.media_prompts import media_prompt
from tests.worker.vision.omni import places
from tests.worker.vision.sheet_models import of_sheets
from tests.worker.vision.vision_cases import PLACEHOLDER, TEXT

WORDS = TEXT["vocab_size"] - 10


@dataclass(frozen=True)
class Prepared:
    """A picture: what the worker gets, and what a processor of transformers gives."""

    item: MediaItem
    content: bytes
    inputs: dict[str, np.ndarray]
    spans: tuple[int, ...]
    """Placeholders of each of its spans."""


def picture(preparation: ImagePreparation, size: int, seed: int) -> Prepared:
    """size: of whatever may differ, tiles or rows of patches."""
    random_ = np.random.default_rng(seed)
    shape, rows, grid = (1, 0, 0), 0, (0, 0)
    sizes: dict[str, np.ndarray] = {}
    match preparation:
        case FixedImages():
            shape = (1, preparation.height, preparation.width)
            rows, grid, spans = preparation.rows, (), (preparation.rows,)
        case TwofoldImages():
            shape = (1, preparation.side, preparation.side)
            rows, grid, spans = preparation.rows, (), (preparation.rows,)
            large = (1, preparation.large, preparation.large, 3)
            sizes = {"large": random_.integers(0, 256, large, np.uint8)}
        case PatchImages():
            side = preparation.patch * preparation.merge
            shape = (1, size * side, (size + 2) * side)
            rows, grid = size * (size + 2), (1, size, size + 2)
            spans = (rows,)
        case PooledImages():
            side = preparation.square
            shape, rows, grid = (1, size * side, (size + 2) * side), size * (size + 2), ()
            spans = (rows,)
        case CanvasImages():
            shape = (size + (size > 1), preparation.tile, preparation.tile)
            rows, grid = shape[0] * preparation.rows, (1, size)
            spans = (rows,)
        case FittedImages():
            shape = (size + (size > 1), preparation.tile, preparation.tile)
            rows, grid = shape[0] * preparation.rows, (1, size)
            spans = (preparation.rows,) * shape[0]
        case RowImages():
            side = preparation.patch
            shape = (1, size * side, (size + 2) * side)
            rows, grid = size * (size + 2), ()
            spans = (size + 2,) * size if preparation.row_end else (rows,)
        case (
            NaflexImages()
            | SlicedImages()
            | DocumentImages()
            | SheetImages()
            | WindowedImages()
            | OverlappingImages()
        ):
            return _in_parts(preparation, size, random_)
        case AnyresImages():
            seen = 10 * size + 3, 30
            made = preparation.prepare(Image.new("RGB", (seen[1], seen[0])))["pixels"]
            facts = KindFacts(preparation=preparation, placeholder="i", token="i", token_id=1)
            rows = layout(MediaFacts(kinds={"image": facts}), "image", seen).rows
            shape, grid, spans = made.shape[:3], (), (rows,)
            sizes = {"size": np.array(seen, np.int32)}
        case _:
            shape = (size, preparation.tile, preparation.tile)
            rows, grid, spans = size * preparation.rows, (1, size), (preparation.rows,) * size
    arrays = {"pixels": random_.integers(0, 256, (*shape, 3), np.uint8)} | sizes
    content = write(arrays)
    digest = hashlib.sha256(content).hexdigest()
    item = MediaItem(digest, "image", rows, len(content), digest, grid)
    return Prepared(item, content, preparation.inputs(arrays), spans)


def _in_parts(
    preparation: NaflexImages
    | SlicedImages
    | DocumentImages
    | SheetImages
    | WindowedImages
    | OverlappingImages,
    size: int,
    random_: np.random.Generator,
) -> Prepared:
    """A picture of 1 is whole; larger ones are tiles and the whole."""
    high = 9 * size + 3
    if isinstance(preparation, WindowedImages):
        high = 18 * size + 9
    if isinstance(preparation, DocumentImages):
        high = 2 * size * preparation.tile // 3
    noise = random_.integers(0, 256, (high, 20, 3), np.uint8)
    arrays = preparation.prepare(Image.fromarray(noise))
    facts = KindFacts(preparation=preparation, placeholder="i", token="i", token_id=1)
    laid = layout(MediaFacts(kinds={"image": facts}), "image", noise.shape[:2])
    content = write(arrays)
    digest = hashlib.sha256(content).hexdigest()
    item = MediaItem(digest, "image", laid.rows, len(content), digest, laid.grid)
    spans = tuple(run.rows for run in laid.runs)
    return Prepared(item, content, preparation.inputs(arrays), spans)


Part = list[int] | Prepared


def prompt_of(parts: Sequence[Part]) -> tuple[list[int], Media | None]:
    """Token ids with placeholders, and what these stand for. A tile is followed by a token.
    Molmo 2's pictures, whose rows are pooled from patches, see one another."""
    joined = any("pooled" in part.inputs for part in parts if isinstance(part, Prepared))
    return media_prompt(parts, after=[7], joined=joined)


def words(count: int, seed: int) -> list[int]:
    choose_ = random.Random(seed)
    return [choose_.randrange(3, WORDS) for _ in range(count)]


def prompts(preparation: ImagePreparation) -> list[list[Part]]:
    """Text; a picture between words, at the beginning, and twice; two of different sizes."""
    small, large = picture(preparation, 1, 1), picture(preparation, 3, 2)
    return [
        [words(40, 0)],
        [words(5, 1), large, words(9, 2)],
        [large, words(3, 3)],
        [words(70, 4), small, words(1, 5), large, words(20, 6)],
        [words(2, 7), small, words(4, 8), small, words(30, 9)],
    ]


def job_of(parts: Sequence[Part], wanted: int, *, whole_spans: bool = False) -> Job:
    tokens, media = prompt_of(parts)
    return Job(tokens, wanted, media=media, whole_spans=whole_spans)


def text_of(tokens: list[int]) -> list[int]:
    """What is before a placeholder in an answer, which transformers would take for a picture."""
    return tokens[: tokens.index(PLACEHOLDER)] if PLACEHOLDER in tokens else tokens


def theirs_of(model: Any, parts: Sequence[Part], more: Sequence[int] = ()) -> torch.Tensor:
    """transformers' logits of the prompt and more tokens, [tokens, vocab]."""
    tokens, _ = prompt_of(parts)
    given: torch.Tensor | None = torch.tensor([tokens + list(more)])
    shown = [part for part in parts if isinstance(part, Prepared)]
    also: dict[str, Any] = {}
    if shown:
        also = pixels_of(model, shown)
        if "grid_thw" in shown[0].inputs:
            grids = [torch.from_numpy(each.inputs["grid_thw"]).long() for each in shown]
            also["image_grid_thw"] = torch.stack(grids)
            also["pixel_values"] = as_given(model, also["pixel_values"], grids)
        elif hasattr(model.config, "scale_factor"):
            also["pixel_values"] = also["pixel_values"][None]
        kinds = (given == PLACEHOLDER).int()
        name = type(model).__name__
        if "target_sizes" in also:
            with torch.inference_mode():
                also = {"inputs_embeds": _with_parts(model, given, **also)}
            given = None
        if "Omni" in name:
            also["position_ids"] = places(tokens + list(more), also["image_grid_thw"].tolist())
        elif any(each in name for each in ("Qwen", "Paddle", "Glm")):
            also["mm_token_type_ids"] = kinds
        if "Gemma3" in name:
            also["token_type_ids"] = kinds
        if "Gemma4" in name:
            also["mm_token_type_ids"] = kinds
        if "Gemma4Unified" in name:
            also["attention_mask"] = masks_of(model, kinds)
    with torch.inference_mode():
        found: torch.Tensor = model(given, **also).logits[0].float()
    if "Granite4" in type(model).__name__:
        return found
    # As the makers' models have it, and transformers' Cohere2ForCausalLM.
    found = found * getattr(model.config.get_text_config(), "logit_scale", 1.0)
    # transformers' GraniteForCausalLM divides its logits, but LLaVA-NeXT's class doesn't.
    return found / getattr(model.config.get_text_config(), "logits_scaling", 1.0)


def as_given(model: Any, patches: torch.Tensor, grids: Sequence[torch.Tensor]) -> torch.Tensor:
    """The patches of pictures, one after another, as the model's own processor gives them:
    PaddleOCR-VL's and Kimi K2.5's stand row by row, and are small pictures."""
    name, vision = type(model).__name__, model.config.vision_config
    if "Paddle" not in name and "Kimi" not in name:
        return patches
    side = vision.spatial_merge_size if "Paddle" in name else vision.merge_kernel_size[0]
    parts = patches.split([int(grid.prod()) for grid in grids])
    found = []
    for part, (_, rows, columns) in zip(parts, grids, strict=True):
        squares = part.view(int(rows) // side, int(columns) // side, side, side, -1)
        found.append(squares.transpose(1, 2).flatten(0, 3))
    patch = vision.patch_size
    return torch.cat(found).unflatten(1, (3, patch, patch))


def of_one(rows: Any) -> torch.Tensor:
    """The rows of the only picture: a class of transformers gives those of each, or of all."""
    found: torch.Tensor = rows if isinstance(rows, torch.Tensor) else rows[0]
    return found


def masks_of(model: Any, kinds: torch.Tensor) -> Any:
    """What tokens see in Gemma 4 12B as it generates. Its forward alone lets pictures see what is
    behind in all layers; so, and in Gemma 4's class, only in those with a window. kinds: int,
    [prompts, tokens]; 1: a picture's, 2: a video's."""
    blank = torch.empty(*kinds.shape, 1)
    return model.create_masks_for_generate(
        model.config, blank, None, None, None, mm_token_type_ids=kinds
    )


def pixels_of(model: Any, shown: Sequence[Prepared]) -> dict[str, Any]:
    """Pictures of different sizes as a processor of transformers gives them: filled up with zeros,
    to be cut off."""
    if model.config.model_type == "phi4_multimodal":
        return of_sheets(model, [each.inputs for each in shown])
    if "Phi3V" in type(model).__name__:
        return {
            "pixel_values": [torch.from_numpy(each.inputs["pixel_values"]) for each in shown],
            "forms": [each.inputs["tile_grid"].tolist() for each in shown],
        }
    if "pooled" in shown[0].inputs:
        named = ("pixel_values", "pooled", "marks")
        return {key: [torch.from_numpy(each.inputs[key]) for each in shown] for key in named}
    if "spatial_shapes" in shown[0].inputs:
        vision = model.config.vision_config
        patch = getattr(vision, "sam_config", vision).patch_size
        if model.config.model_type in ("deepseek_ocr2", "step3p7"):
            return _pages_of(shown, patch)
        return (_strips_of if "MiniCPM" in type(model).__name__ else _parts_of)(shown, patch)
    pixels = [torch.from_numpy(each.inputs["pixel_values"]) for each in shown]
    if model.config.model_type == "deepseek_vl_hybrid":
        large = [torch.from_numpy(each.inputs["large_pixel_values"]) for each in shown]
        return {"pixel_values": torch.cat(pixels), "high_res_pixel_values": torch.cat(large)}
    if model.config.model_type == "gemma4":
        return patches_of(pixels, model.config.vision_config.patch_size)
    if model.config.model_type == "gemma4_unified":
        return patches_of(pixels, model.config.vision_config.model_patch_size)
    sizes = [each.inputs.get("image_size") for each in shown]
    if any(size is not None for size in sizes):
        tiles = max(map(len, pixels))
        filled = [functional.pad(each, (0, 0) * 3 + (0, tiles - len(each))) for each in pixels]
        found = torch.stack([torch.from_numpy(each) for each in sizes if each is not None])
        return {"pixel_values": torch.stack(filled), "image_sizes": found.long()}
    if model.config.vision_config.model_type == "pixtral":
        own = torch.tensor([each.shape[2:] for each in pixels])
        high, wide = own.amax(0).tolist()
        pixels = [
            functional.pad(each, (0, wide - each.shape[3], 0, high - each.shape[2]))
            for each in pixels
        ]
        return {"pixel_values": torch.cat(pixels), "image_sizes": own}
    return {"pixel_values": torch.cat(pixels)}


def patches_of(pixels: Sequence[torch.Tensor], patch: int) -> dict[str, torch.Tensor]:
    """Patches with colours last, and the column and row of each, filled up with zeros and -1."""
    patches, places = [], []
    for each in pixels:
        cut = each[0].unflatten(1, (-1, patch)).unflatten(3, (-1, patch))
        rows, columns = cut.shape[1], cut.shape[3]
        patches.append(cut.permute(1, 3, 2, 4, 0).flatten(0, 1).flatten(1))
        grid = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy")
        places.append(torch.stack(grid, -1).flatten(0, 1))
    most = max(map(len, patches))
    return {
        "pixel_values": torch.stack(
            [functional.pad(each, (0, 0, 0, most - len(each))) for each in patches]
        ),
        "image_position_ids": torch.stack(
            [functional.pad(each, (0, 0, 0, most - len(each)), value=-1) for each in places]
        ),
    }


def _parts_of(shown: Sequence[Prepared], patch: int) -> dict[str, torch.Tensor]:
    """Pictures in parts, each filled up with zeros, whose patches have colours last."""
    shapes = torch.cat([torch.from_numpy(each.inputs["spatial_shapes"]) for each in shown]).long()
    patches = torch.cat([torch.from_numpy(each.inputs["pixel_values"]) for each in shown])
    flat = patches.view(-1, 3, patch, patch).permute(0, 2, 3, 1).flatten(1)
    counts = shapes.prod(1).tolist()
    parts = [
        functional.pad(each, (0, 0, 0, max(counts) - len(each))) for each in flat.split(counts)
    ]
    masks = [torch.arange(max(counts)) < count for count in counts]
    return {
        "pixel_values": torch.stack(parts),
        "spatial_shapes": shapes,
        "pixel_attention_mask": torch.stack(masks).int(),
    }


def _pages_of(shown: Sequence[Prepared], patch: int) -> dict[str, Any]:
    """Pages, and apart from them the tiles of all."""
    tiles, pages, counts = [], [], []
    for each in shown:
        shapes = each.inputs["spatial_shapes"].tolist()
        patches = torch.from_numpy(each.inputs["pixel_values"])
        parts = [
            part.view(rows, columns, 3, patch, patch)
            .permute(2, 0, 3, 1, 4)
            .flatten(3)
            .flatten(1, 2)
            for part, (rows, columns) in zip(
                patches.split([rows * columns for rows, columns in shapes]), shapes, strict=True
            )
        ]
        tiles += parts[:-1]
        pages.append(parts[-1])
        counts.append(each.inputs.get("tile_grid", len(parts) - 1))
    found = {"pixel_values": torch.stack(pages), "num_local_patches": counts}
    return found | {"pixel_values_local": torch.stack(tiles)} if tiles else found


def _strips_of(shown: Sequence[Prepared], patch: int) -> dict[str, torch.Tensor]:
    """Pictures in parts, whose patches stand side by side."""
    shapes = torch.cat([torch.from_numpy(each.inputs["spatial_shapes"]) for each in shown])
    patches = torch.cat([torch.from_numpy(each.inputs["pixel_values"]) for each in shown])
    strip = patches.view(-1, 3, patch, patch).permute(1, 2, 0, 3).flatten(2)
    return {"pixel_values": strip[None], "target_sizes": shapes}


def rows_of_parts(
    model: Any, pixel_values: torch.Tensor, target_sizes: torch.Tensor
) -> torch.Tensor:
    """transformers' rows of pictures in parts, each by itself: those of several sizes don't go
    through MiniCPM-V's tower together there."""
    patch, found = model.config.vision_config.patch_size, []
    strips = pixel_values.split([patch * int(size.prod()) for size in target_sizes], 3)
    for strip, size in zip(strips, target_sizes, strict=True):
        found += model.model.get_image_features(strip, size[None]).pooler_output
    return torch.cat(found)


def _with_parts(model: Any, given: torch.Tensor, **pixels: torch.Tensor) -> torch.Tensor:
    """The prompt's embeddings, with a picture's rows in their places."""
    embedded = model.get_input_embeddings()(given)
    seen = (given == PLACEHOLDER)[..., None].expand_as(embedded)
    found: torch.Tensor = embedded.masked_scatter(seen, rows_of_parts(model, **pixels))
    return found
