"""Libraries that an extra installs, imported where they are needed."""

from importlib import import_module
from typing import Any

from jaxblocks.checks.errors import public_name

__all__ = ["library"]


def library(module: str, purpose: str, extra: str, name: str = "") -> Any:
    """Import a module of an optional library; the error for one that is missing says how to install it.

    Args:
        module: such as ``"sklearn.datasets"``.
        purpose: what the library does here, such as "contains the data".
        extra: of jaxblocks, which installs it.
        name: of the library, by default that of its package.

    >>> library("missing.module", "is an example", "data")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: jaxblocks expected missing, which is an example, got no such package; install it with: \
pip install "jaxblocks[data]".
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{public_name()} expected {name or package}, which {purpose}, got no such package; "
            f'install it with: pip install "jaxblocks[{extra}]".',
            name=package,
        ) from error
