"""What a release is made of: one version everywhere, images that the Dockerfile has, a chart that
is the tree's, sums that tell of a changed file."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from deploy.release import __main__ as release
from deploy.release import chart, images, versions, wheels
from deploy.release.__main__ import check_sums, write_sums
from deploy.release.running import ROOT, Refused, run

DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
BAKE = json.loads((ROOT / "deploy/docker/bake.json").read_text(encoding="utf-8"))
TARGETS = {name: each for name, each in BAKE["target"].items() if name != "common"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that have the version."""
    for path in {place.path for place in versions.PLACES} | {versions.CHANGELOG}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def test_one_version_everywhere() -> None:
    assert versions.disagreements() == []


def test_it_is_written_into_every_file(tree: Path) -> None:
    versions.set_version("1.2.3rc4", tree)
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == "1.2.3rc4"
    described = yaml.safe_load((tree / "deploy/helm/penstock/Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == ("1.2.3-rc.4", "1.2.3rc4")
    assert versions.disagreements(tree) == ["CHANGELOG.md has no entry for 1.2.3rc4"]


@pytest.mark.parametrize("place", versions.PLACES[1:], ids=lambda place: place.before.strip())
def test_a_file_with_another_version_is_named(place: versions.Place, tree: Path) -> None:
    path = tree / place.path
    path.write_text(place.pattern().sub(r"\g<1>9.9.9\g<3>", path.read_text()))
    (said,) = versions.disagreements(tree)
    assert place.path in said
    assert "9.9.9" in said


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3-rc.1", ""])
def test_what_is_no_version_is_refused(version: str, tree: Path) -> None:
    with pytest.raises(Refused, match="is no version"):
        versions.set_version(version, tree)
    assert versions.current(tree) == versions.current()


@pytest.mark.parametrize("place", versions.PLACES, ids=lambda place: place.before.strip())
def test_a_place_without_a_line_for_it_leaves_all_as_they_were(
    place: versions.Place, tree: Path
) -> None:
    path = tree / place.path
    path.write_text(place.pattern().sub("", path.read_text()))
    before = {each.path: (tree / each.path).read_text() for each in versions.PLACES}
    with pytest.raises(Refused, match=re.escape(f"{place.path} has no line {place.before}")):
        versions.set_version("9.9.9", tree)
    assert {each.path: (tree / each.path).read_text() for each in versions.PLACES} == before


def test_images_are_stages_of_the_dockerfile_with_arguments_that_it_has() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    common = BAKE["target"]["common"]
    assert set(common["args"]) <= arguments
    assert common["platforms"] == ["linux/amd64", "linux/arm64"]
    assert {each["target"] for each in TARGETS.values()} <= stages
    assert set(images.names()) == set(TARGETS)
    used = set(re.findall(r"\$\{(\w+)", json.dumps(BAKE["target"])))
    assert used == set(BAKE["variable"])


def test_images_have_the_names_that_the_chart_takes() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/penstock/values.yaml").read_text())
    assert BAKE["variable"]["REPOSITORY"]["default"] == values["image"]["repository"]
    tags = {name: each["tags"] for name, each in TARGETS.items()}
    assert tags.pop("all-in-one") == ["${REPOSITORY}:${VERSION}"]
    assert tags == {name: [f"${{REPOSITORY}}-{name}:${{VERSION}}"] for name in tags}


def test_bake_reads_it() -> None:
    """Buildx itself reads it, where there is one."""
    try:
        run(["docker", "buildx", "version"])
    except Refused:
        pytest.skip("no docker buildx here")
    said = run([*images.to_registry()[:-1], "--print"], environment={"VERSION": "1.2.3"})
    plan = json.loads(said[said.index("{") :])
    assert set(plan["target"]) == set(TARGETS)
    assert plan["target"]["worker"]["tags"] == ["penstock-worker:1.2.3"]
    assert plan["target"]["all-in-one"]["args"]["VERSION"] == "1.2.3"


def test_the_whole_server_has_what_all_installs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (everything,) = extras["optional-dependencies"]["all"]
    stage = DOCKERFILE.partition("FROM torch AS all-in-one-build")[2]
    words = re.search(r"requirements\.py (.*) \$\{EXTRAS\}", stage)
    assert words is not None
    assert set(words[1].split()) == set(everything.partition("[")[2].rstrip("]").split(","))


def test_the_chart_is_the_tree_and_its_bytes_do_not_depend_on_time(tmp_path: Path) -> None:
    first = chart.package("1.2.3", tmp_path / "first")
    second = chart.package("1.2.3", tmp_path / "second")
    assert first.name == "penstock-1.2.3.tgz"
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    source = ROOT / "deploy/helm"
    found = {path.relative_to(source) for path in source.glob("penstock/**/*") if path.is_file()}
    unpacked = (tmp_path / "unpacked").rglob("*")
    held = {path.relative_to(tmp_path / "unpacked") for path in unpacked if path.is_file()}
    assert found - held == {Path("penstock/.helmignore")}
    assert held < found
    for path in held:
        assert (tmp_path / "unpacked" / path).read_bytes() == (source / path).read_bytes()


def packed(chart_folder: Path, folder: Path) -> set[str]:
    """The names in the archive of a chart."""
    with tarfile.open(chart.package("1.2.3", folder, chart_folder)) as archive:
        return {name.removeprefix("mine/") for name in archive.getnames()}


def test_what_git_or_helm_ignores_is_not_packed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for name in ("Chart.yaml", "a.orig", "note.secret", "old/b.yaml", "templates/old"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(name)
    (mine / ".helmignore").write_text("# names\n\n*.orig\nold/\n")
    kept = {"Chart.yaml", "templates/old"}
    assert packed(mine, tmp_path / "copy") == {*kept, "note.secret"}, "no repository"
    (tmp_path / ".gitignore").write_text("*.secret\n")
    run(["git", "init", "--quiet"], folder=tmp_path)
    assert packed(mine, tmp_path / "repository") == kept
    (mine / ".helmignore").write_text("!Chart.yaml\n")
    with pytest.raises(Refused, match=r"'!Chart\.yaml': only patterns of one name"):
        packed(mine, tmp_path / "refused")


def test_sums_tell_of_what_was_changed(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.whl", "images/b.tar"):
        (tmp_path / name).write_bytes(name.encode())
    write_sums(tmp_path)
    assert f"{hashlib.sha256(b'a.whl').hexdigest()}  a.whl\n" in (
        tmp_path / "SHA256SUMS"
    ).read_text(encoding="utf-8")
    check_sums(tmp_path)
    (tmp_path / "a.whl").write_bytes(b"other")
    (tmp_path / "more").touch()
    with pytest.raises(Refused, match=r"a\.whl, more in .* not as SHA256SUMS has it"):
        check_sums(tmp_path)


def test_machines_without_a_compiler_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="'riscv64', only for x86_64, aarch64"):
        wheels.environment_for("riscv64")
    monkeypatch.setenv("PATH", "/nowhere")
    for machine in wheels.MACHINES:
        with pytest.raises(Refused, match=f"a wheel for {machine} needs the compiler"):
            wheels.environment_for(machine)


def publishing(folder: Path, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool) -> None:
    """What `publish` does where `build` writes into the folder."""
    monkeypatch.setattr(release, "DIST", folder)
    names = {"repository": "localhost/penstock", "charts": "oci://localhost/charts"}
    release.publish(argparse.Namespace(**names, dry_run=dry_run))


def test_what_is_not_built_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=r"isn't built: make release"):
        publishing(tmp_path, monkeypatch, dry_run=True)


def test_a_dry_run_prints_what_would_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = versions.current()
    folder = tmp_path / version
    folder.mkdir()
    wheel = folder / f"penstock_llm-{version}-py3-none-manylinux_2_28_x86_64.whl"
    wheel.touch()
    write_sums(folder)
    publishing(tmp_path, monkeypatch, dry_run=True)
    settings, bake, helm, git, twine = capsys.readouterr().out.splitlines()
    assert "REPOSITORY=localhost/penstock" in settings
    assert bake == "docker buildx bake --file deploy/docker/bake.json --push"
    assert helm.startswith("helm push ")
    assert helm.endswith(" oci://localhost/charts")
    assert git == f"git push origin v{version}"
    assert twine.endswith(f"twine upload {wheel}")


def test_only_a_whole_build_of_the_commit_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command of `publish` is run: each case is refused before, the last one for its sums."""
    monkeypatch.setattr(release, "require_released", lambda version: "c0ffee")
    folder = tmp_path / versions.current()
    (folder / "images").mkdir(parents=True)
    named = {f"images/{name}.tar": f"images/{name}.tar" for name in TARGETS}
    named |= {"p-1.tar.gz": "*.tar.gz", "penstock-1.tgz": "*.tgz"}
    for machine in ("x86_64", "aarch64"):
        named[f"p-1-py3-none-manylinux_2_28_{machine}.whl"] = f"*_{machine}.whl"
    for name in named:
        (folder / name).touch()
    (folder / "SHA256SUMS").write_text("")
    with pytest.raises(Refused, match="is a trial, which isn't published"):
        publishing(tmp_path, monkeypatch, dry_run=False)
    (folder / "COMMIT").write_text("badcafe\n")
    with pytest.raises(Refused, match=r"was built of badcafe, not of c0ffee"):
        publishing(tmp_path, monkeypatch, dry_run=False)
    (folder / "COMMIT").write_text("c0ffee\n")
    for name, words in named.items():
        (folder / name).unlink()
        with pytest.raises(Refused, match=re.escape(f"lacks {words}: make release")):
            publishing(tmp_path, monkeypatch, dry_run=False)
        (folder / name).touch()
    with pytest.raises(Refused, match="not as SHA256SUMS has it"):
        publishing(tmp_path, monkeypatch, dry_run=False)


@pytest.mark.parametrize("trial", [True, False])
def test_only_a_build_of_a_tagged_commit_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, trial: bool
) -> None:
    """With a source distribution that is there already, and no wheels."""

    def source(folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "p-1.tar.gz").touch()
        return folder / "p-1.tar.gz"

    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    commits = ["c0ffee"] * 2 + ["c0ffee", "badcafe"]
    monkeypatch.setattr(release, "require_released", lambda version: commits.pop(0))
    monkeypatch.setattr(release, "run", lambda command: "")
    monkeypatch.setattr(wheels, "source_distribution", source)
    monkeypatch.setattr(wheels, "MACHINES", ())
    folder = release.DIST / versions.current()
    flags = argparse.Namespace(machine=None, trial=trial, without_images=True)
    release.build(flags)
    assert (folder / "COMMIT").exists() is not trial
    if not trial:
        assert (folder / "COMMIT").read_text() == "c0ffee\n"
        assert "  COMMIT\n" in (folder / "SHA256SUMS").read_text()
        with pytest.raises(Refused, match="another commit was checked out"):
            release.build(flags)


def test_a_commit_without_the_tag_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command of `publish` is run: they would be refused in other words."""
    monkeypatch.setattr(versions, "current", lambda: "0.0.0")
    monkeypatch.setattr(versions, "entries", lambda: [("0.0.0", "2026-01-01")])
    (tmp_path / "0.0.0").mkdir()
    write_sums(tmp_path / "0.0.0")
    with pytest.raises(Refused, match=r"aren't committed|lacks the tag: git tag -a v0\.0\.0"):
        publishing(tmp_path, monkeypatch, dry_run=False)
