"""Chromium with an open page, driven by chromedriver; tests that import this are skipped without it."""

import base64
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)


class Browser:
    """Chromium with an open page."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        self.driver.set_script_timeout(60)

    def open(self, page: Path | str, *, width: int = 1280, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(Path(page).as_uri())
        self.until("document.documentElement.dataset.ready > 0")

    def __call__(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def until(self, expression: str) -> None:
        end = time.monotonic() + 60
        while not self(expression):
            assert time.monotonic() < end, f"still not: {expression}"
            time.sleep(0.02)

    def show(self, selector: str) -> None:
        """Scroll to an element and wait until its chart is drawn."""
        self(f"document.querySelector('{selector}').scrollIntoView({{behavior: 'instant', block: 'center'}})")
        self.until(f"document.querySelector('{selector} .main-svg') !== null")

    def show_all(self) -> int:
        """Scroll through the whole page and return the number of charts."""
        count: int = self("document.querySelectorAll('.plot').length")
        for i in range(count):
            self(f"document.querySelectorAll('.plot')[{i}].scrollIntoView({{behavior: 'instant'}})")
            self.until(f"document.querySelectorAll('.plot')[{i}].querySelector('.main-svg') !== null")
        return count

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, "key": name, "code": name})

    def mouse(self, x: float, y: float, *kinds: str) -> None:
        for kind in kinds or ("mouseMoved",):
            event = {"type": kind, "x": x, "y": y}
            if kind != "mouseMoved":
                event |= {"button": "left", "clickCount": 1}
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def pixels(self, selector: str) -> NDArray[np.uint8]:
        """Return the pixels of an element that is fully visible, shape (H, W, 3)."""
        box = self(f"(r => [r.left, r.top, r.right, r.bottom])({one(selector)}.getBoundingClientRect())")
        screenshot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        window = Image.open(io.BytesIO(base64.b64decode(screenshot["data"]))).convert("RGB")
        return np.asarray(window.crop(tuple(round(x) for x in box)))

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        sent = (m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent")
        return [url for url in sent if not url.startswith(("file:", "data:", "blob:"))]


def one(selector: str) -> str:
    return f"document.querySelector('{selector}')"
