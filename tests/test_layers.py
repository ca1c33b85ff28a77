"""Imports point down: from a room of the package only to those that stand before it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ssl_vision"

ROOMS = [
    {"errors", "quiet", "progress", "optional", "streams", "descriptions"},
    {"objectives", "metrics"},
    {"data"},
    {"encoders"},
    {"methods"},
    {"callbacks"},
    {"runs"},
    {"evaluation"},
    {"maps", "doctor", "export", "experiments"},
    {"report"},
    {"main"},
    {"__main__"},
]
"""The six files first are for all, and know only each other."""


def imported(file):
    """Rooms of the package that a file imports anything of, itself left out."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (parts[1] for name in names if (parts := name.split("."))[0] == "ssl_vision" and parts[1:])


def test_every_import_points_down():
    height = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    rooms = {path: path.with_suffix("").parts[0] for path in paths if path != Path("__init__.py")}
    assert set(rooms.values()) == set(height)
    wrong = [
        (str(path), other)
        for path, room in rooms.items()
        for other in imported(PACKAGE / path)
        if other not in (room, "__version__") and height[room] <= height[other] > 0
    ]
    assert wrong == []
