"""What depends on the version of jaxlib, and on the order of imports."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxblocks


def layer_norm(x):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5)


def test_jacobians_under_jit_are_correct():
    """jit(jacrev) = jit(jacfwd), in every row (this fails on jaxlib 0.10.2)."""
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    compiled, forward = jax.jit(jax.jacrev(layer_norm))(x), jax.jit(jax.jacfwd(layer_norm))(x)
    assert np.max(np.abs(np.asarray(compiled) - np.asarray(forward))) < 2e-6


def test_modules_load_independently():
    """A checkpointed scan loads neither the traces nor the planner."""
    code = """
import sys, types, jax
package = types.ModuleType("jaxblocks")
package.__path__ = [sys.argv[1]]
sys.modules["jaxblocks"] = package
import jaxblocks.ad.checkpointing
loaded = {name.rpartition(".")[2] for name in sys.modules if name.startswith("jaxblocks.ad.")}
assert not loaded & {"traces", "planning", "jacobians", "counting", "sparse"}, loaded
assert callable(jaxblocks.ad.cost_table) and callable(jaxblocks.ad.costs.cost_tables.cost_table)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", code, os.path.dirname(jaxblocks.__file__)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
