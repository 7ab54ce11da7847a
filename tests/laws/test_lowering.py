"""Programs for GPUs and TPUs, lowered on a CPU: training steps, generation, samplers and the tools for derivatives."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export
from small_models import MODELS
from zoo import FIXED, ON_BACKENDS, ZOO

import jaxblocks as jb
from jaxblocks import StatefulLayer, ad, diffusion, text
from jaxblocks.backend.platforms import lowering_for, platform
from jaxblocks.training import init_train_state, train_step

KEY, new_key = jax.random.key(0), jax.random.key
ACCELERATORS = ("cuda", "rocm", "tpu")


def lowered(function, *args, name="cuda", to=ACCELERATORS):
    """A function that is traced and lowered for other platforms than the one of the test."""
    with lowering_for(name):
        return export.export(jax.jit(function), platforms=to)(*args)


def floating(x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


def total(tree):
    """The sum of all inexact arrays of a tree."""
    leaves = [jnp.real(x).astype(jnp.float32).sum() for x in jax.tree.leaves(tree) if floating(x)]
    return functools.reduce(jnp.add, leaves, jnp.float32(0))


def total_of_layer(layer, inputs, side):
    """A function of the params and the inputs, and these: the sum of all outputs, in training."""
    reads = jb.side_inputs(layer)
    side = {name: value for name, value in (("train", True), ("key", jax.random.key(0))) if name in reads} | side
    read = list(inspect.signature(layer.init).parameters)[1:]  # after the key
    init_side = {name: value for name, value in side.items() if name in read and name != "key"}
    made = jax.eval_shape(lambda: layer.init(KEY, *inputs, **init_side))
    made = made if isinstance(layer, StatefulLayer) else (made,)

    def run(moving, fixed):
        leaves = [f if m is None else m for m, f in zip(moving, fixed, strict=True)]
        args = jax.tree.unflatten(structure, leaves)
        return total(layer.apply(*args, **side))

    leaves, structure = jax.tree.flatten((*made, *jax.tree.map(as_struct, inputs)))
    moving = [x if floating(x) else None for x in leaves]
    fixed = [None if floating(x) else x for x in leaves]
    return run, (moving, fixed)


def as_struct(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") else x


def test_gradients_of_layers_are_lowered():
    """Of those whose code depends on the platform or on known sizes; `test_export.py` lowers all others with free ones.

    Several layers in one program, since a lowering has a fixed cost.
    """
    functions, arguments = {}, {}
    for name in sorted(ON_BACKENDS | {*FIXED, "Attention, causal, grouped heads, window, rotary, chunks"}):
        row = ZOO[name]
        functions[name], arguments[name] = total_of_layer(row.layer, row.inputs(), row.side)
    lowered(lambda args: {name: jax.value_and_grad(f)(*args[name]) for name, f in functions.items()}, arguments)


@pytest.mark.parametrize("name", ["GPT2", "ResNet", "RecurrentLM"])
def test_gradients_of_models_are_lowered(name):
    """In training; one model of each kind."""
    net, inputs, _ = MODELS[name]
    function, arguments = total_of_layer(net, inputs, {})
    lowered(jax.value_and_grad(function), *arguments)


def test_the_training_step_is_lowered():
    with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        net, optimizer = jb.Serial(jb.Dense(3), jb.BatchNorm(), jb.relu, jb.Dense(2)), optax.adam(1e-3)
        ts = init_train_state(KEY, net, optimizer, np.ones((4, 3), np.float32))
        step = train_step(net, jb.mse, optimizer)
        batch = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
        lowered(step, ts, *batch)


def test_generation_and_samplers_are_lowered():
    net = jb.models.GPT2(vocab_size=5, max_length=8, layers=1, heads=2, features=4, hidden=4, cache=8)
    prompts, x = jnp.zeros((2, 3), jnp.int32), jnp.ones((2, 3))
    params, _ = jax.eval_shape(net.init, KEY, prompts)
    schedule = diffusion.variance_preserving_schedule()
    times = diffusion.times(schedule, 4)
    predict = diffusion.gaussian_mixture(jnp.zeros((1, 3)), jnp.ones(1)).predictor(schedule, "eps")
    stochastic = {name: getattr(diffusion, name) for name in ("ancestral", "predictor_corrector")}
    samplers = {name: getattr(diffusion, name) for name in ("ddim", "euler", "heun", "dpm_solver_pp_2m")}

    def everything(params, x):
        own, *keys = jax.random.split(KEY, 3)
        made = {
            "generate": text.generate(net, params, prompts, key=own, steps=2, top_k=2),
            "beam_search": text.beam_search(net, params, prompts, steps=2, beams=2),
        }
        made |= {name: sampler(predict, x, times, schedule, "eps") for name, sampler in samplers.items()}
        for key, (name, sampler) in zip(keys, stochastic.items(), strict=True):
            made[name] = sampler(predict, x, times, schedule, "eps", key=key)
        return made

    assert "stablehlo.while" in lowered(everything, params, x).mlir_module()


PARAMS = {"hidden": np.ones((3, 4), np.float32), "out": np.ones((4, 2), np.float32)}
BATCH, TARGETS = np.ones((5, 3), np.float32), np.ones((5, 2), np.float32)


def predict(params, x):
    return jnp.tanh(x @ params["hidden"]) @ params["out"]


def squares(params, x, y):
    return jnp.square(predict(params, x) - y).sum()


def of_example(params, example):
    return squares(params, *example)


def half_square(outputs, y=0.0):
    return jnp.sum(jnp.square(outputs - y)) / 2


def of_vector(v):
    return jnp.sin(v).sum() * jnp.sum(v**2)


VECTOR = np.arange(1.0, 4.0, dtype=np.float32)
TOOLS = {
    "sparse_jacobian": lambda p, v: ad.sparse_jacobian(lambda v: v**2, VECTOR)(v).todense(),
    "ntk": lambda p, v: ad.ntk(predict, p, BATCH),
    "largest_eigenvalues": lambda p, v: (
        ad.largest_eigenvalues(new_key(85), ad.hessian_operator(of_vector, v), v, count=2).values
    ),
    "spectral_density": lambda p, v: ad.spectral_density(new_key(76), ad.hessian_operator(of_vector, v), v).nodes,
    "estimate_trace": lambda p, v: (
        ad.estimate_trace(new_key(27), ad.hessian_operator(of_vector, v), v, samples=2).value
    ),
    "log_determinant": lambda p, v: jax.grad(lambda v: ad.log_determinant(new_key(44), lambda u: v * u, v).value)(v),
    "solve": lambda p, v: ad.solve(lambda u: v * u, v).x,
    "structured_curvature": lambda p, v: ad.structured_curvature(
        predict, half_square, p, BATCH, TARGETS, structure="kfac"
    ).inverse(damping=0.5)(p),
    "laplace_approximation": lambda p, v: ad.laplace_approximation(
        predict, half_square, p, BATCH, TARGETS
    ).log_evidence(),
    "gradient_noise": lambda p, v: ad.gradient_noise(of_example, p, (BATCH, TARGETS), batch_size=2).trace,
    "root": lambda p, v: jax.grad(
        lambda a: ad.root(
            lambda x: x**2 - a,
            v,
        ).sum()
    )(v),
    "argmin": lambda p, v: ad.argmin(lambda x: jnp.square(x - v).sum(), v),
    "scan": lambda p, v: jax.grad(lambda v: ad.scan(lambda c, x: (jnp.sin(c * x), c), v[0], v, checkpoint=2)[0])(v),
}


def test_tools_for_derivatives_are_lowered():
    """Those with linear algebra, loops or products of their own; the others are JAX's derivatives."""
    lowered(lambda p, v: {name: tool(p, v) for name, tool in TOOLS.items()}, PARAMS, VECTOR)


# ---- the platform decides ----------------------------------------------------------------------


def attend(x):
    return jb.attention(x, x, x, causal=True)


def convolve(kernel, x):
    return jb.conv(x, kernel, padding="same")


def depthwise(kernel, x):
    return jb.conv(x, kernel, groups=8)


REPEATED = jb.Repeat(jb.Conv(4, (3, 3), padding="same"), 5)
LARGE = jax.ShapeDtypeStruct((2, 1024, 4, 8), jnp.float32)
IMAGES, KERNEL = jax.ShapeDtypeStruct((64, 28, 28, 16), jnp.float32), jax.ShapeDtypeStruct((3, 3, 16, 32), jnp.float32)
DEPTHWISE = jax.ShapeDtypeStruct((3, 3, 1, 8), jnp.float32)
IMAGES8 = jax.ShapeDtypeStruct((2, 9, 9, 8), jnp.float32)
SMALL = jax.ShapeDtypeStruct((2, 8, 8, 4), jnp.float32)


@pytest.mark.cpu
def test_a_program_for_a_gpu_has_none_of_the_forms_for_cpus():
    """Counts of operations, in the form for each platform: of the same functions, traced on one machine."""
    params = jax.eval_shape(REPEATED.init, KEY, SMALL)
    gradient = lambda f: jax.grad(lambda *args: f(*args).sum())
    programs = {
        # A loop over tiles, and blocks of queries.
        "attention": (gradient(attend), (LARGE,), "stablehlo.while"),
        "convolution": (gradient(convolve), (KERNEL, IMAGES), "stablehlo.dot_general"),
        "depthwise": (depthwise, (DEPTHWISE, IMAGES8), "stablehlo.convolution"),
        "Repeat": (REPEATED.apply, (params, SMALL), "stablehlo.while"),
    }
    counts = {
        name: [lowered(f, *args, name=to, to=[to]).mlir_module().count(operation) for to in ("cpu", "cuda")]
        for name, (f, args, operation) in programs.items()
    }
    assert counts["convolution"][0] > 0 and counts["convolution"][1] == 0
    assert counts["depthwise"] == [0, 1]
    assert counts["Repeat"] == [0, 1]
    assert counts["attention"][0] > 0 and counts["attention"][1] == 0


@pytest.mark.parametrize(
    "layer",
    [
        jb.LayerNorm(),
        jb.RMSNorm(),
        jb.GroupNorm(groups=4, spatial=2),
        jb.Conv(32, (3, 3), padding="same"),
        jb.silu,
        jb.gelu,
        jb.softplus,
        lambda x: jb.attention(x, x, x, scale=None),
    ],
    ids=lambda layer: getattr(layer, "__name__", repr(layer)),
)
def test_layers_of_equal_shapes_are_lowered_once(layer):
    """Four more of them add calls, and no second copy of their derivatives, which take 16 to 113 lines."""

    def lines(copies):
        net, x = jb.Serial(*[layer] * copies), jax.ShapeDtypeStruct((64, 16, 16, 32), jnp.float32)
        params = jax.eval_shape(net.init, KEY, x)
        loss = lambda params, x: net.apply(params, x).sum()
        return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x).as_text().count("\n")

    assert lines(8) - lines(4) < 64


@pytest.mark.cpu
def test_the_context_is_a_part_of_the_key_of_jit(monkeypatch):
    """A function that was traced for one platform is traced again for another one."""
    f = jax.jit(lambda x: x + (1.0 if platform() == "cpu" else 2.0))
    assert f(1.0) == 2 and platform() == "cpu"
    with lowering_for("tpu"):
        assert f(1.0) == 3
    with jax.default_device(jax.devices("cpu")[0]):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert platform() == "cpu"
    assert platform() == "gpu"


def test_other_names_are_rejected(sentences):
    with pytest.raises(ValueError, match="lowering_for expected name to be 'cpu' or .*'rocm', got 'metal'"):
        with lowering_for("metal"):
            pass
