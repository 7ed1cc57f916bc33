"""The table that router and tests iterate."""

from __future__ import annotations

from ds4trio.protocols.table import PROTOCOLS


def test_every_path_is_its_protocols_own() -> None:
    assert {path: p.name for path, p in PROTOCOLS.items()} == {
        "/v1/chat/completions": "chat",
        "/v1/completions": "completions",
        "/v1/messages": "messages",
        "/v1/responses": "responses",
    }
    assert all(path == p.path for path, p in PROTOCOLS.items())
