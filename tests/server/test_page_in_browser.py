"""The page in a real browser, over real sockets, around a scripted model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from browsing import Page, axe, chromium, served
from hostile_answers import ATTRIBUTES, ELEMENTS, EVERY_PREFIX, HOSTILE, STRANGE_IN
from serving import said

from ds4trio.chat.template import TemplateChatFormat
from ds4trio.testing import END_ID, ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from selenium.webdriver import Chrome

__all__ = ["axe", "chromium"]  # fixtures

TAB, SHIFT_TAB, ESCAPE = "\ue004", "\ue008\ue004", "\ue00c"
THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "assistant: {% if thinking %}{% endif %}{# </think> #}"
)
SHOWCASE = """# Title

A **bold** word, _another_, ~~gone~~, `code <b>`, [a link](https://example.org/?a=1&b=2), \
and https://example.com too. snake_case_name, 2 * 3 * 4, a[0].
Next line &amp; &lt;.

1. one
   - [x] nested
2. two

> quoted

```js
if (a < b) { f("<script>"); }
```

| a | b |
|---|:-:|
| 1 | `2` |

---
"""


def answering(*answers: str) -> Callable[[Sequence[int]], int]:
    """A script of one conversation, or of several: the n-th answer in each is the n-th of these."""

    def script(token_ids: Sequence[int]) -> int:
        text = bytes(token_id for token_id in token_ids if token_id < 256)
        turn = text.count(b"user: ") - 1
        answered = text.rpartition(b"assistant: ")[2] if turn == 0 else last(text, turn)
        data = answers[turn % len(answers)].encode()
        return data[len(answered)] if len(answered) < len(data) else END_ID

    def last(text: bytes, turn: int) -> bytes:
        return text.rpartition(b"user: ")[2].partition(b"assistant: ")[2]

    return script


def running(metrics: dict[str, float]) -> float:
    return metrics['ds4trio_sequences{state="running"}']


def test_stop_frees_the_row(chromium: Chrome) -> None:
    """The gate holds each forward, so that what is shown in between can be looked at."""
    with served(gated=True, prefill_chunk_tokens=16) as at, Page.open(chromium, at.url) as page:
        gate = at.server.gate
        page.ask("ab")  # 24 prompt tokens: two chunks
        page.until(lambda: gate.entered == 1)
        page.until(lambda: page.texts("#sequences .row.prefill .whose") == ["this tab"])
        assert page.texts("#running") == ["1"]
        gate.release(2 + 10)
        page.until(lambda: page.texts(".answer") == ["ab" * 5 + "a"])
        page.until(lambda: "answer 11" in page.texts("#sequences .detail")[0])
        assert page.texts("#sequences .chip") == ["answer"]

        page.one("#stop").click()
        page.until(lambda: page.texts("#sequences .chip") == ["letting go"])
        gate.open()
        page.until(lambda: page.texts("#idle"))
        assert page.texts("#sequences") == []
        assert page.texts("#ended .chip") == ["client left"]
        page.until(lambda: "let go in" in page.texts(".foot")[-1])
        assert page.texts(".foot .stopped") == ["Stopped."]
        assert page.texts(".answer") == ["ab" * 5 + "a"]
        assert page.texts("#wasted") == ["1"]  # what the gate held
        metrics = at.metrics()
    assert running(metrics) == 0
    assert metrics['ds4trio_disconnects_total{phase="decode"}'] == 1
    assert metrics["ds4trio_wasted_generated_tokens_total"] == 1


def test_closing_the_tab_frees_the_row(chromium: Chrome) -> None:
    with served(gated=True) as at, Page.open(chromium, at.url) as watching:
        with Page.open(chromium, at.url) as leaving:
            leaving.ask("ab")
            at.server.gate.release(5)
            leaving.until(lambda: leaving.texts(".answer") == ["ababa"])
            assert running(at.metrics()) == 1
        chromium.switch_to.window(watching.handle)
        at.server.gate.open()
        watching.until(lambda: watching.texts("#ended .chip") == ["client left"])
        assert watching.texts("#ended .whose")[0].startswith("page-")
        assert watching.texts("#idle")
        metrics = at.metrics()
    assert running(metrics) == 0
    assert (
        metrics['ds4trio_requests_total{outcome="client_gone",protocol="chat",stream="true"}'] == 1
    )
    assert metrics["ds4trio_wasted_generated_tokens_total"] <= 1


def test_an_answer_full_of_html_and_script_stays_text(chromium: Chrome) -> None:
    """Streamed to the page; and each try by itself, as it grows character by character."""
    html = HOSTILE[:13]
    with served(answering("\n\n".join(html))) as at, Page.open(chromium, at.url) as page:
        page.run(
            "window.violations = [];"
            "addEventListener('securitypolicyviolation', (e) => violations.push(e.blockedURI))"
        )
        page.ask("Hi")
        page.until(lambda: page.texts(".answer"))
        page.answered()
        assert page.texts(".answer") == ["\n\n".join(html)]
        found = "return strangeIn(document.querySelector('.answer'))"
        assert page.run(STRANGE_IN + found, ELEMENTS, ATTRIBUTES) == []
        strange = page.chrome.execute_async_script(
            STRANGE_IN + EVERY_PREFIX, ELEMENTS, ATTRIBUTES, HOSTILE
        )
        assert strange == []
        # Nothing ran, and nothing was left to the policy to stop.
        assert page.run("return [window.pwned ?? 0, ...violations]") == [0]


def test_markdown_is_shown(chromium: Chrome) -> None:
    with served(answering(SHOWCASE)) as at, Page.open(chromium, at.url) as page:
        page.ask("Hi")
        page.until(lambda: page.texts(".answer td"))
        page.answered()
        assert page.texts(".answer h3") == ["Title"]
        assert page.texts(".answer strong, .answer em, .answer s") == ["bold", "another", "gone"]
        assert page.texts(".answer p code") == ["code <b>"]
        links = page.run("return [...document.querySelectorAll('.answer a')].map((a) => a.href)")
        assert links == ["https://example.org/?a=1&b=2", "https://example.com/"]
        assert "snake_case_name, 2 * 3 * 4, a[0].\nNext line & <." in page.texts(".answer p")[0]
        assert page.texts(".answer ol > li")[0].startswith("one")
        assert page.texts(".answer li li") == ["\u2611 nested"]
        assert page.texts(".answer blockquote") == ["quoted"]
        assert page.texts(".answer pre") == ['if (a < b) { f("<script>"); }']
        assert page.texts(".answer th, .answer td") == ["a", "b", "1", "2"]


def test_thoughts_are_folded(chromium: Chrome) -> None:
    chat = TemplateChatFormat(THINKING, ByteTokenizer(), variables={}, stop_ids={END_ID})
    script = answering("<think>deep <b>thought</b></think>said")
    with served(script, chat_format=chat) as at, Page.open(chromium, at.url) as page:
        page.ask("Hi")
        page.until(lambda: page.texts(".answer") == ["said"])
        page.answered()
        assert page.texts(".thoughts p") == []
        page.one(".thoughts summary").click()
        assert page.texts(".thoughts p") == ["deep <b>thought</b>"]


def test_conversations_and_their_settings_stay(chromium: Chrome) -> None:
    asked: list[bytes] = []

    def script(token_ids: Sequence[int]) -> int:
        prompt, answered = said(token_ids)
        asked.append(prompt)
        return END_ID if answered else ord("x")

    with served(script) as at, Page.open(chromium, at.url) as page:
        page.ready()
        page.one("#open-settings").click()
        page.one("[name=system]").send_keys("Be <brief>.")
        page.one("[name=max_tokens]").send_keys("7")
        page.one("#settings [type=submit]").click()
        page.ask("one")
        page.answered()
        assert asked[-1] == b"system: Be <brief>.\nuser: one"
        page.one("#new-chat").click()
        page.ask("two")
        page.answered()
        page.until(lambda: page.texts("#conversations li") == ["two", "one"])
        assert asked[-1] == b"system: Be <brief>.\nuser: two"  # a new chat goes on with them

        page.chrome.refresh()
        page.ready()
        assert page.texts(".message.user .text") == ["two"]
        page.one("#conversations li:last-child button").click()
        assert page.texts(".message.user .text") == ["one"]
        assert page.texts(".answer") == ["x"]
        page.one(".again").click()
        page.until(lambda: len(asked) > 5)
        page.answered()
        assert asked[-1] == b"system: Be <brief>.\nuser: one"
        assert page.texts(".answer") == ["x"]
        page.one("#open-export").click()
        page.one("[data-export=json]").click()
        kept = json.loads(page.downloaded("one.json"))
        assert [message["content"] for message in kept["messages"]] == ["one", "x"]
        assert (kept["system"], kept["sampling"]) == ("Be <brief>.", {"max_tokens": 7})
        page.one("#open-export").click()
        page.one("[data-export=markdown]").click()
        text = "# one\n\n**System:** Be <brief>.\n\n## You\n\none\n\n## scripted\n\nx\n"
        assert page.downloaded("one.md") == text
        page.one("#delete-chat").click()
        assert page.texts("#conversations li") == ["two"]


def test_a_key_is_asked_for_and_kept_with_the_tab(chromium: Chrome, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-secret\n")
    with served(answering("Hi"), api_keys_file=keys) as at, Page.open(chromium, at.url) as page:
        page.until(lambda: page.texts("#key-needed"))
        assert page.focused() == "API key"
        page.press(ESCAPE)
        assert not page.texts("#settings")  # one may look around without a key
        page.one("#open-settings").click()
        page.one("[name=key]").click()
        page.press("sk-wrong\n")
        page.until(lambda: page.texts("#key-needed"))
        assert page.one("[name=key]").get_attribute("value") == "sk-wrong"
        page.one("[name=key]").clear()
        page.one("[name=key]").send_keys("sk-secret\n")
        page.ask("Hi")
        page.until(lambda: page.texts(".answer") == ["Hi"])
        page.until(lambda: page.texts("#engine-state") == ["ready"])
        assert "sk-secret" not in page.run("return JSON.stringify(localStorage)")
        assert "sk-secret" in page.run("return JSON.stringify(sessionStorage)")


def test_what_goes_wrong_is_said(chromium: Chrome) -> None:
    with served(answering("Hi"), context_tokens=60) as at, Page.open(chromium, at.url) as page:
        page.ask("much too long " * 5)
        page.until(lambda: "context length is 60 tokens" in "".join(page.texts(".problem")))
        page.one("#new-chat").click()
        page.ask("Hi")
        page.until(lambda: page.texts(".answer") == ["Hi"])


def test_with_the_keyboard_alone(chromium: Chrome) -> None:
    with served(gated=True) as at, Page.open(chromium, at.url) as page:
        page.ready()
        assert page.focused() == "Your message"
        page.press("ab\n")
        at.server.gate.release(5)
        page.until(lambda: page.texts(".answer") == ["ababa"])
        page.press(ESCAPE)
        page.until(lambda: page.texts(".foot .stopped"))
        at.server.gate.open()
        assert page.focused() == "Your message"
        seen = []
        while page.focused() != "Settings":
            page.press(SHIFT_TAB)
            seen.append(page.focused())
            outline = "return getComputedStyle(document.activeElement).outlineStyle"
            assert page.run(outline) == "solid", seen
        for name in ("Try again", "Copy", "Conversation", "Delete", "Export", "Title of this chat"):
            assert name in seen
        page.press("\n")
        assert page.focused() == "System prompt"
        page.press(ESCAPE)
        assert page.focused() == "Settings"
        page.press(SHIFT_TAB)
        page.press(SHIFT_TAB)
        assert page.focused() == "New chat"
        page.press("\n")
        assert page.focused() == "Your message"
        assert page.texts("#welcome h2")


WIDTHS = [1360, 1080, 768, 320]


def test_it_fits_every_screen(chromium: Chrome) -> None:
    with served(answering(SHOWCASE)) as at, Page.open(chromium, at.url) as page:
        page.ask("Hi " + "long" * 40)
        page.until(lambda: page.texts(".answer td"))
        page.answered()
        for width in WIDTHS:
            page.resize(width)
            shown = ["chats", "chat", "engine"] if width < 1080 else ["chat"]
            for room in shown:
                if len(shown) > 1:
                    page.one(f".views [data-view={room}]").click()
                over = page.run(
                    "return [...document.querySelectorAll('body *')].filter((e) =>"
                    "  !e.closest('pre, .table, .unseen, .skip, [popover]') &&"
                    "  e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML)"
                )
                assert over == [], (width, room)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(chromium: Chrome, axe: str, scheme: str) -> None:
    with served(answering(SHOWCASE), gated=True) as at, Page.open(chromium, at.url) as page:
        page.prefers(color_scheme=scheme, reduced_motion="reduce")
        page.run(axe + "; window.axe = axe")

        def check(what: str, *but: str) -> None:
            options: dict[str, object] = {"rules": {rule: {"enabled": False} for rule in but}}
            if scheme == "dark":  # nothing else differs
                options = {"runOnly": ["color-contrast"]}
            found = page.chrome.execute_async_script(
                "const [options, done] = arguments;"
                "axe.run(options).then((r) => done(r.violations.map((v) =>"
                "  v.id + ': ' + v.nodes.map((n) => n.html + n.failureSummary).join(', '))))",
                options,
            )
            assert found == [], what

        page.ready()
        check("welcome")
        page.ask("Hi")
        at.server.gate.release(40)
        page.until(lambda: page.texts("#sequences .row.decode"))
        check("answering")
        at.server.gate.open()
        page.answered()
        page.until(lambda: page.texts("#ended .row"))
        check("answered")
        page.one("#open-settings").click()
        check("settings")
        page.press(ESCAPE)
        page.resize(390)
        for room in ("chats", "engine", "chat"):
            page.one(f".views [data-view={room}]").click()
            check(room, "landmark-one-main")  # it is shown in main's place
        page.resize(1360)
