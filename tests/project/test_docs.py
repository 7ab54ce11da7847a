"""The site: its reference is complete, and its pages name only what exists. Neither needs Sphinx."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
from repository import ROOT

import jaxblocks

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not {"_build", "notebooks", "gallery"} & set(path.parts))


def script(name):
    """A script of the folder docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference():
    return script("make_reference")


@pytest.fixture(scope="module")
def entries(reference):
    return [(page, entry) for page in reference.pages() for section in page.sections.values() for entry in section]


def test_every_public_name_stands_on_exactly_one_page(reference, entries):
    """Each pair of a name and a value that some module exports is one entry; the top level comes first."""
    public = {
        (name, id(getattr(module, name)))
        for module in map(importlib.import_module, reference.modules())
        for name in module.__all__
    }
    listed = [(entry.name, id(entry.value)) for _, entry in entries]
    assert len(listed) == len(set(listed))
    assert set(listed) == public
    assert {entry.name for page, entry in entries if page.part == "The top level"} == set(jaxblocks.__all__)


def test_every_module_that_users_import_has_its_page(reference):
    pages = {page.module for page in reference.pages()}
    assert {"jaxblocks", *(f"jaxblocks.{name}" for name in jaxblocks._SUBMODULES)} <= pages


def test_the_headings_of_the_reference_are_those_of_the_map(reference):
    """Each heading of the reference is a comment of ``jaxblocks/__init__.py``, in the same order."""
    source = Path(jaxblocks.__file__).read_text()
    places = [source.index(f"# {heading}") for heading in reference.top_level()]
    assert len(places) > 15
    assert places == sorted(places)


def test_every_function_of_the_reference_has_a_summary(entries):
    missing = [entry.path for _, entry in entries if entry.kind in ("function", "class") and len(entry.summary) < 10]
    assert missing == []


def test_signatures_are_those_of_the_source(reference):
    """The names of types stay as they are written; the decorators do not change them."""
    assert reference.signature(jaxblocks.Bias).startswith("(*, bias_init: Callable=initializers.zeros, dtype: ")
    assert reference.signature(jaxblocks.relu).endswith("-> Float[Array, '*shape']")


def test_text_of_docstrings_is_mended_for_the_site(reference):
    """Bars and stars of running text show as they are; literals, roles, emphasis and examples do not change."""
    assert reference.mend("``a``s, ``b`` and |x| of (*batch, n)") == r"``a``\ s, ``b`` and \|x\| of (\*batch, n)"
    same = "*sums* of :math:`|x|` and ``*batch``\n\n>>> print(*[1] | {})\n{}\n\nLines::\n\n    f(*x | y)"
    assert reference.mend(same) == same
    listed = reference.mend("Side inputs of ``apply``:\n    train: a bool,\n        or so.\n    key: a key.")
    assert listed == "Side inputs of ``apply``:\n\n* *train*: a bool,\n  or so.\n* *key*: a key."


@pytest.mark.parametrize("name", ["guides", "coming_from"])
def test_every_page_is_in_the_table_of_contents(name):
    listed = re.findall(r"^(\w+)$", (DOCS / name / "index.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted({path.stem for path in (DOCS / name).glob("*.md")} - {"index"})


def test_lines_of_the_comparison_are_those_of_its_programs():
    """The table of docs/why.md, and what the README says of it."""
    rows = script("count_lines").table()
    page = (DOCS / "why.md").read_text()
    assert [row for row in rows if row not in page] == []
    ours, best = rows[-2].split(" | ")[1], rows[-1].split()[-2]
    said = f"take {ours} lines; the best of flax, haiku and equinox for each task takes {best} "
    assert said in " ".join(README.read_text().split())


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda path: path.stem)
def test_names_links_and_pictures_of_a_page_exist(page):
    """Each `jb.name`, each relative link, and each picture, which has a text for readers who do not see it."""
    text = page.read_text()
    for path in set(re.findall(r"\b(?:jb|jaxblocks)((?:\.[A-Za-z]\w*)+)", re.sub(r"\w+/jaxblocks\S*", "", text))):
        value = jaxblocks
        for name in path.strip(".").split("."):
            if not hasattr(value, name):
                value = importlib.import_module(f"{value.__name__}.{name}")
            else:
                value = getattr(value, name)
    for alternative, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text):
        assert len(alternative) > 10, target
        assert (page.parent / target).exists(), target
    for target in re.findall(r"(?<!!)\[[^\]]*\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / target).exists(), target


def test_errors_of_lectures_are_marked_in_the_notebooks():
    """Quotations that begin in bold type are boxes, other quotations are not; every notebook that corrects has some."""
    gallery = script("make_gallery")
    marked = gallery.mark_errata(
        "Text.\n\n> **The notes state** $x$\n> and more.\n\n**Correction:** $y$.\n\n> Other.\n"
    )
    assert marked == (
        "Text.\n\n:::{admonition} Erratum of a lecture\n:class: warning\n\n**The notes state** $x$\nand more.\n:::\n"
        "\n**Correction:** $y$.\n\n> Other.\n"
    )
    cells = [{"cell_type": "markdown", "source": ["# A *title*\n"], "metadata": {}}]
    cells += [{"cell_type": "code", "source": ["1"], "metadata": {}, "outputs": [], "execution_count": None}]
    page = gallery.notebook({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    assert "'A title'" in page["cells"][1]["metadata"]["mystnb"]["image"]["alt"]


def test_the_gallery_has_every_figure_with_its_lines():
    gallery = script("make_gallery")
    assert [number for number, *_ in gallery._numbered()] == [f"F{i:02d}" for i in range(1, 37)]
    assert all(source.startswith("def ") and len(title) > 10 for _, _, title, source in gallery._numbered())
    for name in gallery.EXAMPLES:
        assert "--out" in (DOCS.parent / "examples" / f"{name}.py").read_text()


def test_the_check_of_the_site_finds_what_is_wrong(tmp_path):
    """One page with each mistake, and one without any."""
    (tmp_path / "good.html").write_text('<h1 id="top">.</h1><a href="#top">.</a><a href="https://elsewhere.org">.</a>')
    (tmp_path / "bad.html").write_text(
        '<a href="good.html#gone">.</a><a href="gone.html">.</a><img src="good.html">'
        '<script src="https://elsewhere.org/a.js"></script>'
    )
    (tmp_path / "style.css").write_text("@import url(https://elsewhere.org/font.css);")
    assert script("check_site").problems(tmp_path) == [
        "bad.html: a picture without alternative text: good.html",
        "bad.html: no place good.html#gone",
        "bad.html: no file gone.html",
        "bad.html: reads https://elsewhere.org/a.js",
        "style.css: reads https://elsewhere.org/font.css",
    ]
