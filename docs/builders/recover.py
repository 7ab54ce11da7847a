"""Remove what a build of the site left that was killed; ``make docs`` runs it then.

Sphinx writes its pages and its memory of them in place, so these are removed. Results of notebooks stay, except for
those that cannot be read. (The gallery and the interactive page are written elsewhere and moved when complete.)
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def recover(built: Path, results: Path) -> list[str]:
    """Remove the built site, and results of notebooks that are damaged; returns what was removed."""
    removed = [str(built)] if built.exists() else []
    shutil.rmtree(built, ignore_errors=True)
    if not results.exists():
        return removed
    try:
        from jupyter_cache import get_cache

        cache = get_cache(results)
        for record in cache.list_cache_records():
            try:
                cache.get_cache_bundle(record.pk)
            except Exception:  # any damage: the notebook is executed again
                cache.remove_cache(record.pk)
                removed.append(record.uri)
    except Exception:
        shutil.rmtree(results)
        removed.append(str(results))
    return removed


if __name__ == "__main__":
    print("removed:", *recover(ROOT / "docs" / "_build", ROOT / ".cache" / "notebooks"))
