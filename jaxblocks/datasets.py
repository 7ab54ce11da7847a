"""Small data sets without a download: those of scikit-learn, and text of the Python standard library.

Each function returns NumPy arrays (or a ``str``), in the order of the source, neither shuffled nor split nor scaled
(except for pixels): see `jaxblocks.train_val_test_split` and `jaxblocks.minibatches`.
``pip install "jaxblocks[data]"`` installs scikit-learn.

Axis letters: ``rows`` (examples); ``features`` (measured quantities); images are ``(rows, height, width, channels)``.
"""

import ast
import sysconfig
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from jaxblocks.checks.errors import require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.system import library
from jaxblocks.core.lazy import explain_missing_names

__all__ = ["breast_cancer", "diabetes", "digits", "iris", "standard_library_text", "wine"]
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
    loaded = _sklearn().load_digits()
    # Pixels count from 0 to 16.
    return (loaded.images[..., None] / 16).astype(np.float32), loaded.target.astype(np.int32)


def iris() -> tuple[Float[np.ndarray, "150 4"], Int[np.ndarray, "150"]]:
    """Iris flowers: four lengths in cm, and the species, one of three.

    Features: sepal length, sepal width, petal length, petal width, in cm. Labels: 0 setosa, 1 versicolor,
    2 virginica, 50 flowers each, sorted by label.

    Returns:
        ``(x, labels)``: float32 ``(150, 4)`` and int32 ``(150,)``.

    Raises:
        ModuleNotFoundError: without scikit-learn.

    >>> x, labels = iris()
    >>> (
    ...     x[0].tolist() == np.float32([5.1, 3.5, 1.4, 0.2]).tolist(),
    ...     np.bincount(labels).tolist(),
    ... )
    (True, [50, 50, 50])

    Source: Fisher 1936, "The use of multiple measurements in taxonomic problems", from
    ``sklearn.datasets.load_iris``.
    """
    return _labeled(_sklearn().load_iris())


def wine() -> tuple[Float[np.ndarray, "178 13"], Int[np.ndarray, "178"]]:
    """Wines of one region of Italy: thirteen results of chemical analysis, and the cultivar, one of three.

    The features differ in scale (0.1 to 1680), so standardize them before training: alcohol (percent by volume),
    malic acid, ash, alcalinity of ash, magnesium (mg/l), total phenols, flavanoids, nonflavanoid phenols,
    proanthocyanins, color intensity, hue, OD280/OD315 of diluted wines (a ratio), proline (mg/l); the source states
    no unit for the others. Labels: 0, 1, 2 with 59, 71, 48 wines, sorted by label.

    Returns:
        ``(x, labels)``: float32 ``(178, 13)`` and int32 ``(178,)``.

    Raises:
        ModuleNotFoundError: without scikit-learn.

    >>> x, labels = wine()
    >>> x.shape, np.bincount(labels).tolist()
    ((178, 13), [59, 71, 48])

    Source: Aeberhard and Forina 1992, "Wine" (UCI), from ``sklearn.datasets.load_wine``.
    """
    return _labeled(_sklearn().load_wine())


def breast_cancer() -> tuple[Float[np.ndarray, "569 30"], Int[np.ndarray, "569"]]:
    """Cell nuclei in images of breast tumors: thirty numbers for each tumor, and whether it was benign.

    Ten quantities of the nuclei: radius, texture (standard deviation of gray values), perimeter, area, smoothness,
    compactness, concavity, concave points, symmetry, fractal dimension; lengths in pixels of the image. Features 0 to
    9 are their means over the nuclei, 10 to 19 the standard errors of these, 20 to 29 the means of the three largest.
    Labels: 0 malignant (212), 1 benign (357). Standardize before training: the scales differ by a factor of 10^5.

    Returns:
        ``(x, labels)``: float32 ``(569, 30)`` and int32 ``(569,)``.

    Raises:
        ModuleNotFoundError: without scikit-learn.

    >>> x, labels = breast_cancer()
    >>> x.shape, np.bincount(labels).tolist()
    ((569, 30), [212, 357])

    Source: Wolberg, Street and Mangasarian 1995, "Breast Cancer Wisconsin (Diagnostic)" (UCI), from
    ``sklearn.datasets.load_breast_cancer``.
    """
    return _labeled(_sklearn().load_breast_cancer())


def diabetes() -> tuple[Float[np.ndarray, "442 10"], Float[np.ndarray, "442 1"]]:
    """Patients with diabetes: ten measurements, and the progression of the disease within a year (regression).

    Features in their own units: age (years), sex (1 or 2), body mass index (kg/m^2), mean blood pressure (mmHg), and
    six of blood serum: s1 total cholesterol, s2 low-density and s3 high-density lipoproteins (mg/dl), s4 ratio of s1
    to s3, s5 logarithm of triglycerides, s6 blood sugar (mg/dl). The target is a score from 25 to 346, without unit.

    Returns:
        ``(x, y)``: float32 ``(442, 10)`` and float32 ``(442, 1)``, the shape of the outputs of ``Dense(1)``.

    Raises:
        ModuleNotFoundError: without scikit-learn.

    >>> x, y = diabetes()
    >>> (
    ...     x[0, :4].tolist() == np.float32([59, 2, 32.1, 101]).tolist(),
    ...     float(y.min()),
    ...     float(y.max()),
    ... )
    (True, 25.0, 346.0)

    Source: Efron, Hastie, Johnstone and Tibshirani 2004, "Least angle regression", from
    ``sklearn.datasets.load_diabetes(scaled=False)``.
    """
    # As measured, not in the units to which scikit-learn scales them.
    loaded = _sklearn().load_diabetes(scaled=False)
    return loaded.data.astype(np.float32), loaded.target.astype(np.float32)[:, None]


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


def _labeled(loaded):
    return loaded.data.astype(np.float32), loaded.target.astype(np.int32)


def _sklearn() -> Any:
    return library("sklearn.datasets", "contains the data", "data", "scikit-learn")
