"""Commands in the shell blocks of README.md and docs/*.md."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("ssl-vision", "python", "pip", "make", "torchrun", "srun", "docker", "wandb")

LOOPS = {"objective": "MACL", "seed": "0"}
"""Values of the variables of shell loops on the pages; one iteration of each loop is run."""


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command line in a page's shell blocks."""
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^([A-Z_]+=\S* )+", "", line.strip())
            line = re.sub(r"\$(\w+)", lambda name: LOOPS.get(name[1], name[0]), line)
            if line.split(" ")[0] in PROGRAMS:
                yield shlex.split(line, comments=True)
