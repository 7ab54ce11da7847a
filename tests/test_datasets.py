"""Data sets: their values against the published sources, and the errors for missing sources."""

import builtins
import string
import sys
import textwrap

import numpy as np
import pytest

from jaxblocks import datasets

pytest.importorskip("sklearn", reason="scikit-learn has the data sets")


def test_digits_are_multiples_of_one_sixteenth():
    """Sums and counts of UCI's optdigits.tes; the first image has the pixels of the file."""
    images, labels = datasets.digits()
    assert (images.dtype, labels.dtype) == (np.float32, np.int32)
    assert np.array_equal(images * 16, np.round(images * 16))
    assert float((images * 16).sum()) == 561718
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # rows of the first image, a 0, in the file optdigits.tes
    assert (images[0, :2, :, 0] * 16).tolist() == [[0, 0, 5, 13, 9, 1, 0, 0], [0, 0, 13, 15, 10, 15, 5, 0]]


def test_text_of_the_standard_library(monkeypatch):
    """The three parts: the language reference, the docstrings of modules, and the sources without tests."""
    topics = datasets.standard_library_text()
    assert "Assert statements" in topics and topics == datasets.standard_library_text(part="topics")
    if sys.version_info[:2] == (3, 11):
        assert len(set(topics)) == 103 and len(topics) > 450_000
    files = datasets._library_files()
    names = [path.name for path in files]
    assert len(files) > 400 and {"textwrap.py", "case.py"} <= set(names)
    assert not any("test" in path.parts for path in files) and "test_textwrap.py" not in names
    monkeypatch.setattr(
        datasets, "_library_files", lambda: [p for p in files if p.name in ("string.py", "textwrap.py")]
    )
    docstrings = datasets.standard_library_text(part="docstrings")
    assert docstrings.index(string.__doc__.strip()) < docstrings.index(textwrap.__doc__.strip())
    assert textwrap.dedent(string.Template.__doc__ or "").strip() in docstrings and "def dedent" not in docstrings
    assert "def dedent(text):" in datasets.standard_library_text(part="sources")


def test_errors_about_missing_sources(monkeypatch, tmp_path):
    """Without scikit-learn, pydoc_data or sources, errors name what is missing; following their advice works."""
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("pydoc_data"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        patch.setitem(sys.modules, "sklearn.datasets", None)
        with pytest.raises(ModuleNotFoundError, match=r'digits expected scikit-learn.* install "jaxblocks\[data\]"'):
            datasets.digits()
        with pytest.raises(ModuleNotFoundError, match='got a Python without it .* part="docstrings"'):
            datasets.standard_library_text()
    with pytest.raises((ValueError, TypeError), match="part to be 'topics' or 'docstrings' or 'sources', got 'poems'"):
        datasets.standard_library_text(part="poems")
    with monkeypatch.context() as patch:
        patch.setattr(datasets.sysconfig, "get_path", lambda name: str(tmp_path))
        with pytest.raises(FileNotFoundError, match='got none; .* pass part="topics"'):
            datasets.standard_library_text(part="sources")
        assert datasets.standard_library_text(part="topics")
