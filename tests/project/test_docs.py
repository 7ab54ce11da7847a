"""The site: its reference is complete, and its pages name only what exists. Neither needs Sphinx."""

import ast
import importlib
import importlib.util
import re
import textwrap
from pathlib import Path

import pytest
from cases import for_each
from repository import ROOT

import jaxblocks
from jaxblocks import models
from jaxblocks.interop.families import FAMILIES

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not {"_build", "notebooks", "gallery"} & set(path.parts))


def script(name):
    """A script of the folder docs/builders/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "builders" / f"{name}.py")
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


def test_docstrings_of_public_objects_name_the_module_they_refer_to(entries):
    """`help` of an object shows no "top of this module"."""
    of = lambda entry: [entry.value, *(vars(entry.value).values() if isinstance(entry.value, type) else ())]
    found = {entry.name for _, entry in entries for each in of(entry) if "this module" in (each.__doc__ or "")}
    assert not found, found


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
    counts = [[int(cell) for cell in row.strip(" |").split(" | ")[1:]] for row in rows[:-1]]
    *tasks, (ours, *_) = counts
    best = rows[-1].split()[-2]
    words = "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen".split()
    shorter, equal = (words[sum(found)] for found in zip(*((min(t) < o, min(t) == o) for o, *t in tasks), strict=True))
    readme, page = (" ".join(text.split()) for text in (README.read_text(), page))
    assert f"{words[len(tasks)].title()} tasks, from" in readme
    assert f"take {ours} lines; the best of flax, haiku and equinox for each task takes {best} " in readme
    assert f"{shorter} of the {words[len(tasks)]} are shorter elsewhere" in readme
    assert f"{shorter.title()} of the {words[len(tasks)]} are shorter in another library" in page
    assert f"{equal.title()} take as many lines in the best of the others." in page


def test_costs_of_curvature_are_those_that_were_measured():
    """The table of the guide has the medians of benchmarks/RESULTS.md for the MLP and the transformer."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text().split("## Curvature")[1]
    cells = lambda line: [cell.strip() for cell in line.strip("|").split("|")]
    measured = {row[0].split("`")[1]: (row[1], row[3]) for row in map(cells, re.findall(r"^\| `.*", results, re.M)[:4])}
    guide = (DOCS / "guides" / "derivatives.md").read_text()
    rows = map(cells, re.findall(r"^\| `jb[.\w]*\.\w+` \| \*.*", guide, re.M))
    stated = {row[0].strip("`").split(".")[-1]: tuple(row[2:]) for row in rows}
    assert stated == {name: tuple(text.split()[0] for text in found) for name, found in measured.items()}


def test_numbers_of_models_are_those_of_the_library():
    """The README counts the published models, and docs/why.md the kinds of configurations that are read."""
    helpers = {"LoRA", "TransformerBlock", "TransformerMLP"}
    published = {name for name in models.__all__ if name[0].isupper()} - helpers
    parts = {"CLIPImage", "CLIPText", "SentenceEncoder"}  # of CLIP, and what is put around an encoder
    assert f"| {len(published - parts)} published models, text generation |" in README.read_text()
    assert f"| {len(FAMILIES)} values of `model_type` |" in (DOCS / "why.md").read_text()
    guide = " ".join((DOCS / "guides" / "models.md").read_text().split()).split("All are compositions")[0]
    listed, others = (re.findall(r"`(\w+)`", part) for part in guide.split("`SigLIP`. "))
    assert f"holds {len(listed) + 1} published models," in guide
    assert {*listed, "SigLIP"} == published - parts and {*others} == parts | {"CLIP"}


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda path: path.stem)
def test_names_links_and_pictures_of_a_page_exist(page):
    """Each `jb.name`, each relative link, and each picture, which has a text for readers who do not see it."""
    text = page.read_text()
    # GitHub shows roles and fences of MyST as they are, and has no pages that are written for the site.
    assert re.search(r"\{[a-z]\w+\}`|^:::|href=\"(?!https?:)", text, re.MULTILINE) is None
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


def test_solutions_are_collapsed_in_the_notebooks():
    """Code by the tag of MyST-NB, text by a click; pictures have a text."""
    gallery = script("make_gallery")
    code = {"cell_type": "code", "source": ["1"], "outputs": [], "execution_count": None}
    cells = [
        {"cell_type": "markdown", "source": ["# A *title*\n"], "metadata": {}},
        code | {"metadata": {}},
        code | {"metadata": {"tags": ["solution"]}},
        {"cell_type": "markdown", "source": ["Since $1 < 2$.\n"], "metadata": {"tags": ["solution"]}},
    ]
    page = gallery.notebook({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})["cells"]
    assert "'A title'" in page[1]["metadata"]["mystnb"]["image"]["alt"]
    assert [cell["metadata"].get("tags", []) for cell in page[1:3]] == [[], ["solution", "hide-cell"]]
    assert page[0]["source"] == "# A *title*\n"
    assert page[3]["source"] == "<details><summary>Solution</summary>\n\nSince $1 < 2$.\n\n\n</details>"


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


# ---- what readers see ------------------------------------------------------------------------

PACKAGE = sorted((ROOT / "jaxblocks").rglob("*.py"))
COLUMN = 88


def code_of(path):
    """The lines of code that a file shows to readers: blocks of Markdown, cells, examples of docstrings, programs."""
    text = path.read_text()
    if path.suffix == ".md":
        blocks = re.findall(r"^ *```(?:python|py|text|bash)\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
        return [line for block in blocks for line in textwrap.dedent(block).splitlines()]
    if path.parent == ROOT / "notebooks":
        cells = re.split(r"^# %%", text, flags=re.MULTILINE)
        return [line for cell in cells if not cell.startswith(" [markdown]") for line in cell.splitlines()]
    if path.parent == ROOT / "examples":
        return text.splitlines()
    return [line.strip() for line in text.splitlines() if line.strip().startswith((">>> ", "... "))]


@pytest.mark.parametrize("folder", ["docs", "notebooks", "examples", "jaxblocks"])
def test_code_fits_its_column(folder):
    found = {"docs": [*PAGES, README, ROOT / "CONTRIBUTING.md"], "jaxblocks": PACKAGE}
    paths = found.get(folder) or sorted((ROOT / folder).glob("*.py"))
    code = {path: code_of(path) for path in paths}
    assert sum(map(len, code.values())) > 500
    assert {f"{path.name}: {line}" for path, lines in code.items() for line in lines if len(line) > COLUMN} == set()


@for_each({str(path.relative_to(ROOT)): path for path in PACKAGE})
def test_formulas_of_docstrings_are_readable_as_text(path):
    """No commands of TeX, which ``help`` would show; an even number of dollars outside of code."""
    kinds = ast.Module | ast.FunctionDef | ast.ClassDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    for doc in filter(None, map(ast.get_docstring, nodes)):
        text = re.sub(r"``.+?``|^ *(?:>>>|\.\.\. ).*$", "", doc, flags=re.DOTALL | re.MULTILINE)
        formulas = re.findall(r"\$([^$]*)\$|\.\. math::((?:\n+ .*)*)", text)
        assert [one for one in formulas if re.search(r"\\[A-Za-z]", "".join(one))] == [], doc
        assert ":math:" not in doc and re.sub(r"\n\s*[^\n]*>>>[^\n]*", "", text).count("$") % 2 == 0, doc


def test_sections_of_docstrings_are_paragraphs():
    """Else the reference shows them as text of the paragraph before."""
    joined = re.compile(r"\S\n *((?:Args|Attributes|Raises|Returns):)\n")
    assert [path.name for path in PACKAGE if joined.search(path.read_text())] == []


def test_formulas_in_unicode_are_tex_for_the_site():
    formulas = script("formulas")
    assert formulas.tex("γ (x - m) / √(v + ε)") == r"\gamma  (x - m) / \sqrt{v + \varepsilon }"
    assert formulas.tex("∑_{i=1}^N ‖x̂_i‖ ≤ log n Aᵀ") == r"\sum _{i=1}^N \Vert \hat{x} _i\Vert  \le  \log n A^\top "
    assert formulas.tex("softmax_j max(0, x)") == r"\mathrm{softmax} _j \max(0, x)"
    assert formulas.tex(r"\alpha") == r"\alpha"
    shown = formulas.lines("a = ∑_{j ≤ n} b\n    + c\nd ≤ e")
    assert shown == r"\begin{align*}a &= \sum _{j \le  n} b + c\\ d &\le  e\end{align*}"
    assert formulas.in_roles("$n$ of ``$HOME``") == ":math:`n` of ``$HOME``"


def test_lectures_are_named_after_published_sources():
    """A source that readers can find comes first; the lectures stand once in the bibliography."""
    lecture = r"(?:Huszar|Diehl|Cevher|Krapac)"
    sources = [
        " ".join(found.split())
        for path in PACKAGE
        for found in re.findall(r"Sources?: ((?:.|\n)*?)(?=\n\s*\n|\"\"\")", path.read_text())
    ]
    assert len(sources) > 300
    alone = [source for source in sources if re.match(lecture, source)]
    assert len(alone) < 15, alone
    assert [one for one in alone if "arXiv:" in one and "names it" not in one] == []
    bibliography = (DOCS / "bibliography.md").read_text()
    assert [len(re.findall(f"^- .*{name}", bibliography, re.MULTILINE)) for name in ("Diehl", "Krapac")] == [1, 1]


def test_an_interrupted_build_is_removed_and_results_of_notebooks_stay(tmp_path):
    """Without a cache of notebooks, with one, and with a damaged one."""
    recover = script("recover").recover
    built, results = tmp_path / "_build", tmp_path / "results"
    (built / "doctrees").mkdir(parents=True)
    (built / "doctrees" / "half.doctree").write_bytes(b"half")
    assert recover(built, results) == [str(built)] and not built.exists()
    results.mkdir()
    (results / "global.db").write_bytes(b"no database")
    if importlib.util.find_spec("jupyter_cache"):
        assert recover(built, results) == [str(results)] and not results.exists()


def test_pictures_are_complete_or_drawn_again(tmp_path, monkeypatch):
    """A run that fails leaves no picture that would pass as drawn; one that ends is not repeated."""
    gallery, runs = script("make_gallery"), []

    def run(file, *arguments):
        runs.append(file)
        (Path(arguments[-1]) / "one.png").write_bytes(b"picture")
        if len(runs) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(gallery, "_run", run)
    folder = tmp_path / "xor"
    with pytest.raises(KeyboardInterrupt):
        gallery._draw_example("xor", folder)
    assert list(folder.glob("*.png")) == []
    gallery._draw_example("xor", folder)
    gallery._draw_example("xor", folder)
    assert len(runs) == 2 and (folder / "one.png").read_bytes() == b"picture"


OTHER_NAMES = {
    "Dense": ("fully connected", "linear layer"),
    "MLP": ("multilayer perceptron", "fully connected", "feed-forward", "artificial neural network"),
    "Residual": ("skip connection",),
    "Embedding": ("lookup",),
    "ConvTranspose": ("deconvolution",),
    "softmax_cross_entropy": ("log loss",),
    "l2_penalty": ("weight decay", "ridge"),
    "relu": ("rectif",),
    "sigmoid": ("logistic",),
    "mse": ("mean squared error",),
}


def test_other_names_of_the_lectures_are_found_by_search():
    """The search of the site reads the docstrings."""
    text = {name: " ".join(getattr(jaxblocks, name).__doc__.split()).lower() for name in OTHER_NAMES}
    missing = [(name, term) for name, terms in OTHER_NAMES.items() for term in terms if term not in text[name]]
    assert missing == []
