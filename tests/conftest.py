"""Strict modes for every test: what a silent mistake would hide behind is switched off before JAX starts."""

import gc
import importlib.metadata
import os
import sys
from pathlib import Path

os.environ.setdefault("NPROC", "32")  # without it, sharded loops on few cores can hang (jax < 0.12)
# Without fusion emitters, which later jaxlibs cannot leave out, small programs compile in less than half the time.
# One piece of code for each program: splitting it for several threads costs more than it gains.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)
# What one test compiled, the next ones and the next run read from disk: a third of the time. Each process has a folder
# of its own, since one that reads what another is writing finds half of it.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(__file__).parent.parent / ".cache" / "jax" / os.environ.get("PYTEST_XDIST_WORKER", "main")),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA takes its own preferences for features that the machine lacks
os.environ.setdefault("JAX_LEGACY_PRNG_KEY", "error")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_DEBUG_KEY_REUSE", "1")
os.environ.setdefault("JAX_DEBUG_NANS", "1")

import jaxtyping
import pytest
from hypothesis import settings

settings.register_profile("jaxblocks", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("jaxblocks")

# Traces are many small objects. With its default thresholds, the garbage collector goes through all of them so often
# that it takes a sixth of the time of the tests.
gc.set_threshold(100_000, 50, 10)


def pytest_collection_finish():
    """Exclude from garbage collection what the modules hold, which lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_open_pictures():
    """Pictures of one test are closed before the next."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def sentences():
    """Errors as users meet them, without the checks of shape annotations that the tests switch on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def as_a_user_has_it():
    """optax cannot work under strict promotion, and the check for NaN switches donation off."""
    import jax

    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False), jax.debug_key_reuse(False):
        yield
