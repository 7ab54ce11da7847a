"""The notebooks run from top to bottom, match their text pairs, and can be completed by students."""

import ast
import contextlib
import dis
import json
import re
import types

import cheap_programs
import jax
import jupytext
import make_reference
import make_students
import matplotlib
import matplotlib.pyplot as plt
import notebooks_0_to_4
import notebooks_5_to_9
import pytest
from legible import problems
from repository import ROOT

matplotlib.use("agg")
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
PICTURES = notebooks_0_to_4.PICTURES | notebooks_5_to_9.PICTURES
LONG = {"6_from_lookup_to_attention", "9_diffusion"}  # to train takes longer than to compile with optimizations
each_notebook = pytest.mark.parametrize("text", NOTEBOOKS, ids=lambda path: path.stem)


def _cells(path):
    """The kind, the source and the tag (or "") of each cell."""
    return [(cell.cell_type, cell.source, " ".join(make_students.tags(cell))) for cell in jupytext.read(path).cells]


def test_every_notebook_has_its_text_pair():
    """Each notebook exists as `notebooks/name.py`, for the review of changes, and as `notebooks/name.ipynb`."""
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]


@each_notebook
def test_notebook_matches_its_text_pair(text):
    """Both have the same cells; `make notebooks` regenerates the notebooks. They contain no output."""
    assert _cells(text) == _cells(text.with_suffix(".ipynb"))
    assert not any(cell.get("outputs") for cell in jupytext.read(text.with_suffix(".ipynb")).cells)


@each_notebook
def test_notebook_imports_only_public_names(text):
    for node in ast.walk(ast.parse(text.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("jaxblocks"):
            assert node.module in make_reference.modules(), node.module
        if isinstance(node, ast.ImportFrom | ast.Import):
            assert "jax._src" not in ast.unparse(node)


# ---- exercises -------------------------------------------------------------------------------


@each_notebook
def test_exercises_have_one_form(text):
    """A cell to complete, its solution, a check; a solution may be text alone. Nothing later reads their names."""
    cells = [cell for cell in _cells(text) if cell[0] == "code" or cell[2]]
    letter = {("code", tag): tag[:1] or "." for tag in ("", "exercise", "solution", "check")} | {
        ("markdown", "solution"): "t"
    }
    assert re.fullmatch(r"(\.|t|et*s[st]*c)*", "".join(letter[kind, tag] for kind, _, tag in cells))
    private: set[str] = set()
    for _, source, tag in (cell for cell in cells if cell[0] == "code"):
        bound, read = _names(source)
        if tag in ("exercise", "solution"):
            private |= bound
        elif tag == "":
            assert not read & private, f"read outside of the exercise: {read & private}"
            private -= bound


def _names(source):
    """The names that a cell binds at its top level, and those of other cells that it reads."""
    top = compile(source, "cell", "exec")
    bound = {step.argval for step in dis.get_instructions(top) if step.opname == "STORE_NAME"}
    return bound, _read(top) - bound


def _read(code):
    read = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    return read.union(*(_read(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def test_students_version_has_no_solutions(tmp_path):
    """It has all other cells; a notebook that was renamed is removed."""
    (tmp_path / "old.ipynb").write_text("{}")
    make_students.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.with_suffix(".ipynb").name for path in NOTEBOOKS}
    for text in NOTEBOOKS:
        kept = json.loads((tmp_path / f"{text.stem}.ipynb").read_text())["cells"]
        assert [cell["cell_type"] for cell in kept] == [kind for kind, _, tag in _cells(text) if tag != "solution"]


# ---- running ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@each_notebook
def test_notebook_runs(text, tmp_path, monkeypatch):
    """Run the cells in one namespace, in the default configuration of JAX, and display the results of cells.

    A check fails with a sentence before the solution, and passes after it. Each picture is legible and shows what the
    table of pictures says. A notebook that measures has a variable ``quick``, which makes its nets small.
    """
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    pictures, incomplete = iter(PICTURES[text.stem]), {}
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_key_reuse(False),
        jax.debug_nans(False),
        cheap_programs.optimized() if text.stem in LONG else contextlib.nullcontext(),
    ):
        for number, (kind, source, tag) in enumerate(_cells(text.with_suffix(".ipynb"))):
            if kind != "code":
                continue
            source, where = source.replace("quick = False", "quick = True"), f"{text.name}, cell {number}"
            if tag == "check":
                with pytest.raises(AssertionError, match=r"\w+ \w+"):
                    _run(source, where, incomplete)
            _run(source, where, names)
            if tag == "exercise":
                incomplete = dict(names)
            for figure in map(plt.figure, plt.get_fignums()):
                assert problems(figure) == [], where
                next(pictures)(figure, names)
            plt.close("all")
    assert not list(pictures)


def _run(source, where, names):
    """Run one cell; if it ends with an expression, display its value, as a notebook does."""
    program = ast.parse(source)
    last = program.body.pop() if program.body and isinstance(program.body[-1], ast.Expr) else None
    exec(compile(program, where, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), where, "eval"), names)
        assert isinstance(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value), str)
        assert "matplotlib" not in repr(value) and "Text(" not in repr(value), f"{where} displays {value!r}"
