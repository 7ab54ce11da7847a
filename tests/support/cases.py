"""One test for many cases that take microseconds each: as tests of their own, most of their time is pytest's."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest


def for_each(cases: Mapping[str, Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """A decorator that makes one test of a check of one case: it runs all, and its message names those that fail."""

    def decorate(check):
        def test():
            assert cases, "no cases"
            failed = {}
            for name, case in cases.items():
                try:
                    check(case)
                except (Exception, pytest.fail.Exception) as error:  # the latter where nothing was raised
                    failed[name] = f"{type(error).__name__}: {error}"
            assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())

        test.__name__, test.__qualname__, test.__module__ = check.__name__, check.__qualname__, check.__module__
        test.__doc__ = check.__doc__
        return test

    return decorate
