"""What the fake workers of a harness are like. Tests set these attributes: some say what the next
worker has and can do, the others how the present one behaves: whether it answers at once, for
example, and how many of its drafts are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.model.kv_layout import ONE_GROUP, KVGroup
from penstock_engine.facts import EngineFacts
from tests.engine.core_under_test import CoreUnderTest
from tests.engine.fake_disk import FakeDisk


class WorkerTraits(CoreUnderTest):
    """A core, and what its workers will be like."""

    def __init__(self, engine_facts: EngineFacts | None = None, **options: Any) -> None:
        super().__init__(engine_facts, **options)

        # ---- what workers that become ready have and can do

        self.fingerprint = "f"
        """What they compute with."""
        self.goes_on = False
        """Whether they compute extra steps by themselves."""
        self.kv_groups: tuple[KVGroup, ...] = ONE_GROUP
        self.media_rows = 0
        """0: they take no media."""
        self.media_work = 0
        """The work of each row that is encoded: see MediaReady."""
        self.encoder_rows = 0
        """Placeholders with which prompts begin; 0: items stand anywhere."""
        self.aligns = False
        """Whether they say when each word was spoken."""
        self.media_bytes = 0
        """Bytes of prepared items that they hold; 0: they don't say."""
        self.whole_spans = False
        self.reads_files = True
        """Whether they read items from files."""
        self.bad_media: set[str] = set()
        self.bad_adapters: set[str] = set()
        """Digests."""
        self.disk: FakeDisk | None = None
        """A disk that all of them have; None: they have none."""
        self.fail_prompts: set[tuple[int, ...]] = set()
        """With which a sequence always fails."""

        # ---- how the worker behaves: a test may change that at any time

        self.compile_at_once = True
        """Whether the worker has compiled a grammar as soon as it is told to."""
        self.adapters_at_once = True
        """Whether the worker loads adapters as soon as it is told to."""
        self.disk_at_once = True
        """Whether its disk answers at once."""
        self.late: Callable[[], bool] = lambda: False
        """Whether a grammar's mask comes too late for a step."""
        self.proposes: Callable[[], int] = lambda: 0
        """Tokens that the worker could draft next."""
        self.drafts: Callable[[int], tuple[int, int]] = lambda most: (most, most)
        """How many it drafts of so many at most, and how many of these are right."""
        self.disturbed: Callable[[], bool] = lambda: False
        """Whether a worker stops to compute extra steps by itself."""
        self.step_seconds: Callable[[], float] = lambda: 0.0
        """Seconds that the worker says a step took; 0: it says nothing of it."""
        self.encode_seconds: Callable[[], float] = lambda: 0.0
        """Seconds that it says a step took for its media; 0: it says nothing of it."""
        self.accuses = True
        """Whether the loss of a worker counts against what was in flight."""
