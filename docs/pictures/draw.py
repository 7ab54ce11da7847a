"""Draw the two pictures of the README: ``python docs/pictures/draw.py`` in the root of the repository."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))


def main():
    """Write layers.png, Jacobians of layers, and derivatives.png, the operations of derivatives."""
    import ad_cost
    import figures

    import jaxblocks as jb
    from jaxblocks import plotting

    with plotting.style():
        figures.FIGURES["F32"].draw(False)[0].savefig(HERE / "layers.png", dpi=80)
        figure = Figure(figsize=(11, 3.2), layout="constrained")
        nets = ad_cost.nets(ad_cost.QUICK)
        for axes, (name, (net, shape)) in zip(figure.subplots(1, len(nets)), nets.items(), strict=True):
            params = jax.eval_shape(net.init, jax.random.key(0), shape)
            params, x = jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype), (params, shape))
            loss = lambda x, net=net, params=params: jb.softmax_cross_entropy(net.apply(params, x), jnp.int32(1))
            jb.cost_table(loss, x, rows=ad_cost.ROWS, measure=False).plot(axes)
            axes.set_title(name)
            axes.set_xscale("log")  # the same in all three
        figure.savefig(HERE / "derivatives.png", dpi=80)


if __name__ == "__main__":
    main()
