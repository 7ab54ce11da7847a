"""Packages whose names are imported at their first use, and the errors for names that modules do not have."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

__all__ = ["explain_missing_names", "lazy_names"]


def lazy_names(
    package: str, modules: dict[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the names that each of its modules has.

    Type checkers do not run it; the package imports the same names for them, below ``if TYPE_CHECKING``.

    >>> get, _, names = lazy_names("jaxblocks", {"metrics": "accuracy perplexity"})
    >>> print(names, get("accuracy").__module__)
    ['accuracy', 'perplexity'] jaxblocks.metrics
    """
    home = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home:
            from jaxblocks.checks.names import missing_name  # few names do not exist

            raise AttributeError(missing_name(package, name))
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return get, lambda: sorted({*home, *modules}), sorted(home)


def explain_missing_names(module: str) -> None:
    """Let the error for a name that a public module does not have say which one may be meant."""

    def get(name: str) -> NoReturn:
        from jaxblocks.checks.names import missing_name  # few names do not exist

        raise AttributeError(missing_name(module, name))

    # A definition in the module would hide wrong names from type checkers.
    vars(sys.modules[module])["__getattr__"] = get
