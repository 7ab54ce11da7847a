"""Count the lines of the programs that the pages for users of other libraries show side by side.

``python docs/builders/count_lines.py`` prints the table of ``docs/why.md``. A line is what stands in the program,
wrapped at 88 columns, without empty lines and imports.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "coming_from"


def lines(code: str) -> int:
    """The number of lines without empty ones, comments and imports."""
    rest = (line.strip() for line in code.splitlines())
    return sum(
        bool(line) and not line.startswith(("#", "import ", "from ")) for line in rest
    )


def programs(library: str) -> dict[str, tuple[int, int]]:
    """The lines of each task in the other library and here."""
    text = (FOLDER / f"{library}.md").read_text()
    found = {}
    for section in re.split(r"^### \d+\. ", text, flags=re.MULTILINE)[1:]:
        cells = re.findall(
            r"^<div>\n(.*?)^</div>$", section, flags=re.MULTILINE | re.DOTALL
        )
        theirs, ours = (
            sum(map(lines, re.findall(r"```python\n(.*?)```", cell, re.DOTALL)))
            for cell in cells[:2]
        )
        found[section.split("\n")[0]] = theirs, ours
    return found


def table(libraries: tuple[str, ...] = ("flax", "haiku", "equinox")) -> list[str]:
    """The rows of the table: the longest program here, those of the libraries, and the sums."""
    counts = {library: programs(library) for library in libraries}
    rows = []
    for task in counts[libraries[0]]:
        ours = max(counts[library][task][1] for library in libraries)
        rows.append((task, ours, *(counts[library][task][0] for library in libraries)))
    rows.append(
        ("all fifteen", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    )
    best = sum(min(row[2:]) for row in rows[:-1])
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return [*lines, f"The best of the three for each task: {best} lines."]


if __name__ == "__main__":
    print("\n".join(table()))
