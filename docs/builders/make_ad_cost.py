"""Write ``docs/ad_cost/ad_cost.html``, the page on which the cost of derivatives can be explored.

``docs/conf.py`` calls ``write()``, and Sphinx copies the page. It is made again where the package or the example is
newer.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ad_functions.py"


def write(folder: Path, measure: bool = True) -> None:
    """Write the page; without ``measure`` operations are counted, and nothing is timed."""
    folder.mkdir(exist_ok=True)
    page = folder / "ad_cost.html"
    sources = [EXAMPLE, *(ROOT / "jaxblocks" / "ad").rglob("*.*")]
    newest = max(
        path.stat().st_mtime for path in sources if "__pycache__" not in path.parts
    )
    timed = page.exists() and '"device":""' not in page.read_text(encoding="utf-8")
    if page.exists() and page.stat().st_mtime > newest and (timed or not measure):
        return
    print("making the page of the cost of derivatives ...", flush=True)
    # A run that is interrupted leaves no page.
    unfinished = folder.with_name("ad_cost_unfinished.html")
    command = [
        sys.executable,
        str(EXAMPLE),
        "--out",
        str(unfinished),
        *([] if measure else ["--count-only"]),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{EXAMPLE.name} failed: {done.stderr[-2000:]}")
    unfinished.replace(page)
