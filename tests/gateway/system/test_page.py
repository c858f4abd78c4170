"""The page's files over HTTP: each is there, nothing else is, and no browser is led astray."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest

import penstock_gateway
from penstock.config.settings import GatewayConfig
from penstock.recommend.fits import Machine, fits
from penstock.recommend.releases import BETTER
from penstock_gateway.system import page
from penstock_gateway.system.page import VENDORED
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keys.test_access import ask
from tests.gateway.live_gateway import LiveGateway

WEB = Path(penstock_gateway.__file__).parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


def on_disk() -> dict[str, Path]:
    """Path of the URL -> file."""
    found = {f"/{file.relative_to(WEB).as_posix()}": file for file in WEB.rglob("*.*")}
    del found["/docs.html"]
    return {("/" if path == "/index.html" else path): file for path, file in found.items()}


async def test_every_file_is_served_as_it_is(http: httpx.AsyncClient) -> None:
    files = on_disk()
    assert {"/", "/app.js", "/style.css", "/chat/stream.js"} <= set(files)
    for path, file in files.items():
        reply = await http.get(path)
        assert reply.status_code == 200
        if path != "/":
            assert reply.content == file.read_bytes()
        assert reply.headers["content-type"] == TYPES[file.suffix]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cache-control"] == "no-cache"


async def test_better_models_are_named_with_what_recommend_says_of_them(
    http: httpx.AsyncClient,
) -> None:
    """In place of a comment, and the rest is the file."""
    said = (await http.get("/")).text
    rows = re.findall(
        r"<li>([\d.]+) GiB of memory, an estimated (\d+) tokens a second where memory reads"
        r" 30 GB/s: <code>make serve MODEL=([^<]+)</code></li>",
        said,
    )
    ordinary = Machine(0, 0, "", 2, "avx2", 30e9, "")
    known = {fit.model: fit for fit in fits(ordinary)}
    assert [name for _, _, name in rows] == list(BETTER)
    for gib, speed, name in rows:
        assert float(gib) == pytest.approx(known[name].memory / 2**30, abs=0.05)
        assert int(speed) == round(known[name].tokens_per_s or 0)
    pieces = (WEB / "index.html").read_text().split("<!-- better models -->")
    assert len(pieces) == 2
    assert said.startswith(pieces[0])
    assert said.endswith(pieces[1])


async def test_the_policy_lets_nothing_in(http: httpx.AsyncClient) -> None:
    sent = (await http.get("/")).headers["content-security-policy"]
    policy = dict(each.strip().split(" ", 1) for each in sent.split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "media-src": "blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


async def test_who_has_a_file_gets_no_second_one(http: httpx.AsyncClient) -> None:
    tag = (await http.get("/app.js")).headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        reply = await http.get("/app.js", headers={"if-none-match": sent})
        assert (reply.status_code, reply.content) == (304, b"")
        assert reply.headers["etag"] == tag
    for sent in ('"other"', tag.strip('"'), ""):
        assert (await http.get("/app.js", headers={"if-none-match": sent})).status_code == 200
    assert (await http.get("/style.css")).headers["etag"] != tag


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/docs.html",
        "/chat",
        "/chat/",
        "/chat/../app.js",
        "/chat/..%2fapp.js",
        "/..%2fpage.py",
        "/../page.py",
        "/%2e%2e/page.py",
        "/chat/%2e%2e/%2e%2e/page.py",
        "/APP.JS",
        "/app.js/",
        "/app.js%00",
        "/app.js%00.css",
        "//app.js",
        "/web/app.js",
        "/etc/passwd",
    ],
)
def test_there_is_nothing_else(path: str) -> None:
    with LiveGateway(FakeEngineClient(), GatewayConfig()) as gateway:
        status, _, body = ask(gateway, "GET", path)  # As raw bytes: a client would tidy it up.
    assert status == 404
    assert json.loads(body)["error"]["code"] == "not_found"


async def test_only_reading_is_allowed(http: httpx.AsyncClient) -> None:
    assert (await http.head("/")).status_code == 200
    for method in ("PUT", "DELETE"):
        assert (await http.request(method, "/")).status_code == 405
    assert (await http.post("/app.js")).status_code == 405


def test_a_file_of_another_kind_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "secret.pem").write_text("x")
    with pytest.raises(ValueError, match=r"web/secret\.pem"):
        page._read("secret.pem", tmp_path / "secret.pem")


def test_what_others_wrote_is_as_they_published_it() -> None:
    listed: dict[str, str] = {}
    for line in (WEB / VENDORED / "VENDORED.txt").read_text().splitlines():
        if found := re.fullmatch(r"  ([0-9a-f]{64})  (\S+)", line):
            listed[found[2]] = found[1]
    folder = WEB / VENDORED
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.*")}
    del files["VENDORED.txt"]
    digests = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    assert digests == listed
    # Each with its licence.
    for package in {name.split("/")[0] for name in files}:
        assert f"{package}/LICENSE.txt" in files


def test_the_page_keeps_its_own_policy() -> None:
    """No inline script or style, nothing of other servers, and no markup made of text."""
    own = {path: file for path, file in on_disk().items() if not path.startswith(f"/{VENDORED}")}
    assert len(own) > 40
    for path, file in {**own, "/docs": WEB / "docs.html"}.items():
        text = file.read_text("utf-8")
        if file.suffix == ".html":
            assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|javascript:", text)
        if file.suffix in (".html", ".css"):
            assert not re.search(r"https?://|@import|url\(", text), path
        if file.suffix == ".js":
            banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
            assert not re.search(banned, text), path
            assert text.count("\n") < 300, path
