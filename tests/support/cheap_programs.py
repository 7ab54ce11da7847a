"""Makes many small programs cheap, in the tests and in the processes that they start: importing this changes JAX."""

import collections
import contextlib
import functools
import gc
import inspect
import pathlib
import sys

import jax
import jax.interpreters.mlir
import jax.stages
from jaxlib.mlir import ir

# Tracing creates many small objects. With the default thresholds, the garbage collector runs so often that it takes a
# sixth of the test time.
gc.set_threshold(100_000, 50, 10)


# Each lowering makes an MLIR context and loads all dialects into it, which takes longer than the lowering of a small
# program. The programs of a test module share one context; a context keeps all that its programs contain.
_lowering = sys.modules[jax.interpreters.mlir.make_ir_context.__module__]
_make_context = _lowering.make_ir_context
_shared_context = functools.cache(_make_context)
forget_context = _shared_context.cache_clear
# A program that is lowered while another one is, such as an eager operation in a rule, needs its own context.
_lowering.make_ir_context = lambda: _shared_context() if ir.Context.current is None else _make_context()


# Many tests compile equal programs, from functions that JAX cannot know to be equal. JAX writes executables to a
# folder; those that this process has read from it are kept here, as many as JAX keeps of functions. Without a folder,
# as in the processes that tests start, each program is compiled.
_cache = sys.modules.get("jax._src.compilation_cache")
_read = getattr(_cache, "get_executable_and_time", lambda: None)
_executables: collections.OrderedDict = collections.OrderedDict()


def _read_once(cache_key, compile_options, backend, executable_devices, *others, **options):
    """An executable and the time of its compilation. One with callbacks (an option of later versions) is read anew."""
    read = lambda: _read(cache_key, compile_options, backend, executable_devices, *others, **options)
    if any(others) or any(options.values()):
        return read()
    key = cache_key, executable_devices  # on GPUs the devices are not in the key of JAX
    found = _executables.pop(key, None) or read()
    if found[0] is not None:
        _executables[key] = found
    if len(_executables) > 2048:
        _executables.popitem(last=False)
    return found


if [*inspect.signature(_read).parameters][:4] == ["cache_key", "compile_options", "backend", "executable_devices"]:
    _cache.get_executable_and_time = _read_once


_MAPPINGS = pathlib.Path("/proc/self/maps")


def forget_executables() -> None:
    """Drop what is kept of programs, once it takes a third of the mappings of memory that a process may have.

    Each executable has several. A process that needs more than Linux allows (``vm.max_map_count``, 65,530) crashes.
    """
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > 20_000:
        _executables.clear()
        jax.clear_caches()


_compiler = sys.modules.get("jax._src.compiler")
_compile = getattr(_compiler, "compile_or_get_cached", lambda: None)
_optimized, _ahead_of_time = [], []


@contextlib.contextmanager
def optimized():
    """Compile the programs of this block with optimizations: long training runs take longer than their compilation."""
    _optimized.append(True)
    try:
        yield
    finally:
        _optimized.pop()


def _compile_at_one_level(backend, computation, devices, compile_options, *args, **kwargs):
    """Compile at the level of `optimized`, or at the level of all other programs, since rounding depends on it.

    Programs compiled ahead of time keep the level that they ask for.
    """
    if _optimized:
        compile_options.executable_build_options.debug_options.xla_backend_optimization_level = 1
    elif not _ahead_of_time:
        chosen = [each for each in compile_options.env_option_overrides if each[0] != "xla_backend_optimization_level"]
        compile_options.env_option_overrides = chosen
    return _compile(backend, computation, devices, compile_options, *args, **kwargs)


def _compile_with_names(lowered, *args, **kwargs):
    """``jax.stages.Lowered.compile`` with the names of layers in the key.

    Tests read the text of these executables, and two programs may differ in the names alone.
    """
    _ahead_of_time.append(lowered)
    try:
        with _config.compilation_cache_include_metadata_in_key(True):
            return _compile_lowered(lowered, *args, **kwargs)
    finally:
        _ahead_of_time.pop()


if [*inspect.signature(_compile).parameters][:4] == ["backend", "computation", "devices", "compile_options"]:
    _compiler.compile_or_get_cached = _compile_at_one_level
    _config = sys.modules["jax._src.config"]
    _compile_lowered, jax.stages.Lowered.compile = jax.stages.Lowered.compile, _compile_with_names
