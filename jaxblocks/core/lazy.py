"""Packages whose names are imported at their first use, so that an import of the package stays light."""

from collections.abc import Callable
from importlib import import_module

__all__ = ["lazy_names"]


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
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return get, lambda: sorted({*home, *modules}), sorted(home)
