"""The container images, by `docker buildx bake` and deploy/docker/bake.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from deploy.release.running import ROOT, Refused, run

BAKE = ROOT / "deploy" / "docker" / "bake.json"


def names() -> list[str]:
    """The targets of a release."""
    groups = json.loads(BAKE.read_text(encoding="utf-8"))["group"]
    return list(groups["default"]["targets"])


def to_archives(folder: Path) -> list[str]:
    """The command that builds every image, for each of its platforms, into an OCI archive."""
    outputs = [f"--set={name}.output=type=oci,dest={folder / name}.tar" for name in names()]
    return [*_bake(), *outputs]


def to_registry() -> list[str]:
    """The command that pushes them, from the builder's cache."""
    return [*_bake(), "--push"]


def environment(version: str, repository: str = "penstock") -> dict[str, str]:
    """What bake.json reads: the images are REPOSITORY, REPOSITORY-gateway and so on."""
    revision = run(["git", "rev-parse", "HEAD"]).strip()
    return {"VERSION": version, "REVISION": revision, "REPOSITORY": repository}


def require_buildx() -> None:
    """Raises Refused where there is none."""
    try:
        run(["docker", "buildx", "version"])
    except Refused as error:
        raise Refused(
            f"images for several platforms need docker buildx ({error}); --without-images leaves "
            "them out"
        ) from None


def _bake() -> Sequence[str]:
    return ["docker", "buildx", "bake", "--file", str(BAKE.relative_to(ROOT))]
