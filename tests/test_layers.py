"""Tests of the layers of the package: subpackages and modules import only from lower layers."""

import ast
import re
import sys
from collections import Counter
from configparser import ConfigParser
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from operator import gt
from pathlib import Path

from scripts import import_script

from ssl_vision.main import COMMANDS

PACKAGE = Path(__file__).parent.parent / "ssl_vision"

LAYERS = [
    {
        "_version",
        "errors",
        "progress",
        "optional",
        "descriptions",
        "hub",
        "lightning_private",
        "tables",
    },
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
    {"experiments/compare"},
    {"experiments/report"},
    {"experiments/sweeps"},
    {"experiments/reproduce"},
    {"main", "api", "catalogue"},
    {"__main__"},
]
"""Subpackages and modules from the lowest layer to the highest; those of the first import only each other."""

WITHOUT_LAYER = {"__init__.py", "experiments/__init__.py"}


@cache
def nodes(file):
    """Nodes of the syntax tree of a file."""
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def unit(parts):
    """Return the subpackage or module of the layers that a path or module inside the package belongs to."""
    return "/".join(parts[: 2 if parts[0] == "experiments" else 1])


def imported(file):
    """Yield the subpackages and modules that a file imports from, without the package itself."""
    for node in nodes(file):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (
            unit(parts[1:]) for name in names if (parts := name.split("."))[0] == "ssl_vision" and parts[1:]
        )


def test_imports_point_to_lower_layers():
    level_of = {unit: level for level, units in enumerate(LAYERS) for unit in units}
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    units = {path: unit(path.with_suffix("").parts) for path in paths if str(path) not in WITHOUT_LAYER}
    assert set(units.values()) == set(level_of)
    violations = [
        (str(path), other)
        for path, own in units.items()
        for other in imported(PACKAGE / path)
        if other not in (own, "__version__") and level_of[own] <= level_of[other] > 0
    ]
    assert violations == []


def modules_imported(file, modules):
    """Yield the modules that a file imports, including imports only for type checking."""
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_package_has_no_circular_imports():
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
    # import or look up something by a name from the user or from a table
    "__init__.py": "a public function, imported when it is asked for",
    "evaluation/protocol.py": "a measurement that a protocol file names; options that change a protocol",
    "cli/config_objects.py": "a class that a config names",
    # iterate over the fields of one of our own dataclasses, tuples or modules
    "experiments/report/explorer.py": "parameters of rules and margin losses; any network's objective",
    "data/augment/view_parameters.py": "options",
    "descriptions.py": "fields",
    "objectives/reclaim.py": "layers",
    # use something that a library, a platform or a build may lack
    "callbacks/skip_nonfinite.py": "found_inf, which torch's gradient scaling sets",
    "methods/optimizer.py": "options; torch's mark of optimizers that read found_inf",
    "methods/lars.py": "found_inf and grad_scale, likewise",
    "data/module.py": "the data module, which Lightning sets where it is given one; modules' use of labels",
    "data/datasets/map_style.py": "length, items and classes of a user's data set",
    "data/datasets/torchvision_data.py": "a data set of torchvision by name; the names of its classes",
    "data/datasets/encoded.py": "an error's number from the system",
    "data/images.py": "posix_fadvise, of some systems",
    "objectives/fused.py": "the shared memory of a block, of some GPUs",
    "objectives/objective.py": "the module that torch.compile wraps",
    "optional.py": "sched_getaffinity, of some systems",
    "metrics/neighbours.py": "FAISS's index and GPU resources, of some builds",
    "runs/folder.py": "an error's text from the system",
    "runs/checkpoint_schedule.py": "the requeue signal of Lightning's SLURM environment",
    "runs/files.py": "YAML's C loader, of some builds; an error's text",
    # inspect the class of an object
    "experiments/report/gradient_factors.py": "the loss that a class overrides",
}
"""Files that use getattr or hasattr, and why."""


def test_getattr_and_hasattr_are_used_only_in_listed_files():
    def uses_getattr(file):
        calls = (node.func for node in nodes(file) if isinstance(node, ast.Call))
        return any(isinstance(call, ast.Name) and call.id in ("getattr", "hasattr") for call in calls)

    files = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if uses_getattr(file)}
    assert files == set(ATTRIBUTES_BY_NAME)


CAPS = {
    "": (741, 13),
    "callbacks": (667, 8),
    "cli": (1529, 16),
    "data": (2874, 26),
    "encoders": (284, 4),
    "evaluation": (1929, 13),
    "experiments": (0, 1),
    "experiments/compare": (1026, 8),
    "experiments/report": (2163, 13),
    "experiments/reproduce": (527, 4),
    "experiments/sweeps": (1246, 8),
    "export": (597, 5),
    "methods": (977, 13),
    "metrics": (1035, 11),
    "objectives": (2020, 19),
    "pretrained": (291, 4),
    "runs": (1410, 12),
    "tracking": (214, 3),
}
"""Most code lines (benchmarks/code_lines.py) and most Python files of each folder, which may only fall.

A commit that raises a number says why.
"""

SINGLE_IMPORTER = {
    # callbacks that users can add to a Trainer of their own, and that `callbacks` hands on
    "callbacks/resources.py",
    "callbacks/step_seeds.py",
}
"""Modules of fewer than 60 code lines that only one other module imports. This list may only shrink."""

EXTENDED = ("objectives/", "metrics/", "methods/", "data/datasets/")
"""Folders in which an extension is a file of its own, however small."""


def measured():
    return import_script(PACKAGE.parent / "benchmarks" / "code_lines.py")


def test_no_folder_exceeds_its_cap():
    sizes = measured().sizes()
    assert sizes.keys() == CAPS.keys()
    larger = {folder: size for folder, size in sizes.items() if any(map(gt, size, CAPS[folder]))}
    assert larger == {}


def test_file_names_are_unique():
    counts = Counter(file.name for file in PACKAGE.rglob("*.py") if file.name != "__init__.py")
    assert {name for name, count in counts.items() if count > 1} == set()


def test_small_modules_have_several_importers():
    modules = {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    importers = Counter(
        other for name, file in modules.items() for other in set(modules_imported(file, modules)) - {name}
    )
    commands = {command.module for command in COMMANDS.values()}
    small = {
        path
        for name, file in modules.items()
        if importers[name] == 1
        and name not in commands
        and file.name != "__init__.py"
        and not (path := str(file.relative_to(PACKAGE))).startswith(EXTENDED)
        and measured().code_lines(file) < 60
    }
    assert small == SINGLE_IMPORTER


def project(name):
    """Normalise the name of a project, which older metadata writes with an underscore."""
    return name.lower().replace("_", "-")


def test_imported_libraries_are_declared():
    setup = ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    lines = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    declared = {project(re.split(r"[\[<>=; ]", line)[0]) for text in lines for line in text.split("\n")}
    modules = {
        name.partition(".")[0] for file in PACKAGE.rglob("*.py") for name in modules_imported(file, ())
    }
    libraries = modules - sys.stdlib_module_names - {"ssl_vision", "triton"}  # triton comes with torch
    names = packages_distributions()
    assert {each for each in libraries if not declared & set(map(project, names[each]))} == set()
