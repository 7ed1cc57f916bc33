"""A real Chromium, driven through Selenium, and a server in a thread beside it.

Selenium waits by blocking, so the server has a thread, and a Trio, of its own. Waiting for the page
is asking it again and again: nothing announces what it shows.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import pytest
import trio
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from serving import repeating, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from selenium.webdriver.remote.webelement import WebElement
    from serving import Server

T = TypeVar("T")

AXE_VERSION = "4.14.1"
#: Seconds after which something that should be shown will not be, on the slowest machine.
PATIENCE_S = 30
CACHE = Path(__file__).parents[2] / ".cache"


@dataclass(frozen=True, slots=True)
class Served:
    """A server in another thread."""

    url: str
    server: Server

    def metrics(self, **head: str) -> dict[str, float]:
        """Samples by their full name with labels."""
        text = httpx.get(self.url + "/metrics", headers=head).text
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@contextmanager
def served(
    script: Callable[[Sequence[int]], int] = repeating,
    **options: Any,
) -> Iterator[Served]:
    """`serving`, for as long as the block lasts."""
    arrived: list[Served] = []
    ready, stop, tokens = threading.Event(), trio.Event(), list[trio.lowlevel.TrioToken]()

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with serving(script, **options) as server:
            arrived.append(Served(server.url, server))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            trio.run(main)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        yield arrived[0]
    finally:
        if arrived:
            arrived[0].server.gate.open()
        trio.from_thread.run_sync(stop.set, trio_token=tokens[0])
        thread.join()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Skips where Debian's packages chromium and chromium-driver, or the like, are missing."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    # Root has no sandbox, and containers little shared memory.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    downloads = tmp_path_factory.mktemp("downloads")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.downloads = downloads  # type: ignore[attr-defined]  # where `Page` looks for them
    try:
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, from npm. Skips if there is no npm, or no way to its registry."""
    file = CACHE / f"axe-core-{AXE_VERSION}" / "package" / "axe.min.js"
    if not file.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed")
        CACHE.mkdir(exist_ok=True)
        # It checks what it fetches against the registry's digest.
        pack = [npm, "pack", f"axe-core@{AXE_VERSION}", "--fetch-retries=1"]
        done = subprocess.run(pack, cwd=CACHE, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"axe-core cannot be fetched: {done.stderr[-200:]}")
        packed = CACHE / f"axe-core-{AXE_VERSION}.tgz"
        with tarfile.open(packed) as archive:
            archive.extractall(file.parents[1], filter="data")
        packed.unlink()
    return file.read_text("utf-8")


class Page:
    """One tab that shows the server's page."""

    def __init__(self, chrome: webdriver.Chrome, url: str, *, width: int = 1360) -> None:
        self.chrome = chrome
        self.chrome.switch_to.new_window("tab")
        self.handle = chrome.current_window_handle
        self.resize(width)
        self.complaints()  # of others before
        chrome.get(url)

    @classmethod
    @contextmanager
    def open(cls, chrome: webdriver.Chrome, url: str, *, width: int = 1360) -> Iterator[Page]:
        """Open a tab; close it at the end, and insist that nothing was amiss in it."""
        first = chrome.current_window_handle
        page = cls(chrome, url, width=width)
        try:
            yield page
            assert page.complaints() == []
        finally:
            if page.handle in chrome.window_handles:
                chrome.close()
            chrome.switch_to.window(first)

    def complaints(self) -> list[str]:
        """What the browser has said to the console, but for what the server has refused."""
        entries = self.chrome.get_log("browser")  # type: ignore[no-untyped-call]  # Selenium's
        messages = [str(entry["message"]) for entry in entries]
        return [text for text in messages if "Failed to load resource" not in text]

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        return self.chrome.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Of what is visible."""
        visible = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter((e) => e.checkVisibility()).map((e) => e.innerText.trim())"
        )
        return [text for text in self.run(visible, selector) if text]

    def until(self, condition: Callable[[], T]) -> T:
        wait = WebDriverWait(self.chrome, PATIENCE_S, poll_frequency=0.02)
        try:
            return wait.until(lambda _: condition())
        except TimeoutException:
            raise AssertionError(f"there is only: {self.texts('body')}") from None

    def ready(self) -> None:
        """Until it knows what is served."""
        self.until(lambda: self.texts("#model") == ["scripted"])

    def ask(self, text: str) -> None:
        self.ready()
        self.one("#question").send_keys(text, "\n")

    def answered(self) -> None:
        self.until(lambda: self.run("return document.getElementById('stop').hidden"))

    def press(self, *keys: str) -> None:
        """Wherever the focus is."""
        self.chrome.switch_to.active_element.send_keys(*keys)

    def focused(self) -> str:
        """The name of what has the focus, as it is told to those who cannot see it."""
        name: str = self.run(
            "const e = document.activeElement;"
            "return e.ariaLabel || e.labels?.[0]?.firstChild.textContent.trim() || e.innerText"
        )
        return name

    def prefers(self, **features: str) -> None:
        """What CSS can ask of its reader: ``color_scheme="dark"``."""
        named = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})

    def resize(self, width: int, height: int = 800) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def downloaded(self, name: str) -> str:
        """A file that the page has offered."""
        file: Path = self.chrome.downloads / name  # type: ignore[attr-defined]  # see `chromium`
        self.until(file.exists)
        text = file.read_text("utf-8")
        file.unlink()
        return text
