"""Time how long a report's temperature explorer takes to redraw itself in Chromium, for each objective.

    python benchmarks/explorer.py runs/cifar10/report.html

The temperature is moved through its slider, and the time ends when the browser has laid out the page again.
It is the median and the largest of ``--steps`` temperatures that were not shown before. The record also
states the size of the page. The script requires Chromium, chromedriver and selenium.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from provenance import provenance, save

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
FRAME = "document.querySelector('.explorer')"
MOVE = """((frame, place) => {
    const input = frame.querySelector('input');
    input.value = place;
    const begin = performance.now();
    input.dispatchEvent(new Event('input'));
    frame.getBoundingClientRect();
    return performance.now() - begin;
})"""


def measured(page: Path, steps: int) -> list[dict[str, Any]]:
    """Return a row of each objective: median and largest time of a redraw in milliseconds."""
    from browser import Browser

    browser = Browser()
    browser.open(page.resolve())
    browser(f"{FRAME}.scrollIntoView({{behavior: 'instant'}})")
    browser.until(f"{FRAME}.explorer !== undefined")
    rows = []
    for name in browser(f"Object.keys({FRAME}.explorer.data.objectives)"):
        browser(f"{FRAME}.explorer.change('{name}')")
        times = [browser(f"{MOVE}({FRAME}, {2 * step / steps - 2})") for step in range(steps)]
        rows.append({"objective": name, "median": statistics.median(times), "largest": max(times)})
    browser.driver.quit()
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = ["| objective | median | largest |", "|---|---|---|"]
    lines += [f"| {row['objective']} | {row['median']:.0f} ms | {row['largest']:.0f} ms |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("page", type=Path, help="report.html of a run")
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    rows = measured(chosen.page, chosen.steps)
    megabytes = chosen.page.stat().st_size / 1e6
    save("explorer", provenance("selenium") | {"megabytes": round(megabytes, 2), "rows": rows})
    print(table(rows))
    print(f"The page has {megabytes:.1f} MB.")


if __name__ == "__main__":
    main()
