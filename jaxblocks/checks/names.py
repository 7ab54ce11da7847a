"""The name that is meant by one that does not exist: of an option, or of a function or layer.

The public names of the submodules are read from the text of their ``__all__``, only when such an error is made, so that
nothing is imported for it.
"""

import ast
import contextlib
import difflib
import functools
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from jaxblocks.checks.foreign_names import ELSEWHERE, NAMES

__all__ = ["hint", "missing_name", "nearest", "public_names"]

_LIBRARIES = ("jax.nn", "jax", "jax.numpy", "jax.lax", "optax")  # in the order in which they are searched


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The name that is written alike: but for case and underscores, else the closest one; empty if none is close.

    >>> nearest("GeLU", ["elu", "GLU", "gelu"]), nearest("Dropot", ["Dropout", "dropout"])
    ('gelu', 'Dropout')
    """
    names = list(names)
    if same := _alike(name, names):
        return same
    likely = "".join(difflib.get_close_matches(name.lower(), [one.lower() for one in names], 1, cutoff))
    return _alike(likely.capitalize() if name[:1].isupper() else likely, names)


def hint(name: str, top_level: Iterable[str]) -> str:
    """What a user of ``jaxblocks`` may mean by a name that it does not have; ``top_level`` are those that it has.

    >>> hint("GeLU", ["elu", "gelu"]), hint("TransformerBlock", []), hint("ctc_loss", [])
    ('; did you mean jaxblocks.gelu?', '; it is jaxblocks.models.TransformerBlock', '; use optax.ctc_loss')
    """
    if name in ELSEWHERE:
        return f"; use {ELSEWHERE[name]}"
    top_level = list(top_level)
    below = {one: f"jaxblocks.{module}.{one}" for module, names in public_names().items() for one in names}
    if name in below and name not in NAMES:
        return f"; it is {below[name]}"
    if meant := NAMES.get(name) or _alike(name, top_level):
        return f"; did you mean jaxblocks.{meant}?"
    elsewhere = _of_libraries()
    if name in elsewhere:
        return f"; use {elsewhere[name]}"
    if meant := _alike(name, below):
        return f"; did you mean {below[meant]}?"
    if meant := _alike(name, elsewhere):
        return f"; use {elsewhere[meant]}"
    if len(name) < 3:  # any short name is close to another one
        return ""
    known = below | {one: f"jaxblocks.{here}" for one, here in NAMES.items()}
    known |= {one: f"jaxblocks.{one}" for one in top_level}
    meant = nearest(name, (one for one in known if one[0].lower() == name[0].lower()), 0.8)
    return f"; did you mean {known[meant]}?" if meant else ""


def missing_name(module: str, name: str) -> str:
    """The error for a name that a module does not have.

    >>> missing_name("jaxblocks.layers", "Conv2d")
    "module 'jaxblocks.layers' has no attribute 'Conv2d'; did you mean jaxblocks.Conv?"
    """
    meant = "" if name.startswith("_") else hint(name, import_module("jaxblocks").__all__)
    return f"module {module!r} has no attribute {name!r}{meant}"


@functools.cache
def public_names() -> dict[str, tuple[str, ...]]:
    """The names in ``__all__`` of each public submodule.

    >>> "TransformerBlock" in public_names()["models"]
    True
    """
    found, root = {}, Path(__file__).parents[1]
    for path in sorted([*root.glob("[a-z]*.py"), *root.glob("*/__init__.py")]):
        module = path.parent.name if path.name == "__init__.py" else path.stem
        if module != "checks":
            # A package that imports its modules lazily computes its names.
            found[module] = _all_in(path) or tuple(import_module(f"jaxblocks.{module}").__all__)
    return found


def _all_in(path: Path) -> tuple[str, ...]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def _of_libraries() -> dict[str, str]:
    found = {}
    for library in reversed(_LIBRARIES):  # the first one takes precedence
        with contextlib.suppress(ImportError):  # without optax
            found |= {one: f"{library}.{one}" for one in dir(import_module(library)) if one[0] != "_"}
    return found | ELSEWHERE


def _alike(name: str, names: Iterable[str]) -> str:
    """The name that is equal but for case and underscores."""
    same = [one for one in names if _plain(one) == _plain(name)]
    # Of names such as `dropout` and `Dropout`, the one in the spelling of the wrong name.
    return next(iter(sorted(same, key=lambda one: one[:1].isupper() != name[:1].isupper())), "")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
