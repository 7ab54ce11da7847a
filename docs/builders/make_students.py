"""Write the students' version of the notebooks: without the solutions, in ``build/students``.

``make notebooks`` runs it. A cell with the tag ``solution`` is left out; cells with the tags ``exercise`` and ``check``
stay, and a check fails until its exercise is complete.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def without_solutions(content: dict) -> dict:
    """A notebook without its solutions."""
    kept = [cell for cell in content["cells"] if "solution" not in tags(cell)]
    return content | {"cells": kept}


def tags(cell: dict) -> list[str]:
    """The tags of a cell."""
    return cell["metadata"].get("tags", [])


def write(folder: Path) -> None:
    """Write each notebook without its solutions; a notebook that no longer exists is removed."""
    sources = sorted((ROOT / "notebooks").glob("*.ipynb"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in {path.name for path in folder.glob("*.ipynb")} - {
        path.name for path in sources
    }:
        (folder / old).unlink()
    for source in sources:
        stripped = without_solutions(json.loads(source.read_text()))
        (folder / source.name).write_text(json.dumps(stripped, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "students")
