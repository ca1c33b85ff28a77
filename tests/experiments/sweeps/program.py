"""Trial that trains nothing: it counts to --steps, saves its position after each, and writes metrics.csv.

It records every start, whether another process of the same trial was alive, and that it reached the end.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
options = dict(arg.removeprefix("--").split("=", 1) for arg in sys.argv[1:])
folder = Path(os.environ["SSL_VISION_TRIAL"])
folder.mkdir(exist_ok=True)
alive = (folder / "alive").open("a")
try:
    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (folder / "double").touch()
    sys.exit(9)
with (folder / "starts").open("a") as file:
    file.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')} {' '.join(sys.argv[1:])}\n")
if "fails" in options:
    print(options["fails"], file=sys.stderr)
    sys.exit(int(options.get("code", 1)))

place, metrics = folder / "place", folder / "metrics.csv"
begin = int(place.read_text()) if place.exists() else 0
rows = metrics.read_text().splitlines()[1 : 1 + begin] if metrics.exists() else []
metrics.write_text("".join(f"{row}\n" for row in ["step,epoch,score", *rows]))
for step in range(begin, int(options.get("steps", 2))):
    time.sleep(float(options.get("pause", 0)))
    with metrics.open("a") as file:
        file.write(f"{step},{step},{float(options['x']) + float(options.get('slope', 0)) * step}\n")
    partial = place.with_suffix(".partial")
    partial.write_text(str(step + 1))
    partial.replace(place)
if (
    begin < int(options.get("steps", 2)) or not (folder / "ends").exists()
):  # killed before it recorded the end
    with (folder / "ends").open("a") as file:
        file.write("end\n")
