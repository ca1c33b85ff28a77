"""Count lines of code for each package: without docstrings, comments and blank lines.

    python benchmarks/code_lines.py

Templates, style sheets and scripts of the report count as well, without blank lines.
"""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ssl_vision"
TEMPLATES = (".html", ".jinja", ".css", ".js")


def code_lines(file: Path) -> int:
    """Return the number of lines of code in a file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if file.suffix != ".py":
        return sum(bool(line.strip()) for line in lines)
    strings: set[int] = set()
    for node in ast.walk(ast.parse("\n".join(lines))):
        for child in ast.iter_child_nodes(node):
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                strings |= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in strings
        for number, line in enumerate(lines, 1)
    )


def sizes() -> dict[str, tuple[int, int]]:
    """Return code lines and Python files of each folder of the package; "" is the package itself."""
    lines, files = Counter[str](), Counter[str]()
    for file in PACKAGE.rglob("*"):
        if file.suffix in (".py", *TEMPLATES):
            folders = file.relative_to(PACKAGE).parts[:-1]
            folder = "/".join(folders[: 2 if folders[:1] == ("experiments",) else 1])
            lines[folder] += code_lines(file)
            files[folder] += file.suffix == ".py"
    return {folder: (count, files[folder]) for folder, count in sorted(lines.items())}


def main() -> None:
    """Print a line for each folder, and the total."""
    print(f"{'':24}{'lines':>7}{'files':>7}")
    for folder, (lines, files) in sizes().items():
        print(f"{folder or '(modules)':24}{lines:7,}{files:7}")
    lines, files = map(sum, zip(*sizes().values(), strict=True))
    print(f"{'total':24}{lines:7,}{files:7}")


if __name__ == "__main__":
    main()
