"""Print the cost table of a function in a file, and write its page.

python -m jaxblocks.ad examples/ad_functions.py:autoencoder
python -m jaxblocks.ad model.py:loss params "f32[32,784]" --html page.html

The arguments follow the function. Each is the name of a value in the file (or of a function without parameters that
returns it), a number such as 2.0, or a shape such as ``f32[32,784]``, which stands for an array of normally distributed
numbers. Without arguments, the file gives them as ``<function>_args``, a tuple, or the function has defaults.
"""

import argparse
import importlib.util
import inspect
import re
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxblocks.checks.names import nearest
from jaxblocks.checks.terminal import write_line

__all__ = []  # it is run, not imported

DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i32": "int32"}
SHAPE = re.compile(rf"({'|'.join([*DTYPES, *DTYPES.values()])})\[((?:\d+(?:, ?\d+)*(?:, ?)?)?)\]")
LIKE_A_SHAPE = re.compile(r".*\[.*|(f|bf|i|u)\d+[^\w.].*|\(.*|\d+[,x].*")


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns 0, or 1 after an error, which is a sentence on the standard error."""
    parser = argparse.ArgumentParser(
        "python -m jaxblocks.ad",
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=(__doc__ or "").rpartition("\n\n")[2],
    )
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="the function")
    # With a default, so that argparse does not call them required.
    parser.add_argument(
        "arguments", nargs="*", default=[], help='names in the file, numbers, or shapes such as "f32[32,784]"'
    )
    parser.add_argument("--html", metavar="PAGE.html", help="write the page to this file")
    parser.add_argument("--argnums", default="0", help="arguments to differentiate, as in 0 or 0,1 (default 0)")
    parser.add_argument("--count-only", action="store_true", help="count operations, and time nothing")
    parser.add_argument(
        "--repeats", type=int, default=20, help="timed calls of each derivative, 0 for none (default 20)"
    )
    given = parser.parse_intermixed_args(argv)
    try:
        _run(given)
    except Exception as error:  # those of the user's function too
        file = _path(given.function.rpartition(":")[0]).resolve()
        lines = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == file]
        place = f"\n  {file.name}, line {lines[-1].lineno}: {lines[-1].line}" if lines else ""
        kind = f"{type(error).__name__}: " if lines else ""  # that of a KeyError is not a sentence
        write_line(f"python -m jaxblocks.ad: {kind}{error}{place}", sys.stderr)
        return 1
    return 0


def _run(given: argparse.Namespace) -> None:
    from jaxblocks.ad.page import explore

    file, colon, name = given.function.rpartition(":")
    if not (colon and name):
        raise ValueError(f"expected FILE.py:FUNCTION, got {given.function}; write a colon and the name of a function.")
    module = _load(_path(file))
    function = _named(module, name)
    if not callable(function):
        raise TypeError(f"expected a function, got {name}, a {type(function).__name__}; name a function of {file}.")
    args = tuple(_argument(module, word) for word in given.arguments) or _default_args(module, name, function)
    if given.html and not Path(given.html).parent.is_dir():
        raise FileNotFoundError(f"expected a page in a folder that exists, got {given.html}; make the folder.")
    start = time.perf_counter()

    def progress(words: str) -> None:
        write_line(f"{time.perf_counter() - start:6.1f} s  {words} ...", sys.stderr)

    exploration = explore(
        function,
        *args,
        argnums=_numbers(given.argnums),
        name=name,
        measure=not given.count_only,
        repeats=given.repeats,
        progress=progress,
    )
    print(exploration.table)
    if exploration.plan is not None:
        print(f"\n{exploration.plan.explain()}")
    if given.html:
        exploration.save(given.html)
        progress(f"wrote {given.html}")


def _path(file: str) -> Path:
    """The path of a file, whose name may be without .py."""
    return Path(file) if Path(file).suffix or not file else Path(f"{file}.py")


def _load(path: Path) -> ModuleType:
    """The module of a file; its folder is on the path, as for a script."""
    if not path.is_file():
        raise FileNotFoundError(f"expected a file of Python, got {path}, which does not exist; check the path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a file of Python, got {path}; its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _named(module: ModuleType, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            names = [key for key, own in vars(module).items() if _may_be_meant(module, key, own)]
            near = nearest(name, names)
            hint = f"did you mean {near}? It" if near else "it"
            listed = ", ".join(sorted(names))
            raise AttributeError(f"expected a name in {module.__name__}.py, got {name}; {hint} has {listed}.")
        value = getattr(value, part)
    return value


def _may_be_meant(module: ModuleType, name: str, value: Any) -> bool:
    """Whether a value may be meant: no module, and no function or class of another module."""
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__module__ == module.__name__
    return not (name.startswith("__") or isinstance(value, ModuleType))


def _argument(module: ModuleType, word: str) -> Any:
    import jax
    import jax.numpy as jnp

    found = SHAPE.fullmatch(word)
    if found:
        shape = tuple(int(size) for size in found[2].split(",") if size.strip())
        dtype = jnp.dtype(DTYPES.get(found[1], found[1]))
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError(f"expected at most 32 bits, got {word}; set JAX_ENABLE_X64=1 for float64.")
        return jnp.zeros(shape, dtype) if dtype == jnp.int32 else jax.random.normal(jax.random.key(0), shape, dtype)
    if LIKE_A_SHAPE.fullmatch(word):
        raise ValueError(f'expected a shape such as "f32[32,784]", got {word}; the dtypes are {", ".join(DTYPES)}.')
    try:
        return float(word)
    except ValueError:
        value = _named(module, word)
    return value() if inspect.isfunction(value) and not inspect.signature(value).parameters else value


def _default_args(module: ModuleType, name: str, function: Any) -> tuple:
    """``<function>_args`` of the file, or the defaults of the function."""
    if hasattr(module, f"{name}_args"):
        value = getattr(module, f"{name}_args")
        value = value() if callable(value) else value
        return value if isinstance(value, tuple) else (value,)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    values = tuple(p.default for p in parameters if p.default is not p.empty)
    if not values or len(values) < len(parameters):
        raise TypeError(
            f"expected the arguments of {name}, got none; pass them after the function, as in "
            f'{name} "f32[32,784]", or define {name}_args, a tuple, in the file.'
        )
    return values


def _numbers(text: str) -> int | tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"expected --argnums to be numbers, got {text}; write 0 or 0,1.") from None
    return numbers[0] if len(numbers) == 1 else numbers


if __name__ == "__main__":
    sys.exit(main())
