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


def main() -> None:
    """Print a line for each package, and the total."""
    counts: Counter[str] = Counter()
    for file in sorted(PACKAGE.rglob("*")):
        if file.suffix in (".py", *TEMPLATES):
            parts = file.relative_to(PACKAGE).parts
            counts[parts[0] if len(parts) > 1 else "(modules)"] += code_lines(file)
    for name, count in counts.most_common():
        print(f"{name:12} {count:6,}")
    print(f"{'total':12} {sum(counts.values()):6,}")


if __name__ == "__main__":
    main()
