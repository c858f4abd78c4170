"""How often drafted tokens turn out right, by their place in the draft and for each sequence."""

from __future__ import annotations

from collections.abc import Sequence

PLACES = 8
"""Places that are counted separately; the last stands for all after it, too."""


class Acceptance:
    """How often a draft at each place was right where those before it were. Counts with exponential
    decay; unseen places are as `first` says."""

    __slots__ = ("_fade", "_kept", "_together", "_tried")

    def __init__(
        self, fade: float, first: float = 0.0, weight: float = 0.0, *, together: bool = False
    ) -> None:
        """fade: of older observations.  first: the chance that is assumed, as if it had been seen
        `weight` times.  together: all places' counts fade with each token, so that one that had no
        draft for a while is as unknown as at first."""
        self._fade = fade
        self._together = together
        self._tried = [weight] * PLACES
        self._kept = [weight * first] * PLACES

    def observe(self, drafted: int, kept: int) -> None:
        """Counts that of so many drafts the first `kept` were right."""
        if self._together:
            self._fade_all()
        for place in range(min(drafted, kept + 1)):
            self._count(min(place, PLACES - 1), right=place < kept)

    def guessed(self, *, right: bool) -> None:
        """Whether the first draft would have been right, had there been one."""
        if self._together:
            self._fade_all()
        self._count(0, right=right)

    def _fade_all(self) -> None:
        self._tried = [each * self._fade for each in self._tried]
        self._kept = [each * self._fade for each in self._kept]

    def _count(self, place: int, *, right: bool) -> None:
        fade = 1.0 if self._together else self._fade
        self._tried[place] = self._tried[place] * fade + 1.0
        self._kept[place] = self._kept[place] * fade + right

    def by_place(self) -> list[float]:
        """The chance at each place that a draft there is right, if those before it are. There have
        to be observations, or a chance that is assumed."""
        return [kept / tried for kept, tried in zip(self._kept, self._tried, strict=True)]

    def blended(self, prior: Sequence[float], weight: float) -> list[float]:
        """The chances by place where observations may be few: `prior` counts as if it had been seen
        `weight` times."""
        return [
            (kept + each * weight) / (tried + weight)
            for kept, tried, each in zip(self._kept, self._tried, prior, strict=True)
        ]

    def chances(
        self, prior: Sequence[float], weight: float, most: int, least: float = 0.0
    ) -> list[float]:
        """For each of so many drafts the chance that it and all before it are right, up to the
        first where that is less than `least`. prior: chances by place (see `by_place`), as if each
        had been seen `weight` times."""
        tried, kept = self._tried, self._kept
        found: list[float] = []
        chance, at = 1.0, 0
        while len(found) < most:
            chance *= (kept[at] + prior[at] * weight) / (tried[at] + weight)
            if chance < least:
                break
            found.append(chance)
            at = min(at + 1, PLACES - 1)
        return found


KINDS = 64
"""Kinds of texts that are counted separately; the least recently seen one is evicted first."""

KIND_FADE, KIND_WEIGHT = 0.99, 10.0
"""Weight that an observation of a kind keeps after each later one, and how many of its own weigh as
much as what was seen of all texts."""


class ByKind:
    """Acceptance of the drafts of all sequences, and of each kind of texts."""

    __slots__ = ("_all", "_kinds")

    def __init__(self) -> None:
        self._all = Acceptance(KIND_FADE, first=0.7, weight=4.0)
        self._kinds: dict[bytes, Acceptance] = {}

    def of(self, kind: bytes) -> list[float]:
        """The chance at each place that a draft there is right, if those before it are."""
        prior, own = self._all.by_place(), self._kinds.get(kind)
        return prior if own is None else own.blended(prior, KIND_WEIGHT)

    def observe(self, kind: bytes, drafted: int, kept: int) -> None:
        """Takes in that the first `kept` of `drafted` drafts were right, in a text of that kind."""
        self._all.observe(drafted, kept)
        self._seen(kind).observe(drafted, kept)

    def guessed(self, kind: bytes, *, right: bool) -> None:
        """Whether the first draft would have been right, had there been one."""
        self._all.guessed(right=right)
        self._seen(kind).guessed(right=right)

    def _seen(self, kind: bytes) -> Acceptance:
        own = self._kinds.pop(kind, None) or Acceptance(KIND_FADE)
        self._kinds[kind] = own
        if len(self._kinds) > KINDS:
            del self._kinds[next(iter(self._kinds))]
        return own


FADE = 0.9
"""Weight that an observation of a sequence keeps after each later one: about the last ten count."""

PRIOR_WEIGHT = 2.0
"""Observations of its own that weigh as much as what was seen of all others."""

SHORT_PAUSE, LONG_PAUSE = 8, 512
"""Tokens without drafts after an attempt that failed: at first, and at most."""


class SequenceDrafts:
    """Kept from the first time that the worker can propose something for the sequence.

    Nothing here changes its output, so none of it has to outlive the engine core.
    """

    __slots__ = (
        "_acceptance",
        "_pause",
        "_rest",
        "drafted",
        "hoped",
        "informed",
        "kept",
        "kind",
        "proposed",
    )

    def __init__(self, kind: bytes = b"") -> None:
        """kind: of the text; others of the same kind are expected to be foretold alike."""
        self.kind = kind
        self.proposed = 0  # by the latest result: tokens that the worker could propose
        self.hoped = 0  # the same, and what it may propose after a step that isn't settled
        self.drafted = self.kept = 0  # so far
        self.informed = False  # the worker tells what undrafted tokens would have shown
        self._acceptance = Acceptance(FADE, together=True)
        self._rest = 0  # tokens until drafts are worth an attempt that isn't expected to pay
        self._pause = SHORT_PAUSE  # the next of these

    def chances(self, prior: Sequence[float], most: int, least: float = 0.0) -> list[float]:
        """For each of so many drafts the chance that it and all before it are right, up to the
        first where that is less than `least`. prior: that of all sequences, by place."""
        return self._acceptance.chances(prior, PRIOR_WEIGHT, most, least)

    def propose(self, count: int) -> None:
        """The worker could propose so many tokens to come next. Where it can't, it could a few
        steps ago, and may again."""
        self.proposed = count
        self.hoped = max(count, self.hoped - 1)

    def forget_proposed(self) -> None:
        """Forgets what the worker could propose: the sequence is at another token now."""
        self.proposed = self.hoped = 0

    @property
    def may_try(self) -> bool:
        """Whether an attempt is due that isn't expected to pay: to learn whether it would."""
        return not self.informed and self._rest <= 0

    def undrafted(self, guessed: bool | None) -> None:
        """A token came without drafts. guessed: see SlotResult."""
        self._rest -= 1
        if guessed is not None:
            self.informed = True
            self._acceptance.guessed(right=guessed)

    def observe(self, drafted: int, kept: int) -> None:
        """A token came, and of so many drafts after it the first `kept` were right."""
        self.drafted += drafted
        self.kept += kept
        self._acceptance.observe(drafted, kept)
        if kept:
            self._rest, self._pause = 0, SHORT_PAUSE
        else:
            self._rest, self._pause = self._pause, min(2 * self._pause, LONG_PAUSE)
