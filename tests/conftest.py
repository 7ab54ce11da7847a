"""The configuration of every test: hooks and fixtures; `strict_jax` sets the modes of JAX."""

import contextlib
import functools
import gc
import inspect
import sys
import types
import typing

import strict_jax  # noqa: F401  # isort: skip  # before everything that imports JAX
import beartype
import cheap_programs
import jaxtyping
import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("jaxblocks", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("jaxblocks")

# Builders define `init` and `apply` inside a function. With --jaxtyping-packages, each layer would compile the checks
# of its functions anew, and each call of a function without annotations would be checked.
_jaxtyped, _compiled = jaxtyping.jaxtyped, {}


def _checked_signature(typechecker, function):
    """``typechecker(function)``, once for all equal functions; jaxtyping passes functions that check and do nothing."""
    code = function.__code__
    parameters = (code.co_varnames, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    optional = (len(function.__defaults__ or ()), tuple(function.__kwdefaults__ or ()))
    annotations = tuple((name, type(hint), hint) for name, hint in function.__annotations__.items())
    key = (typechecker, function.__module__, function.__qualname__, code.co_code, parameters, optional, annotations)
    try:
        known = key in _compiled
    except TypeError:  # an annotation without a hash
        return typechecker(function)
    if not known:
        _compiled[key] = _at_first_call(typechecker, function)
    return _compiled[key]


def _as_of_jaxtyping(function):
    """The function with a frame that `public_name` of errors passes over, as it does those of jaxtyping."""
    return types.FunctionType(function.__code__, {**globals(), "__name__": "jaxtyping"}, closure=function.__closure__)


def _at_first_call(typechecker, function):
    """``typechecker(function)``, compiled when it is called first: most processes call half of the functions."""
    compiled = []

    @_as_of_jaxtyping
    def check(*args, **kwargs):
        if not compiled:
            compiled.append(typechecker(function))
        return compiled[0](*args, **kwargs)

    return check


def _has_arrays(hint):
    """Whether an annotation has shapes, which only jaxtyping checks; it may have them where it is text."""
    if isinstance(hint, str) or getattr(hint, "__module__", "").startswith("jaxtyping"):
        return True
    return any(map(_has_arrays, hint if isinstance(hint, list) else typing.get_args(hint)))


def _without_shapes(function):
    """Check a function whose annotations have no shapes by beartype alone: jaxtyping takes ten times as long a call."""
    typechecker = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))
    check = _at_first_call(typechecker, function)

    @_as_of_jaxtyping
    def call(*args, **kwargs):
        return (function if jaxtyping.config.jaxtyping_disable else check)(*args, **kwargs)

    return functools.wraps(function)(call)


def _with_shapes(check, function):
    """``check(function)`` at the first call: layers that are built for their shapes are not called, or not entirely."""
    checked = []

    @_as_of_jaxtyping
    def call(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if not checked:
            checked.append(check(function))
        return checked[0](*args, **kwargs)

    return functools.wraps(function)(call)


def _jaxtyped_once(*args, **kwargs):
    """``jaxtyping.jaxtyped``, but as the import hook calls it, it leaves functions without annotations unchanged."""
    if args:
        return _jaxtyped(*args, **kwargs)
    check = _jaxtyped(typechecker=functools.partial(_checked_signature, kwargs["typechecker"]))

    def decorate(f):
        if not isinstance(f, types.FunctionType):
            return check(f)
        if not f.__annotations__:
            return f
        if inspect.isgeneratorfunction(f):
            return check(f)
        hints = f.__annotations__.values()
        shaped = "<locals>" in f.__qualname__ or any(map(_has_arrays, hints))
        return _with_shapes(check, f) if shaped else _without_shapes(f)

    return decorate


jaxtyping.jaxtyped = _jaxtyped_once  # modules that the hook imports read it by this name

# Each evaluation of an annotation such as `Float[Array, "n"]` makes a class that equals no other, so that the functions
# of two layers would not be equal. Here equal annotations are one class.
_annotations = sys.modules.get("jaxtyping._array_types")
if hasattr(_annotations, "_make_array"):
    _annotations._make_array = functools.cache(_annotations._make_array)

# For each function, jaxtyping compiles two functions of the same signature that the typechecker checks.
_decorator = sys.modules.get("jaxtyping._decorator")
_make_checks = getattr(_decorator, "_make_fn_with_signature", lambda: None)
_make_checks_once = functools.cache(_make_checks)


def _checks_of_signature(*args, **kwargs):
    try:
        return _make_checks_once(*args, **kwargs)
    except TypeError:  # a default without a hash
        return _make_checks(*args, **kwargs)


if _decorator is not None:
    _decorator._make_fn_with_signature = _checks_of_signature


def _visit_statements(transformer, node):
    """``generic_visit`` without expressions, which contain no definitions: the hook visits each node of each module."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        statements = getattr(node, field, ())
        for statement in statements if isinstance(statements, list) else ():
            transformer.visit(statement)


_transformer = getattr(sys.modules.get("jaxtyping._import_hook"), "JaxtypingTransformer", None)
if _transformer is not None:
    _transformer.generic_visit = _visit_statements


def pytest_collection_finish():
    """Exclude the objects of the imported modules from garbage collection, since they live as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _collect_garbage_of_the_module():
    """Exclude what a module leaves in the caches of JAX from later collections: they would take most of the time."""
    yield
    cheap_programs.forget_context()
    cheap_programs.forget_executables()
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """On an accelerator, skip the tests of what is chosen on CPUs, before their fixtures run."""
    import jax

    if item.get_closest_marker("cpu") and jax.default_backend() != "cpu":
        pytest.skip("is about the forms that are chosen on CPUs")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """On an accelerator, skip the tests that need more devices than it has."""
    try:
        return (yield)
    except ValueError as error:
        if "Number of devices" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(autouse=True)
def _draw_anew(request):
    """Begin the generator ``RNG`` of the module anew, so that a test draws the same numbers in every order of tests."""
    if hasattr(request.module, "RNG"):
        request.module.RNG = np.random.default_rng(1)  # 0 would repeat the numbers that the module itself has drawn


@pytest.fixture(autouse=True)
def _close_figures():
    """Close the figures of a test before the next one."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@contextlib.contextmanager
def _small_pictures():
    """Save figures at a low resolution and without the search for a layout, which takes half of the time.

    All text must be legible where the figure is as wide as a page.
    """
    from legible import small_texts
    from matplotlib.figure import Figure

    save = Figure.savefig

    def save_small(figure, path, **options):
        figure.set_layout_engine(None)  # with an engine, even "none", `savefig` draws twice
        save(figure, path, **options | {"dpi": 60})
        assert small_texts(figure) == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save_small)
        yield


@pytest.fixture
def small_pictures():
    """Small figures in one test."""
    with _small_pictures():
        yield


@pytest.fixture(scope="module")
def small_pictures_in_module():
    """Small figures in all tests of a module, for fixtures that run an example once."""
    with _small_pictures():
        yield


@pytest.fixture
def sentences(monkeypatch):
    """Disable the annotation checks by jaxtyping and beartype, so that errors are those that users get.

    Each of them has a repair.
    """
    from jaxblocks.checks import errors

    public_name = errors.public_name

    def name_for_an_error_with_a_repair():
        caller = sys._getframe(1)
        assert caller.f_code is not errors.require.__code__ or caller.f_locals["repair"], caller.f_locals
        return public_name()

    monkeypatch.setattr(errors, "public_name", name_for_an_error_with_a_repair)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def as_a_user_has_it():
    """Use the default configuration of JAX: optax needs standard promotion, and the NaN check disables donation."""
    import jax

    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False), jax.debug_key_reuse(False):
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_device():
    """Products merge leading axes, as they do for users with one device; the tests have eight, and most use one."""
    import jaxblocks.backend.linear_maps

    original, jaxblocks.backend.linear_maps._on_one_device = jaxblocks.backend.linear_maps._on_one_device, lambda: True
    yield
    jaxblocks.backend.linear_maps._on_one_device = original


def pytest_addoption(parser):
    """Run any tests as on an accelerator; tests/laws/test_accelerators.py runs a part of them always."""
    parser.addoption("--products", choices=["gpu", "tpu"], help="round the operands of products as this device does")
    parser.addoption("--backend", choices=["gpu", "tpu"], help="take the code paths of this device, on CPU")
    parser.addoption("--every", type=int, default=1, help="run every n-th test only")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The option ``--every``: of the tests that ``-m`` and ``-k`` leave, the first and every n-th after it."""
    step = max(config.getoption("every"), 1)
    config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % step])
    items[:] = items[::step]


@pytest.fixture(autouse=True, scope="session")
def _as_on_an_accelerator(request):
    """The options ``--products`` and ``--backend``."""
    products, backend = map(request.config.getoption, ("products", "backend"))
    with contextlib.ExitStack() as stack:
        if products or backend:
            from accelerators import code_of, products_of

            stack.enter_context(products_of(products))
            stack.enter_context(code_of(backend) if backend else contextlib.nullcontext())
        yield
