"""What functions expect of their arguments, and layers of their params.

`checked` reads the expectations of a function from its annotations and checks the arguments of every call before the
body runs: dtypes and shapes (``Float[Array, "*batch in"]``), options (``bool``, ``int``, ``Literal["valid", "same"]``),
ranges (`PositiveInt`, `Rate`, ...), functions (``Callable``). An axis name that occurs twice has one size. Shapes and
dtypes are static, so these checks run while JAX traces and cost nothing at run time.

For a condition that annotations cannot express, the body calls `jaxblocks.checks.errors.require`; the values of arrays
are checked by `jaxblocks.checks.values`.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

from jax.typing import DTypeLike

from jaxblocks.checks.errors import require

__all__ = [
    "Epsilon",
    "InexactDType",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "Range",
    "Rate",
    "check_params",
    "checked",
    "unchecked",
]

F = TypeVar("F", bound=Callable)


class Range(NamedTuple):
    """The range of an annotated number: ``Annotated[int, Range(1)]`` is an integer >= 1.

    Attributes:
        least, most: the bounds, included; ``least`` is excluded where ``open_below``.
        below: an upper bound, excluded.
    """

    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf
    open_below: bool = False

    def __contains__(self, value) -> bool:
        above = value > self.least if self.open_below else value >= self.least
        below = value < self.below or self.below == math.inf  # a range without an upper limit includes inf
        return bool(above and below and value <= self.most)

    def __repr__(self) -> str:
        return f"Range({self})"

    def __str__(self) -> str:
        first = f"> {self.least:g}" if self.open_below else f">= {self.least:g}"
        last = f"< {self.below:g}" if self.below < math.inf else f"<= {self.most:g}" if self.most < math.inf else ""
        return " and ".join(filter(None, ("" if self.least == -math.inf else first, last)))


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float | int, Range(0, open_below=True)]  # int too, for checkers without a numeric tower
NonNegativeFloat = Annotated[float | int, Range(0)]
Rate = Annotated[float | int, Range(0, below=1)]
Epsilon = Annotated[float | int, Range(0, below=1e38)]  # finite in float32 too
InexactDType: TypeAlias = Annotated[DTypeLike, "inexact"]  # of a layer that takes complex numbers too


def checked(function: F, *, layer: str = "") -> F:
    """Check the arguments of every call against the annotations, and convert NumPy arrays to JAX arrays.

    >>> from jaxtyping import Array, Float
    >>> @checked
    ... def affine(x: Float[Array, "*batch in"], kernel: Float[Array, "in out"]):
    ...     return x @ kernel
    >>> affine(jnp.ones((2, 3)), jnp.ones((4, 5)))
    Traceback (most recent call last):
    ...
    ValueError: affine expected x (*batch, in) and kernel (in, out) with the same size of in, got float32 (2, 3) and \
float32 (4, 5); give axis -1 of x and axis 0 of kernel one size.

    ``layer`` is the name of the builder whose ``init`` or ``apply`` the function is.
    """
    stored = _Stored()
    # Inside of other wrappers (`builder`, a combinator) the function may be pair_init or apply_with_state.
    role = "init" if inspect.unwrap(function).__name__.endswith("init") else "apply"
    name = (function.__module__ or "", f"{layer}.<locals>.{role}" if layer else function.__qualname__)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        known_as = name  # read by public_name  # noqa: F841
        if stored.check is None:  # annotations are read at the first call, so that the import stays fast
            from jaxblocks.checks.signatures import check_of_calls

            stored.check = check_of_calls(function, of_layer=bool(layer))
        args, kwargs = stored.check(args, kwargs)
        return function(*args, **kwargs)

    if layer:
        wrapper.__qualname__ = name[1]
    else:  # what help() shows
        from jaxblocks.checks.help_signatures import ReadableSignature

        wrapper.__signature__ = ReadableSignature(function)  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def unchecked(function: Callable) -> Callable:
    """The function inside of `checked`. Other wrappers stay, since they may change the result (``jax.vmap``).

    >>> def f(x): ...
    >>> unchecked(checked(f)) is f
    True
    """
    # All wrappers of `checked` share one code object, by which they are recognized.
    while getattr(function, "__code__", None) is _CODE_OF_CHECKED:
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


class _Stored:
    """Holds the check of a function's calls. It is not pickled: a copy of the function reads its annotations again."""

    def __init__(self):
        self.check: Any = None

    def __reduce__(self):
        return _Stored, ()


_CODE_OF_CHECKED = checked(lambda: None).__code__  # type: ignore[attr-defined]


def check_params(params: Any, like: Any = None, /, **shapes: tuple[Any, ...] | None) -> None:
    """Raise a ``ValueError`` unless ``params`` is a dict with exactly these names and array shapes.

    A size is an integer, a symbolic one of `jax.export`, or ``None`` for any; a shape is ``None`` for the params of a
    child. Without names, ``params`` is ``()``. Params are real, or complex where ``like``, the input of the layer, is.

    >>> check_params({"bias": jnp.zeros(3), "child": ()}, bias=(3,), child=None)
    >>> check_params({"scale": jnp.zeros(3)}, bias=(3,))
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected params named bias, got scale; pass those that its own init made: apply(params, x).
    """
    if not shapes:
        require(params == (), "no params, ()", params, "pass those that its own init made")
    elif not isinstance(params, Mapping) or set(params) != set(shapes):
        got = ", ".join(sorted(map(str, params))) or "none" if isinstance(params, Mapping) else params
        from jaxblocks.checks.layer_inputs import repair_of_params

        require(False, f"params named {', '.join(sorted(shapes))}", got, repair_of_params(params, "apply(params, x)"))
    for name, shape in ((name, shape) for name, shape in shapes.items() if shape is not None):
        got = getattr(params[name], "shape", (-1,) * (len(shape) + 1))  # no array has this shape
        fits = len(got) == len(shape) and all(n in (m, None) for m, n in zip(got, shape, strict=True))
        expected = f"{name} of shape {str(shape).replace('None', 'any')}"
        require(fits, expected, params[name], "pass params that init made for this x")
        if params[name].dtype.kind == "c" and (like is None or like.dtype.kind != "c"):
            expected = f"{name} of real numbers" + " for an x of real numbers" * (like is not None)
            real_parts, repair = "jax.tree.map(jnp.real, params)", "convert x with x.astype(jnp.complex64)"
            repair = f"pass their real parts: {real_parts}" if like is None else repair
            require(False, expected, params[name], repair, error=TypeError)
