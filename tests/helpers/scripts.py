"""Import of scripts that are not part of a package, such as those of benchmarks/ and docs/."""

import importlib.util
from pathlib import Path
from types import ModuleType


def import_script(path: Path) -> ModuleType:
    """Run a script as a new module and return it. ``sys.modules`` stays as it is."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
