"""Chromium without a window, for the tests of the page for browsers."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_DEADLINE_S = 600.0


def missing() -> str:
    """Return why there can be no browser here; "" if there can."""
    lacking = [name for name, path in (("chromium", _chromium()), ("chromedriver", _driver())) if path is None]
    return f"no {' and no '.join(lacking)} here: on Debian, apt-get install chromium chromium-driver" if lacking else ""


class Browser:
    """One tab of a browser that runs. It keeps what the console said, and which addresses were asked for."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(self, address: str, *, scripts: bool = True) -> None:
        """Open a page, and wait until its ``scripts`` are ready. What was said and asked before is forgotten."""
        self.size(1280, 900)
        self._log("browser")
        self._log("performance")
        self._driver.get("about:blank")
        self._driver.get(address)
        if scripts:
            self.wait()

    def wait(self) -> None:
        """Wait until the page's scripts are ready."""
        end = monotonic() + _DEADLINE_S
        while self.run("return document.documentElement.dataset.drawn") != "yes":
            assert monotonic() < end, f"the scripts are not ready; the console says {self.console()}"
            sleep(0.02)

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script returns."""
        return self._driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements of a CSS selector."""
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the elements of a CSS selector that are shown."""
        script = """return [...document.querySelectorAll(arguments[0])]
            .filter((each) => each.checkVisibility() && each.getClientRects().length)
            .map((each) => each.textContent.trim())"""
        found: list[str] = self.run(script, selector)
        return found

    def choose(self, name: str, value: str) -> None:
        """Choose an option of a filter, as a person would, and wait for the plots."""
        self.run(
            """const field = document.querySelector(`[name="${arguments[0]}"], #${arguments[0]}`);
            field.value = arguments[1]; field.dispatchEvent(new Event("change", {bubbles: true}))""",
            name,
            value,
        )
        self.wait()

    def click(self, selector: str) -> None:
        """Click an element, and wait for the plots."""
        self.run("document.querySelector(arguments[0]).click()", selector)
        self.run("return new Promise((done) => setTimeout(done, 0))")
        self.wait()

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        for key in keys:
            webdriver.ActionChains(self._driver, duration=0).send_keys(key).perform()

    def point(self, selector: str) -> None:
        """Scroll to an element, and move the pointer to its centre."""
        self.run(
            """document.querySelector(arguments[0]).scrollIntoView({block: "center"});
            return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))""",
            selector,
        )
        webdriver.ActionChains(self._driver, duration=0).move_to_element(self.all(selector)[0]).perform()

    def size(self, width: int, height: int) -> None:
        """Set the size of the window; one as narrow as a telephone's behaves as that."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Set the colours that the system prefers, ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        # The page hears of it before it draws its next frame.
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def console(self) -> list[str]:
        """Return what the console has said since the last call."""
        return [f"{line['level']} {line['message']}" for line in self._log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call."""
        events = (json.loads(line["message"])["message"] for line in self._log("performance"))
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def _log(self, kind: str) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = self._driver.get_log(kind)  # type: ignore[no-untyped-call]
        return lines

    def picture(self, file: Path, height: int = 6000) -> None:
        """Write a picture of the page from its top, at most ``height`` pixels."""
        width, whole = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(whole, height), "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        taken = self._driver.execute_cdp_cmd("Page.captureScreenshot", options)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Yield a browser with a profile of its own; it ends with the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = _chromium() or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options, Service(_driver()))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _driver() -> str | None:
    return shutil.which("chromedriver")
