"""The repair of an error is followed as it is written: the expression in it takes the place of the invalid argument."""

import ast
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import for_each

import jaxblocks as jb
from jaxblocks import ad, diffusion, inspection, layers, models, plotting, tensors, theory

KEY = jax.random.key(0)
X = np.arange(6, dtype=np.float32).reshape(3, 2)
MLP_PARAMS = [{"kernel": np.ones((2, 3), np.float32)}, {"kernel": np.ones((3, 1), np.float32)}]
NAMES = {"jax": jax, "jnp": jnp, "np": np, "rotary_frequencies": layers.rotary_frequencies}


def scaled(n, m):
    return lambda x: jnp.ones((m, n)) @ x, jnp.ones(n)


def masked(lengths):
    layer = jb.Recurrent(jb.LSTMCell(3))
    params = jax.eval_shape(layer.init, KEY, X)
    jax.eval_shape(lambda params: layer.apply(params, X, lengths=lengths), params)


def distances(x1, x2):
    ad.ntk_plan(lambda w, x: w * x["a"], 1.0, x1, x2)


def halves(axes):
    jb.layer_norm(X, jnp.ones(2), jnp.zeros(2), axes=axes)


def noise(batch_sizes, key):
    theory.batch_noise(lambda w, x: w * x[0], jnp.float32(1), X, key=key, batch_sizes=batch_sizes, samples=2)


def rescaled(factor):
    theory.rescale(MLP_PARAMS, [factor])


def picture():
    return pytest.importorskip("matplotlib.figure").Figure().subplots()


def called(function, arguments) -> str:
    """The sentence of the error of a call, ``""`` where there is none."""
    try:
        function(**arguments | ({"key": jax.random.clone(KEY)} if "key" in arguments else {}))
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def replaced(repair: str, argument: str) -> dict[str, str]:
    """The longest part of a repair that is one argument of a call, or several by name: by name, its expression."""
    words, found = re.sub(r"\b(for instance|pass|write) ", "", repair).split(" "), []
    for begin in range(len(words)):
        for end in range(begin + 1, len(words) + 1):
            part = " ".join(words[begin:end]).rstrip(".,")
            try:
                call = ast.parse(f"f({part})", mode="eval").body
            except SyntaxError:
                continue
            by_name = {one.arg: ast.unparse(one.value) for one in call.keywords}
            if not call.args and by_name:
                found.append((len(part), by_name))
            elif len(call.args) == 1 and not by_name and not isinstance(call.args[0], ast.Name):
                found.append((len(part), {argument: part}))
    assert found, f"no expression in {repair!r}"
    return max(found, key=lambda one: one[0])[1]


# The invalid argument comes first.
ROWS = {
    "depths of memory_curve": (ad.memory_curve, dict(depths=(2, 1, 2), make=lambda n: (jnp.sum, jnp.ones(n)))),
    "inputs of mode_grid": (ad.mode_grid, dict(inputs=(2, 1), outputs=(1,), make=scaled, measure=False)),
    "orders": (ad.partial_derivative, dict(orders=(1,), f=jnp.sum, x=jnp.ones(3))),
    "few samples": (ad.estimate_trace, dict(samples=2, key=KEY, operator=jnp.negative, like=X, method="hutch++")),
    "containers of ntk": (distances, dict(x2={"b": X}, x1={"a": X})),
    "null of one condition": (diffusion.drop_condition, dict(null=X, key=KEY, condition=jnp.asarray(X), rate=0.5)),
    "null of another shape": (diffusion.drop_condition, dict(null=X[0], key=KEY, condition=jnp.arange(3), rate=0.5)),
    "covariances": (diffusion.gaussian_mixture, dict(covariances=np.float32([[[2, 1], [0, 2]]]), means=X[:1])),
    "position": (inspection.receptive_field, dict(position=(9,), layer=jnp.sin, shape=(3, 2))),
    "batch of a query": (layers.soft_lookup, dict(query=X, keys=np.ones((4, 5, 2)), values=np.ones((4, 5, 1)))),
    "heads of keys": (jb.Attention, dict(kv_heads=5, heads=8)),
    "lengths of a batch": (masked, dict(lengths=np.ones(5, int))),
    "lengths that are no integers": (masked, dict(lengths=np.float32(2))),
    "bias": (jb.conv_transpose, dict(bias=np.ones(3, np.float32), x=X, kernel=np.ones((3, 4, 2), np.float32))),
    "neighbors": (layers.knn_predict, dict(k=4, x=X, examples=X, targets=np.arange(3))),
    "logits with an axis more": (
        layers.aggregate,
        dict(logits=X[:, :1, None], values=X, receivers=np.array([0, 0, 1]), n=2, how="softmax"),
    ),
    "rotated features": (layers.rotary, dict(rotary_dim=8, x=np.ones((3, 1, 5), np.float32))),
    "frequencies": (layers.rotary, dict(frequencies=np.ones(4, np.float32), x=np.ones((3, 1, 4), np.float32))),
    "turns": (
        layers.rotary_frequencies,
        dict(low_frequency_factor=9.0, rotary_dim=4, scaling="llama3", factor=8.0, original_length=64),
    ),
    "factors": (layers.rotary_frequencies, dict(factors=(2.0,), rotary_dim=4, scaling="longrope")),
    "base": (layers.rotary_frequencies, dict(base=0.5, rotary_dim=4, scaling="yarn", factor=8.0, original_length=64)),
    "largest distance": (
        layers.relative_position_bias,
        dict(
            max_distance=2, embedding=np.ones((8, 1), np.float32), q_positions=np.array([0]), k_positions=np.array([0])
        ),
    ),
    "axes of a norm": (halves, dict(axes=2)),
    "ranks": (jb.top_k_accuracy, dict(k=3, predictions=X, targets=np.array([0, 1, 1]))),
    "blocks": (models.ResNet, dict(depth=(2, 0))),
    "widths": (models.ResNet, dict(widths=(8, 16, 32), depth=(1, 1))),
    "channels of heads": (models.UNet, dict(head_dim=6, channels=1, width=8, multipliers=(1, 2))),
    "features of a time": (models.time_features, dict(features=3, time=np.float32([0.5]))),
    "axes of a flattening": (tensors.flattening, dict(axes=(1, 1, 5), tensor=X)),
    "distance": (theory.modulus_of_continuity, dict(delta=0, g=np.sin)),
    "error": (theory.pieces_for, dict(error=0, g=np.sin)),
    "interval": (theory.pieces_for, dict(interval=(1, 0), g=np.sin, error=0.1)),
    "smoothness": (theory.Objective, dict(smoothness=1.0, convexity=2.0, f=jnp.sum)),
    "linear term": (theory.quadratic_objective, dict(linear=jnp.ones(3), hessian=jnp.ones(2))),
    "start of least squares": (theory.min_norm_bias, dict(start=np.ones(3), x=X, y=X[:, 0])),
    "predictions": (theory.no_free_lunch, dict(predictions=np.array([[0.2, 0.8]]))),
    "classifiers": (theory.selection_optimism, dict(classifiers=[0], key=KEY, trials=2)),
    "chance": (theory.selection_optimism, dict(chance=2.0, key=KEY, classifiers=[1], trials=2)),
    "operations": (
        theory.max_min_string,
        dict(operations=["maximum", "minimum"], kernel=np.ones((1, 3)), bias=np.ones(3), radius=1.0),
    ),
    "segment": (theory.regions_along, dict(start=0.0, stop=np.ones(2), net=jnp.sum, params=())),
    "factors of layers": (theory.rescale, dict(factors=[], params=MLP_PARAMS)),
    "factors of units": (rescaled, dict(factor=np.ones(2))),
    "batch sizes": (noise, dict(batch_sizes=[2, 9], key=KEY)),
    "observed entries": (
        theory.matrix_completion,
        dict(observed=np.ones((1, 1), bool), target=np.eye(2), key=KEY, depths=[1], steps=1),
    ),
    "images": (plotting.tiles, dict(images=X)),
    "features of points": (plotting.points, dict(x=np.ones((2, 3)))),
    "names": (plotting.bars, dict(series=X, names=["a", "b"])),
}


@pytest.mark.usefixtures("sentences")
@for_each(ROWS)
def test_a_repair_can_be_followed(row):
    function, arguments = row
    if function in (plotting.tiles, plotting.points, plotting.bars):
        arguments = arguments | {"ax": picture()}
    invalid = next(iter(arguments))
    sentence = called(function, arguments)
    assert " expected " in sentence, sentence
    by_name = replaced(sentence.rpartition("; ")[2], invalid)
    known = NAMES | arguments
    assert called(function, arguments | {name: eval(text, known) for name, text in by_name.items()}) == ""


def test_the_expression_of_a_repair_is_found():
    assert replaced("write axes=-1 for the last axis, axes=0 for the first.", "axes") == {"axes": "-1"}
    assert replaced("pass jnp.zeros(3), or leave it out.", "bias") == {"bias": "jnp.zeros(3)"}
    assert replaced("pass for instance (0.0, 1.0).", "interval") == {"interval": "(0.0, 1.0)"}
