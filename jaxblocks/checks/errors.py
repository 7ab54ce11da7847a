"""The sentence of every error: ``<public name> expected <what>, got <shape, dtype or value>; <what to do>.``

`require` raises it, for a condition that annotations cannot express; `public_name` finds its first words on the call
stack, so that no function is told the name of its caller.
"""

import inspect
import re
import sys
from typing import Any

__all__ = ["describe", "public_name", "require"]


def require(ok: Any, expected: str, got: Any, repair: str, *, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` unless ``ok``: "<public name> expected <expected>, got <got>; <repair>."

    `describe` formats ``got`` where it is not a string. The repair is what the caller does; it may be a question.

    >>> require(len("ab") == 3, "three letters", 2, "add one")
    Traceback (most recent call last):
    ...
    ValueError: jaxblocks expected three letters, got 2; add one.
    """
    if not ok:
        said = got if isinstance(got, str) else describe(got)
        raise error(f"{public_name()} expected {expected}, got {said}; {repair}{'' if repair.endswith('?') else '.'}")


def describe(x: Any) -> str:
    """A short description of a value for error messages: dtype and shape of an array, ``repr`` of other values.

    >>> describe(jnp.zeros((2, 3))), describe(None), describe(2.5), describe({"scale": 1})
    ('float32 (2, 3)', 'None', '2.5', 'a dict')
    """
    name, library = type(x).__name__, type(x).__module__.partition(".")[0]
    if library in ("torch", "tensorflow", "pandas", "polars", "PIL", "cupy", "mlx", "pyarrow", "xarray", "scipy"):
        return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name} of {library}"
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return f"{x.dtype} {tuple(x.shape)}"
    if inspect.isroutine(x):
        return f"the function {getattr(x, '__name__', name)}"
    x = f"{x:.55}..." if isinstance(x, str) and len(x) > 58 else x
    short = x is None or isinstance(x, (bool, int, float, complex, str, range, type))
    short = short or (isinstance(x, tuple) and all(isinstance(one, (bool, int, float, str, type(None))) for one in x))
    return repr(x) if short and len(repr(x)) <= 60 else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


_TRANSPARENT = {"jax", "jaxlib", "jaxtyping", "beartype", "contextlib", "functools", "typing"}
_MECHANISM = ("jaxblocks.checks.", *(f"jaxblocks.core.{name}" for name in ("children", "lifting", "pairs", "shapes")))
_HIDDEN = (*_MECHANISM, "jaxblocks.core.recording", "jaxblocks.models.class_heads")
_BOUNDARIES = {"init_child", "apply_child", "call_forward", "call_loss"}


def public_name() -> str:
    """Name of the public function that the user called: the outermost one on the call stack.

    The search goes outward and stops at the layer that is being run, at user code, and at the calls by which the
    library runs functions of the user.
    """
    name, fallback, in_layer, frame = "", "", False, sys._getframe(1)
    while frame is not None:
        module, path = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        is_wrapper = path == "checked.<locals>.wrapper" and module == "jaxblocks.checks.expectations"
        if is_wrapper:  # its function may not have a frame yet
            module, path = frame.f_locals["known_as"]
            fallback = fallback or path
        head, _, last = path.partition(".<locals>.")
        at_boundary = module.partition(".")[0] == "jaxblocks" and frame.f_code.co_name in _BOUNDARIES
        if at_boundary and (name or fallback):  # else the combinator itself raises the error
            break
        if in_layer and not (is_wrapper and last in ("init", "apply")):  # of another builder around this one
            inside = module.startswith(_MECHANISM) or head == name  # of the same layer
            if not inside and module.partition(".")[0] not in _TRANSPARENT:
                break
        elif last in ("init", "apply") and head[:1].isupper() and (is_wrapper or module.startswith("jaxblocks.")):
            name, in_layer = head, True
        elif module.partition(".")[0] == "jaxblocks":  # a method is public if its class is
            if head.partition(".")[0] in getattr(sys.modules[module], "__all__", ()) and not module.startswith(_HIDDEN):
                name = re.sub(r"\.__\w+__$", "", head)  # that of the class, where it makes or calls one
        elif name and module.partition(".")[0] not in _TRANSPARENT:
            break
        frame = frame.f_back
    return name or fallback or "jaxblocks"
