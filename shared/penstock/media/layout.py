"""How an item of media stands in a prompt: rows of embeddings, and the text around them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from penstock.forms.form import ImageForm, ItemRun, Runs
from penstock.forms.video import VideoForm
from penstock.model.media_facts import MediaFacts, MediaKind
from penstock.model.sound_facts import SoundForm


class ItemLayout(NamedTuple):
    """kind: of media.  runs: one after the other, then `behind`.  grid: what positions depend on:
    (1, height, width) in embeddings of a picture that is cut into merged patches; (rows, columns)
    of tiles, (0, 0) if it isn't cut; VideoForm.grid's; nothing where positions just count.  marked:
    places of embeddings, counted through all runs, that have other tokens than the rest, and
    these."""

    kind: MediaKind
    runs: tuple[ItemRun, ...]
    behind: str
    grid: tuple[int, ...]
    marked: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """Embeddings in all."""
        return sum(run.rows for run in self.runs)


def layout(facts: MediaFacts, kind: MediaKind, shape: tuple[int, ...]) -> ItemLayout:
    """shape: of the item, as its process said: (height, width) in pixels of an upright picture,
    (samples,) of a sound, VideoShape of a video. Raises BadShape or BadLength."""
    own = facts.kinds[kind]
    preparation = own.preparation
    if isinstance(preparation, ImageForm | VideoForm):
        made = preparation.laid_out(shape)
    else:
        made = Runs.of(preparation.embeddings(*shape))
    runs = tuple(
        ItemRun(run.text if number else own.before + run.text, run.rows)
        for number, run in enumerate(made.runs)
    )
    return ItemLayout(kind, runs, made.behind + own.behind, made.grid, made.marked)


def beside_others(facts: MediaFacts, brought: Collection[MediaKind]) -> MediaFacts:
    """The facts of a prompt with media of these kinds, of a model that encodes sounds otherwise
    where there are pictures, too."""
    own = facts.kinds.get("audio")
    if own is None or not isinstance(own.preparation, SoundForm):
        return facts
    preparation = own.preparation.beside(brought)
    if preparation is own.preparation:
        return facts
    changed = msgspec.structs.replace(own, preparation=preparation)
    return msgspec.structs.replace(facts, kinds={**facts.kinds, "audio": changed})
