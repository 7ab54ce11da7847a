"""Check the built site: every link inside it leads somewhere, and no page reads a file from elsewhere.

python docs/builders/check_site.py docs/_build/html
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

READS = {
    "img": "src",
    "script": "src",
    "link": "href",
    "source": "src",
    "iframe": "src",
}


class Page(HTMLParser):
    """The anchors of a page, its links, what it reads, and pictures without a text."""

    def __init__(self, text: str):
        """Parse the page."""
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.reads: list[str] = []
        self.silent: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Collect one tag."""
        named = dict(attrs)
        self.anchors |= {named[name] for name in ("id", "name") if named.get(name)}
        if tag == "a" and named.get("href"):
            self.links.append(named["href"])
        if (
            tag in READS
            and named.get(READS[tag])
            and named.get("rel") not in ("canonical", "index", "search", "next", "prev")
        ):
            self.reads.append(named[READS[tag]])
        if tag == "img" and not named.get("alt"):
            self.silent.append(named.get("src", ""))


def problems(folder: Path) -> list[str]:
    """What is wrong, one line each."""
    pages = {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        place = path.relative_to(folder)
        found += [
            f"{place}: a picture without alternative text: {name[:80]}"
            for name in page.silent
        ]
        for target in [*page.links, *page.reads]:
            parts = urlsplit(target)
            if parts.scheme in ("data", "mailto"):
                continue
            if parts.scheme or target.startswith("//"):
                if target in page.reads:
                    found.append(f"{place}: reads {target}")
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.exists():
                found.append(f"{place}: no file {target}")
            elif (
                parts.fragment
                and file in pages
                and unquote(parts.fragment) not in pages[file].anchors
            ):
                found.append(f"{place}: no place {target}")
    for path in sorted(folder.rglob("*.css")):
        remote = re.findall(
            r"(?:@import|url\()\s*['\"]?(https?:[^'\")]+)", path.read_text()
        )
        found += [f"{path.relative_to(folder)}: reads {target}" for target in remote]
    return found


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]).resolve())
    print(
        "\n".join(lines) or "the site is complete: no dead link, nothing from elsewhere"
    )
    sys.exit(bool(lines))
