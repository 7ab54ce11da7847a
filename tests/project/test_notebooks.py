"""The notebooks run from top to bottom and match their text pairs."""

import ast

import jax
import jupytext
import matplotlib
import matplotlib.pyplot as plt
import pytest
from repository import ROOT

matplotlib.use("agg")
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


def _cells(path):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def test_every_notebook_has_its_text_pair():
    """Each notebook exists as `notebooks/name.py`, for the review of changes, and as `notebooks/name.ipynb`."""
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]


@pytest.mark.parametrize("text", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_matches_its_text_pair(text):
    """Both have the same cells; `make notebooks` regenerates the notebooks. They contain no output."""
    assert _cells(text) == _cells(text.with_suffix(".ipynb"))
    assert not any(cell.get("outputs") for cell in jupytext.read(text.with_suffix(".ipynb")).cells)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(text, tmp_path, monkeypatch):
    """Run the cells in one namespace, in the default configuration of JAX, and display the results of cells.

    A notebook that measures has a variable ``quick``, which makes its nets small.
    """
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_key_reuse(False),
        jax.debug_nans(False),
    ):
        for number, (kind, source) in enumerate(_cells(text.with_suffix(".ipynb"))):
            if kind == "code":
                source = source.replace("quick = False", "quick = True")
                _run(source, f"{text.name}, cell {number}", names)
    plt.close("all")


def _run(source, where, names):
    """Run one cell; if it ends with an expression, display its value, as a notebook does."""
    program = ast.parse(source)
    last = program.body.pop() if program.body and isinstance(program.body[-1], ast.Expr) else None
    exec(compile(program, where, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), where, "eval"), names)
        assert isinstance(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value), str)
