"""Activations with params: values of PyTorch, properties of maxout, params at init."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn

from jaxblocks import Maxout, PReLU, Swish, silu

# ---- PReLU and swish


def test_prelu_matches_pytorch():
    """Values and both gradients in float64, including the kink."""
    torch = pytest.importorskip("torch", reason="requires PyTorch; run make parity")
    x, slope = np.random.default_rng(0).normal(size=(6, 5)), np.linspace(-0.5, 1.5, 5)
    x[0, 0] = 0

    def total(slope, x):
        y = PReLU(per_feature=True).apply({"negative_slope": slope}, x)
        return (y**3).sum() + y.sum(), y

    with jax.enable_x64(True):
        (of_slope, of_x), ours = compiled(jax.grad(total, (0, 1), has_aux=True))(slope, x)
    a, b = torch.tensor(slope, requires_grad=True), torch.tensor(x, requires_grad=True)
    y = torch.nn.functional.prelu(b, a)
    ((y**3).sum() + y.sum()).backward()
    np.testing.assert_allclose(ours, y.detach())
    np.testing.assert_allclose(of_slope, a.grad, rtol=1e-10)
    np.testing.assert_allclose(of_x, b.grad, rtol=1e-10)


def test_params_at_init():
    """The slope of PReLU is 0.25, as in PyTorch and the paper; swish equals silu."""
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    np.testing.assert_array_equal(PReLU().init(jax.random.key(0), x)["negative_slope"], 0.25)
    made = PReLU(negative_slope_init=0.1, per_feature=True).init(jax.random.key(0), jnp.ones((2, 3)))
    np.testing.assert_allclose(made["negative_slope"], [0.1, 0.1, 0.1])
    params = Swish().init(jax.random.key(0), x)
    np.testing.assert_allclose(Swish().apply(params, x), silu(x), rtol=1e-6)


# ---- maxout


def test_two_pieces_keep_the_second_moment():
    """The maximum of two standard normal variables has second moment 1."""
    x = np.random.default_rng(1).normal(size=(500, 400)).astype(np.float32)
    kernel = np.asarray(Maxout(300).init(jax.random.key(0), x)["kernel"])
    y = (x @ kernel).reshape(500, 300, 2).max(-1)
    assert (y**2).mean() == pytest.approx(1, rel=0.02)


# ---- errors


@pytest.mark.usefixtures("sentences")
def test_wrong_arguments_are_rejected():
    x = jnp.ones((4, 5))
    for wrong in (lambda: Maxout(0), lambda: Maxout(3, pieces=1.5)):
        with pytest.raises(ValueError, match="to be an integer >= 1"):
            wrong()
    params = drawn(Maxout(3), x)
    with pytest.raises(
        ValueError, match=r"Maxout expected kernel of shape \(2, 6\), got float32 \(5, 6\); pass params that init made"
    ):
        Maxout(3).apply(params, x[:, :2])
    with pytest.raises(ValueError, match=r"kernel of shape \(5, 9\), got float32 \(5, 6\)"):
        Maxout(3, pieces=3).apply(params, x)
    slopes = PReLU(per_feature=True).init(jax.random.key(0), x)
    with pytest.raises(
        ValueError, match=r"negative_slope of shape \(2,\), got float32 \(5,\); pass params that init made"
    ):
        PReLU(per_feature=True).apply(slopes, x[:, :2])
    with pytest.raises(ValueError, match=r"negative_slope of shape \(\), got float32 \(5,\)"):
        PReLU().apply(slopes, x)
    for layer in (Maxout(3), PReLU(), Swish()):
        with pytest.raises(
            TypeError, match=r"expected x to be a floating-point array, got int32 .* x.astype\(jnp.float32\)"
        ):
            layer.init(jax.random.key(0), jnp.arange(3))
