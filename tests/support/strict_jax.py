"""Environment variables of the tests: the strict modes of JAX, and settings that make many small compilations cheap.

Imported before JAX, which reads them.
"""

import importlib.metadata
import os
import pathlib

os.environ.setdefault("NPROC", "32")  # without it, sharded loops on few cores can hang (jax < 0.12)
# Without fusion emitters, small programs compile in less than half the time; later jaxlibs cannot disable them.
# Code generation does not split a program among threads: for small programs this costs more time than it saves.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)
# All of these flags are for CPUs; on another device (`make accelerator`) they change nothing.
# Executables are kept in this folder for the next run, and for the other processes of this one. It may be deleted.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parents[2] / ".cache" / "executables"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the idle threads of torch wait busily, beside the other tests
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hide warnings about CPU features that XLA does not use
# To remove the frames of JAX from tracebacks, it resolves the path of every frame of every exception that it passes on.
os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
os.environ.setdefault("JAX_LEGACY_PRNG_KEY", "error")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_DEBUG_KEY_REUSE", "1")
os.environ.setdefault("JAX_DEBUG_NANS", "1")
