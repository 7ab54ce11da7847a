"""Draw the pictures of the README and of the guides.

    python docs/pictures/draw.py                 # in the root of the repository
    python docs/pictures/draw.py layers plan     # those in which nothing is measured

Times are measured in the others, so no other program should run. Those in the repository are of processor time, on one
thread (`benchmarks/RESULTS.md`).
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))


DPI = 160  # twice the pixels that the pictures take on the page


def main(names):
    """Draw the pictures with the given names, by default all."""
    import ad_cost
    import figures

    import jaxblocks as jb
    from jaxblocks import plotting

    sizes, key, rng = ad_cost.Sizes(), jax.random.key(0), np.random.default_rng(0)
    path = lambda name: HERE / f"{name}.png"

    def layers():
        figures.FIGURES["F32"].draw(False)[0].savefig(path("layers"), dpi=DPI)

    def plan():
        net = jb.MLP(*sizes.autoencoder[1:], activation=jb.tanh)
        image = jnp.ones(sizes.autoencoder[0])
        params = jax.jit(net.init)(key, image)
        figure = Figure(figsize=(10, 5.2), layout="constrained")
        decode = lambda x: net.apply(params, x)
        jb.ad.jacobian_plan(decode, image).plot(figure.subplots())
        figure.savefig(path("plan"), dpi=DPI)

    draw = {
        "layers": layers,
        "plan": plan,
        "derivatives": lambda: ad_cost.tables(sizes, rng, 5, path("derivatives"), DPI),
        "modes": lambda: ad_cost.modes(sizes, 5, path("modes"), DPI),
        "memory": lambda: ad_cost.memory(sizes, 5, path("memory"), DPI),
    }
    with plotting.style():
        for name in names or draw:
            draw[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
