"""The warning about the jaxlib with wrong Jacobians."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxblocks
from jaxblocks.backend import jaxlib as jaxlib_check


def layer_norm(x):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5)


def test_jacobians_under_jit_are_correct():
    """jit(jacrev) = jit(jacfwd), in every row (this fails on jaxlib 0.10.2)."""
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    compiled, forward = jax.jit(jax.jacrev(layer_norm))(x), jax.jit(jax.jacfwd(layer_norm))(x)
    assert np.max(np.abs(np.asarray(compiled) - np.asarray(forward))) < 2e-6


def test_modules_load_independently_and_the_affected_jaxlib_warns_at_import():
    """A checkpointed scan loads neither the traces nor the planner.

    `import jaxblocks` warns where the version is 0.10.2, once, and the warning names a line of the user.
    """
    code = """
import sys, types, warnings, jax, jaxlib.version
package = types.ModuleType("jaxblocks")
package.__path__ = [sys.argv[1]]
sys.modules["jaxblocks"] = package
import jaxblocks.ad.checkpointing
loaded = {name.rpartition(".")[2] for name in sys.modules if name.startswith("jaxblocks.ad.")}
assert not loaded & {"traces", "planning", "jacobians", "counting", "sparse"}, loaded
assert callable(jaxblocks.ad.cost_table) and callable(jaxblocks.ad.costs.cost_tables.cost_table)
for name in [name for name in sys.modules if name.partition(".")[0] == "jaxblocks"]:
    del sys.modules[name]
jaxlib.version.__version__ = "0.10.2"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jaxblocks  # this line
    jaxblocks.hvp(jax.numpy.sum, jax.numpy.ones(2), jax.numpy.ones(2))
print(len(caught), caught[0].category.__name__, caught[0].filename, caught[0].lineno)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", code, os.path.dirname(jaxblocks.__file__)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "1 RuntimeWarning <string> 15\n", done.stdout + done.stderr


def test_the_warning_depends_on_the_version_and_on_the_flags(monkeypatch):
    for number, flags in (("0.10.2", f"--xla_cpu_multi_thread_eigen=false {jaxlib_check._WORKAROUND}"), ("0.12.0", "")):
        monkeypatch.setattr(jaxlib_check.jaxlib.version, "__version__", number)
        monkeypatch.setenv("XLA_FLAGS", flags)
        jaxlib_check.warn_if_jaxlib_is_wrong()
    monkeypatch.setattr(jaxlib_check.jaxlib.version, "__version__", "0.10.2")
    with pytest.warns(RuntimeWarning, match="XLA_FLAGS=--xla"):
        jaxlib_check.warn_if_jaxlib_is_wrong()
