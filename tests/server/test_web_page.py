"""The page's files: what is served, to whom, and what browsers are told of it."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING

from serving import headers, saying, serving

from ds4trio.server.web_page import CONTENT_SECURITY_POLICY, page_files
from ds4trio.testing import END_ID

if TYPE_CHECKING:
    from pathlib import Path

    from serving import Server

HI = saying("Hi", END_ID)
FOLDER = resources.files("ds4trio.server").joinpath("page")
#: ``npm pack marked@18.2.1``, lib/marked.esm.js.
MARKED_SHA256 = "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de"


async def get(server: Server, path: str, **head: str) -> tuple[int, dict[str, str], bytes]:
    async with await server.connect() as client:
        await client.request("GET", path, headers=head)
        answer = await client.head()
        return answer.status_code, headers(answer), await client.rest()


async def test_the_page_and_all_it_refers_to_is_served(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-a\n")
    async with serving(HI, api_keys_file=keys) as server:  # which the page itself needs not
        status, head, body = await get(server, "/")
        assert (status, head["content-type"]) == (200, "text/html; charset=utf-8")
        assert head["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert head["x-content-type-options"] == "nosniff"
        assert head["referrer-policy"] == "no-referrer"
        for path in set(re.findall(r'(?:src|href)="(page/[^"]+)"', body.decode())):
            status, head, _ = await get(server, "/" + path)
            assert (status, head["x-content-type-options"]) == (200, "nosniff"), path
        for path in (
            "/page",
            "/page/",
            "/page/index.html",
            "/page/../keys.py",
            "/page/marked.LICENSE.md",
        ):
            assert (await get(server, path))[0] in (401, 404), path
        async with await server.connect() as client:
            await client.request("HEAD", "/")
            assert (await client.response()) == (200, b"")


async def test_it_can_be_left_out() -> None:
    async with serving(HI, page=False) as server:
        for path in ("/", "/page/main.js"):
            assert (await get(server, path))[0] == 404
        assert (await get(server, "/health"))[0] == 200


def test_nothing_is_fetched_from_elsewhere_or_inline() -> None:
    """The policy would stop it: here is said what would be stopped."""
    text = FOLDER.joinpath("index.html").read_text("utf-8")
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", text)
    for path, file in page_files().items():
        if not path.endswith("marked.esm.js"):
            sources = re.sub(rb"http://www\.w3\.org/2000/svg", b"", file.body)
            assert not re.search(rb"//[\w-]+\.\w", sources), path
            assert b"innerHTML" not in sources, path


def test_the_library_is_the_one_that_was_published() -> None:
    body = FOLDER.joinpath("marked.esm.js").read_bytes()
    assert hashlib.sha256(body).hexdigest() == MARKED_SHA256
    assert "MIT" in FOLDER.joinpath("marked.LICENSE.md").read_text("utf-8")
