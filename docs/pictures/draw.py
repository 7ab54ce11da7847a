"""Draw the pictures of the README and of the guides: ``python docs/pictures/draw.py`` in the root of the repository.

Times are measured, so no other program should run.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))


def main():
    """Write layers.png, Jacobians of layers, and the pictures of derivatives, which examples/ad_cost.py computes."""
    import figures

    import ad_cost
    import jaxblocks as jb
    from jaxblocks import plotting

    sizes, key = ad_cost.Sizes(), jax.random.key(0)
    with plotting.style():
        figures.FIGURES["F32"].draw(False)[0].savefig(HERE / "layers.png", dpi=80)
        ad_cost.tables(sizes, key, 5, HERE / "derivatives.png", dpi=80)
        ad_cost.modes(sizes, key, 5, HERE / "modes.png", dpi=80)
        ad_cost.memory(sizes, 5, HERE / "memory.png", dpi=80)
        net = jb.MLP(*sizes.autoencoder[1:], activation=jb.tanh)
        params = jax.jit(net.init)(key, jnp.ones(sizes.autoencoder[0]))
        figure = Figure(figsize=(10, 5.2), layout="constrained")
        plan = jb.ad.jacobian_plan(
            lambda x: net.apply(params, x), jnp.ones(sizes.autoencoder[0])
        )
        plan.plot(figure.subplots())
        figure.savefig(HERE / "plan.png", dpi=80)


if __name__ == "__main__":
    main()
