"""Small data sets without a download: the digits of scikit-learn, and text of the Python standard library.

The digits are NumPy arrays in the order of the source, neither shuffled nor split: see `jaxblocks.train_val_test_split`
and `jaxblocks.minibatches`. ``pip install "jaxblocks[data]"`` installs scikit-learn.

Images are ``(rows, height, width, channels)``.
"""

import ast
import sysconfig
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.system import library
from jaxblocks.core.lazy import explain_missing_names

__all__ = ["digits", "standard_library_text"]
explain_missing_names(__name__)


def digits() -> tuple[Float[np.ndarray, "1797 8 8 1"], Int[np.ndarray, "1797"]]:
    """Handwritten digits: 1797 gray images of 8 by 8 pixels, and the digits.

    A pixel is the number of inked points in a 4 by 4 block of the scan, 0 to 16, divided by 16 so that it lies in
    [0, 1]. Classes are nearly balanced (174 to 183 images each). Different people wrote about the first 1440 digits
    and the rest, so a split in order is harder than a random split.

    Returns:
        ``(images, labels)``: float32 ``(1797, 8, 8, 1)`` and int32 ``(1797,)``, the digits 0 to 9.

    Raises:
        ModuleNotFoundError: without scikit-learn.

    >>> images, labels = digits()
    >>> images.shape, float(images.max()), labels[:5].tolist()
    ((1797, 8, 8, 1), 1.0, [0, 1, 2, 3, 4])

    Source: Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits" (UCI), its test part, from
    ``sklearn.datasets.load_digits``.
    """
    loaded = library("sklearn.datasets", "contains the data", "data", "scikit-learn").load_digits()
    # Pixels count from 0 to 16.
    return (loaded.images[..., None] / 16).astype(np.float32), loaded.target.astype(np.int32)


@checked
def standard_library_text(*, part: Literal["topics", "docstrings", "sources"] = "topics") -> str:
    """English and Python text from the standard library of the running Python, for training language models.

    The text differs between Python versions: state the version together with your results.

    Args:
        part: the text to read. ``"topics"``: the language reference that ``help("topics")`` shows, prose of about 0.5
            million characters, 100 distinct ones (Python 3.11: 465,126, 103 distinct). ``"docstrings"``: those of all
            modules, classes and functions, about 1.8 million characters, read in two seconds. ``"sources"``: the source
            files, about 12 million characters, mostly code. Tests are excluded.

    Raises:
        ValueError: for another ``part``.
        ModuleNotFoundError: where Python was installed without ``pydoc_data`` (slim images omit it).
        FileNotFoundError: where the library's source files are missing.

    >>> text = standard_library_text()
    >>> text.splitlines()[0], len(text) > 400_000
    ('The "assert" statement', True)

    Source: the Python Software Foundation, license PSF-2.0.
    """
    if part == "topics":
        try:
            from pydoc_data.topics import topics
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "standard_library_text expected the module pydoc_data.topics, got a Python without it (slim images "
                'omit it); use a full installation, or pass part="docstrings" or part="sources".',
                name=error.name,
            ) from error
        return "\n\n".join(topics[name] for name in sorted(topics))
    texts = []
    for path in _library_files():
        try:
            text = path.read_text("utf-8")
            texts += _docstrings(text) if part == "docstrings" else [text]
        except (UnicodeDecodeError, SyntaxError, OSError):
            continue  # some files are invalid on purpose
    got, repair = "none", 'use a full installation of Python, or pass part="topics"'
    expected = f"the sources of the standard library in {sysconfig.get_path('stdlib')}"
    require(texts, expected, got, repair, error=FileNotFoundError)
    return "\n\n".join(texts)


_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}


def _library_files():
    root = Path(sysconfig.get_path("stdlib"))
    # Sorted by the parts of the path, so that the order does not depend on the file system.
    paths = {path.relative_to(root).parts: path for path in root.rglob("*.py")}
    return [paths[parts] for parts in sorted(paths) if not _LEFT_OUT & set(parts)]


def _docstrings(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of string escapes in the library
        tree = ast.parse(text)
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
    return [words for node in nodes if (words := ast.get_docstring(node))]
