"""Draws docs/explorer.jpg: the section "What the temperature does here" of a run's report, 1,400 pixels wide.

    ssl-vision sweep macl_epochs --workers 1
    ssl-vision report "runs/macl_epochs/objective=InfoNCE,seed_everything=0" --output report.html
    python docs/explorer.py report.html

It needs Chromium, chromedriver and selenium. The temperature is 0.1, and the anchor is the sixth image.
"""

import base64
import io
import sys
import time
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

WIDTH, TAU, ANCHOR = 1400, 0.1, 5


def main(page: str) -> None:
    """Open the page, choose temperature and anchor, and write the picture."""
    from browser import Browser, one

    browser = Browser()
    frame = one(".explorer")
    browser.open(Path(page).resolve(), width=WIDTH)
    browser(f"{frame}.scrollIntoView({{behavior: 'instant'}})")
    browser.until(f"{frame}.explorer !== undefined")
    browser(f"(e => e.change(e.data.chosen, {TAU}, {ANCHOR}))({frame}.explorer)")
    time.sleep(1)  # the charts follow the temperature
    box = "{}.getBoundingClientRect()"
    left, top, width, bottom = browser(
        "((title, end) => [title.left + scrollX, title.top + scrollY, title.width, end.bottom + scrollY])"
        f"({box.format(one('#temperature h2'))}, {box.format(one('.explorer .grid'))})"
    )
    clip = {"x": left - 16, "y": top - 16, "width": width + 32, "height": bottom - top + 24}
    clip["scale"] = WIDTH / clip["width"]
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    shot = browser.driver.execute_cdp_cmd("Page.captureScreenshot", options)
    browser.driver.quit()
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.save(Path(__file__).with_suffix(".jpg"), quality=80, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
