"""Imports point down: from a room of the package only to those that stand before it."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ssl_vision"

ROOMS = [
    {"_version", "errors", "quiet", "progress", "optional", "streams", "descriptions", "hub", "display"},
    {"objectives", "metrics"},
    {"data"},
    {"encoders"},
    {"methods"},
    {"callbacks"},
    {"runs"},
    {"tracking"},
    {"cli"},
    {"pretrained"},
    {"evaluation"},
    {"export"},
    {"compare"},
    {"report"},
    {"sweeps"},
    {"reproduce"},
    {"main", "api"},
    {"__main__"},
]
"""The files of the first row are for all, and import only each other."""


@cache
def nodes(file):
    """Nodes of the syntax tree of a file."""
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imported(file):
    """Rooms of the package that a file imports anything of, itself left out."""
    for node in nodes(file):
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


def modules_imported(file, modules):
    """Modules of the package that a file imports, for its types alone or not."""
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_imports_itself_through_others():
    modules = {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    graph = {
        name: {other for other in modules_imported(file, modules) if other in modules} - {name}
        for name, file in modules.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError


ATTRIBUTES_BY_NAME = {
    # something is imported or looked up by a name that the user or a table gives
    "__init__.py": "a public function, imported when it is asked for",
    "main.py": "a command's function",
    "evaluation/protocol.py": "a measurement that a protocol file names",
    "cli/classes.py": "a class that a config names",
    "cli/parser.py": "a class that an option names",
    "cli/fit.py": "the data class of a config; the rank, which Lightning sets in some environments only",
    "streams.py": "stdout and stderr by name; what a wrapped stream has besides",
    "export/formats.py": "torchvision's ResNet of a depth",
    # fields of one of our own dataclasses, tuples or modules, one after the other
    "report/explorer.py": "parameters of rules and margin losses, from a table; the objective of any network",
    "data/augment/options.py": "options",
    "descriptions.py": "fields",
    "evaluation/options.py": "options",
    "evaluation/ranges.py": "options",
    "evaluation/robustness.py": "options",
    "evaluation/rows.py": "fields of a row",
    "callbacks/representation.py": "layers",
    "report/maps/drawing.py": "fields of a map",
    "report/maps/maps.py": "fields of a map",
    "metrics/knn.py": "states of a torchmetrics metric",
    "methods/optimizer.py": "options",
    "objectives/critic.py": "layers",
    # what a library, a platform or a build may lack
    "callbacks/skip_nonfinite.py": "found_inf, which torch's gradient scaling sets",
    "methods/lars.py": "found_inf and grad_scale, likewise",
    "methods/finite_gradients.py": "torch's mark of optimizers that read found_inf",
    "methods/method.py": "the data module, which Lightning sets where it is given one",
    "data/datasets/map_data.py": "length, items and classes of a user's data set",
    "data/datasets/torchvision_data.py": "a data set of torchvision by name; the names of its classes",
    "data/loading/memmap.py": "posix_fadvise, of some systems",
    "data/loading/worker_processes.py": "sched_getaffinity, of some systems",
    "cli/doctor/hardware.py": "sched_getaffinity, of some systems",
    "cli/doctor/packages.py": "FAISS's version and GPUs, of some builds",
    "objectives/fused.py": "the shared memory of a block, of some GPUs",
    "evaluation/heap.py": "mallopt, of some C libraries",
    "sweeps/machines.py": "sched_getaffinity, of some systems",
    "metrics/neighbours.py": "FAISS's index and GPU resources, of some builds",
    "runs/folder.py": "an error's text from the system",
    "runs/interruption.py": "the requeue signal of Lightning's SLURM environment",
    "tracking/wandb.py": "W&B's run, if W&B is imported",
    "runs/reading.py": "YAML's C loader, of some builds; anchors, of some events; an error's text",
    # one that asks what an object is
    "report/maps/anchors.py": "the loss that a class overrides, by which the maps know its derivative",
}
"""Files that read an attribute by a name, or ask whether there is one, and why."""


def test_nothing_else_asks_an_object_what_it_has():
    def asks(file):
        calls = (node.func for node in nodes(file) if isinstance(node, ast.Call))
        return any(isinstance(call, ast.Name) and call.id in ("getattr", "hasattr") for call in calls)

    found = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if asks(file)}
    assert found == set(ATTRIBUTES_BY_NAME)
