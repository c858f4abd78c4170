"""How an item of media stands in a prompt: rows of embeddings, and the text around them."""

from __future__ import annotations

from typing import NamedTuple

from penstock.forms.form import ImageForm, ItemRun, Runs
from penstock.forms.video import VideoForm
from penstock.media.sound_layout import sound_rows
from penstock.model.media_facts import MediaFacts, MediaKind


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
        made = Runs.of(sound_rows(preparation, *shape))
    runs = tuple(
        ItemRun(run.text if number else own.before + run.text, run.rows)
        for number, run in enumerate(made.runs)
    )
    return ItemLayout(kind, runs, made.behind + own.behind, made.grid, made.marked)
