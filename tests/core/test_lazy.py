"""Names that are imported at their first use."""

import pytest

from jaxblocks import ad, theory


@pytest.mark.parametrize("package", [ad, theory])
def test_names_imported_at_their_first_use_are_those_of_the_modules(package):
    """Type checkers read ``__all__`` of each module, users the table of the package."""
    for module, names in package._MODULES.items():
        home = getattr(package, module)
        assert names.split() == (["JacobianPlan"] if module == "planning" else sorted(home.__all__)), module
        assert all(getattr(package, name) is getattr(home, name) for name in names.split())
    assert {*package.__all__, *package._MODULES} == set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing
