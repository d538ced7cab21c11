"""A real browser without a window: Chromium, which opens pages from files."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY = "return [...document.querySelectorAll('article')].every(each => 'ready' in each.dataset)"


def missing() -> str:
    """Return what keeps a browser from starting here, or nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    found = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"{' and '.join(found)} not found" if found else ""


class Browser:
    """One window; `logged` is what the console said, `requested` what was asked for, since open."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.run: Callable[..., Any] = driver.execute_script

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> float:
        """Open a page and return after how many seconds it stands there, its text coloured."""
        wide = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wide)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        began = time.monotonic()
        self.driver.get(path.as_uri())
        self.until(READY)
        self.until(
            "const page = document.querySelector('.page');"
            "return !page || page.querySelector('.chunk span')"
        )
        self.run("return document.body.offsetHeight")  # laid out
        return time.monotonic() - began

    def until(self, script: str, seconds: float = 10) -> Any:
        """Return what a script returns, once that is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"not within {seconds} seconds: {script}"
            time.sleep(0.01)
        return value

    def logged(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Give a browser that keeps its profile in a folder."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
