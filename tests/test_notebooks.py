"""The notebooks run from top to bottom, and are what their text pairs say."""

import ast
from pathlib import Path

import jax
import jupytext
import matplotlib
import matplotlib.pyplot as plt
import pytest

matplotlib.use("agg")
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


def _cells(path):
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def test_every_notebook_has_its_text_pair():
    """`notebooks/name.py`, in which changes are reviewed, and `notebooks/name.ipynb`, which is opened."""
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]


@pytest.mark.parametrize("text", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_its_text_pair(text):
    """The same cells in both; `make notebooks` writes the notebooks anew. No output is kept in them."""
    assert _cells(text) == _cells(text.with_suffix(".ipynb"))
    assert not any(cell.get("outputs") for cell in jupytext.read(text.with_suffix(".ipynb")).cells)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(text, tmp_path, monkeypatch):
    """Cell by cell in one namespace, in the default configuration of JAX; what a cell ends with is shown."""
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
                _run(source, f"{text.name}, cell {number}", names)
    plt.close("all")


def _run(source, where, names):
    """One cell; where it ends with an expression, its value is written out, as a notebook would."""
    program = ast.parse(source)
    last = program.body.pop() if program.body and isinstance(program.body[-1], ast.Expr) else None
    exec(compile(program, where, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), where, "eval"), names)
        assert isinstance(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value), str)
