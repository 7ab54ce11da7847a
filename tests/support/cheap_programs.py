"""Makes many small programs cheap, in the tests and in the processes that they start: importing this changes JAX."""

import collections
import contextlib
import functools
import gc
import hashlib
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


# Many tests compile equal programs, from functions that JAX cannot know to be equal. An executable is looked up by the
# text of its program, without the places in the code that it comes from. As many are kept as JAX keeps of functions.
_compiler = sys.modules.get("jax._src.compiler")
_compile = getattr(_compiler, "compile_or_get_cached", lambda: None)
_config = sys.modules.get("jax._src.config")
_executables, _ahead_of_time = collections.OrderedDict(), []
_optimized = []


@contextlib.contextmanager
def optimized():
    """Compile the programs of this block with optimizations: long training runs take longer than their compilation."""
    _optimized.append(True)
    try:
        yield
    finally:
        _optimized.pop()


def _compiled_once(backend, module, devices, options, callbacks, *args, **kwargs):
    """Compile a program, or return the executable of an equal one.

    Programs that call Python are compiled each time, and those of ``lower(...).compile()``, which tests read: the text
    of an executable has the names of layers.
    """
    if _optimized:
        options.executable_build_options.debug_options.xla_backend_optimization_level = 1
    elif not _ahead_of_time:  # one level for all programs, since rounding depends on it
        chosen = [each for each in options.env_option_overrides if each[0] != "xla_backend_optimization_level"]
        options.env_option_overrides = chosen
    if callbacks or _ahead_of_time:
        return _compile(backend, module, devices, options, callbacks, *args, **kwargs)
    text = hashlib.blake2b(module.operation.get_asm().encode()).digest()
    key = (text, options.SerializeAsString(), *(device.id for device in devices.flat))
    executable = _executables.pop(key, None)
    if executable is None:
        executable = _compile(backend, module, devices, options, callbacks, *args, **kwargs)
    _executables[key] = executable
    if len(_executables) > 2048:
        _executables.popitem(last=False)
    return executable


_FIRST_PARAMETERS = ["backend", "computation", "devices", "compile_options", "host_callbacks"]


_MAPPINGS = pathlib.Path("/proc/self/maps")


def forget_executables() -> None:
    """Drop what is kept of programs, once it takes a third of the mappings of memory that a process may have.

    Each executable has several. A process that needs more than Linux allows (``vm.max_map_count``, 65,530) crashes.
    """
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > 20_000:
        _executables.clear()
        jax.clear_caches()


def _compiled_anew(lowered, *args, **kwargs):
    """``jax.stages.Lowered.compile`` without `_compiled_once`; the names of layers distinguish programs on the disk."""
    _ahead_of_time.append(lowered)
    try:
        with _config.compilation_cache_include_metadata_in_key(True):
            return _compile_lowered(lowered, *args, **kwargs)
    finally:
        _ahead_of_time.pop()


if [*inspect.signature(_compile).parameters][:5] == _FIRST_PARAMETERS:  # else each program is compiled
    _compiler.compile_or_get_cached = _compiled_once
    _compile_lowered, jax.stages.Lowered.compile = jax.stages.Lowered.compile, _compiled_anew
