"""Classify random molecules by whether they contain a ring of six atoms, with graph
neural networks.

The molecules have 9 to 14 atoms and one ring: of six atoms (label 1), or of five or
seven (label 0). On 8000 test molecules, with seed 0, a GIN reaches an accuracy of 99.8
% and a GCN with mean readout 93.9 %; the baseline, an MLP on the number of atoms of
each kind with each number of bonds, reaches 53.5 %, which is near chance level. The
last part shows a limitation of message passing: decalin and bicyclopentyl have the same
logits. The example takes two minutes on two CPU cores.

    python examples/graph_molecules.py --graphs 48000 --epochs 24 --seed 0
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxblocks as jb
from jaxblocks.models import GraphClassifier

VALENCES = np.array([4, 3, 2])  # carbon, nitrogen, oxygen
SMALLEST, LARGEST = 9, 14  # atoms


# ---- molecules -----------------------------------------------------------------------


def draw_molecule(rng, ring):
    """Atoms (n,) and the ends of n bonds (n, 2): a ring of ``ring`` atoms with random
    branches.
    """
    n = rng.integers(SMALLEST, LARGEST + 1)
    atoms = rng.choice(3, n, p=[0.6, 0.2, 0.2])
    bonds, free = [(i, (i + 1) % ring) for i in range(ring)], VALENCES[atoms]
    free[:ring] -= 2
    for new in range(ring, n):
        open_places = np.flatnonzero(free[:new] > 0)
        if not len(open_places):
            return draw_molecule(rng, ring)  # no free valence: draw another molecule
        at = rng.choice(open_places)
        bonds.append((at, new))
        free[[at, new]] -= 1
    # random order, so that the order has no information on the label
    names = rng.permutation(n)
    return atoms[np.argsort(names)], names[np.array(bonds)]


def draw_data(rng, rows):
    """Padded molecules: half with a ring of six atoms (label 1), half with a ring of
    five or seven (label 0).

    Atoms are one-hot (rows, n, 3), bonds have both directions (rows, e); masks are True
    at valid entries. A molecule of n atoms has n bonds for each ring size, so these
    numbers have no information on the label."""
    labels = rng.permutation(rows) % 2
    kinds, senders = (
        np.zeros((rows, LARGEST, 3), np.float32),
        np.zeros((rows, 2 * LARGEST), np.int32),
    )
    receivers, sizes = np.zeros_like(senders), np.zeros(rows, int)
    for row, label in enumerate(labels):
        atoms, bonds = draw_molecule(rng, 6 if label else rng.choice([5, 7]))
        n = sizes[row] = len(atoms)
        kinds[row, np.arange(n), atoms] = 1
        senders[row, : 2 * n], receivers[row, : 2 * n] = np.concatenate(
            [bonds, bonds[:, ::-1]]
        ).T
    atom_mask, bond_mask = (
        np.arange(LARGEST) < sizes[:, None],
        np.arange(2 * LARGEST) < 2 * sizes[:, None],
    )
    return (kinds, senders, receivers, atom_mask, bond_mask), labels.astype(np.int32)


# ---- nets ----------------------------------------------------------------------------


def side_by_side(kinds, senders, receivers, atom_mask, bond_mask):
    """A batch of padded molecules (rows, ...) as one disconnected graph."""
    rows, n = kinds.shape[:2]
    first = n * jnp.arange(rows, dtype=jnp.int32)[:, None]
    return jb.Graph(
        kinds.reshape(rows * n, -1),
        (senders + first).ravel(),
        (receivers + first).ravel(),
        node_graph=jnp.repeat(jnp.arange(rows, dtype=jnp.int32), n),
        node_mask=atom_mask.ravel(),
        edge_mask=bond_mask.ravel(),
        graph_mask=jnp.ones(rows, bool),
    )


def count_atoms(kinds, senders, receivers, atom_mask, bond_mask):
    """Features without connectivity: the number of atoms of each kind with each number
    of bonds, (rows, 15).
    """
    bonds = jax.nn.one_hot(receivers, LARGEST) * bond_mask[..., None]  # (rows, e, n)
    degrees = jax.nn.one_hot(bonds.sum(1).astype(jnp.int32), 5)  # (rows, n, 5)
    return jnp.einsum("rnk,rnd->rkd", kinds, degrees).reshape(len(kinds), -1)


NETS = {
    "counts": lambda: jb.Serial(count_atoms, jb.MLP(64, 64, 2)),
    "gcn": lambda: jb.Serial(
        side_by_side, GraphClassifier(2, kind="gcn", features=64, layers=5, pool="mean")
    ),
    "gin": lambda: jb.Serial(
        side_by_side, GraphClassifier(2, kind="gin", features=64, layers=5)
    ),
}


# ---- main ----------------------------------------------------------------------------


def train(name, training, validation, *, epochs, seed):
    """The net and the result of `fit`: params and state of the epoch with the lowest
    validation loss.
    """
    net, steps = NETS[name](), epochs * -(-len(training[1]) // 64)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, steps // 10, steps)
    fitted = jb.fit(
        net,
        jb.softmax_cross_entropy,
        optax.adamw(schedule, weight_decay=1e-3),
        training,
        key=jax.random.key(seed),
        epochs=epochs,
        validation=validation,
        metrics={"accuracy": jb.accuracy},
    )
    return net, fitted


def twins():
    """Decalin, two six-membered rings with a common bond, and bicyclopentyl, two
    five-membered rings and a bond.
    """
    hexagons = [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (4, 5),
        (5, 0),
        (5, 6),
        (6, 7),
        (7, 8),
        (8, 9),
        (9, 0),
    ]
    pentagons = [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (4, 0),
        (0, 5),
        (5, 6),
        (6, 7),
        (7, 8),
        (8, 9),
        (9, 5),
    ]
    molecules = []
    for bonds in (hexagons, pentagons):
        ends = np.concatenate([bonds, np.array(bonds)[:, ::-1]]).T
        molecules.append(
            (np.eye(3, dtype=np.float32)[np.zeros(10, int)], *ends.astype(np.int32))
        )
    kinds, senders, receivers = map(np.stack, zip(*molecules, strict=True))
    return kinds, senders, receivers, np.ones((2, 10), bool), np.ones((2, 22), bool)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=str(__doc__).splitlines()[0], usage=argparse.SUPPRESS
    )
    parser.add_argument(
        "--graphs",
        type=int,
        default=48_000,
        help=(
            "molecules: two thirds for training, one sixth each for validation and test"
        ),
    )
    parser.add_argument("--epochs", type=int, default=24, help="training epochs")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    args = parser.parse_args(argv)
    if args.graphs < 12 or args.epochs < 1:
        parser.error(
            f"expected --graphs >= 12 and --epochs >= 1, got {args.graphs} and "
            f"{args.epochs}"
        )

    data = draw_data(np.random.default_rng(args.seed), args.graphs)
    training, validation, (molecules, labels) = jb.train_val_test_split(
        jax.random.key(args.seed), data, fractions=(4 / 6, 1 / 6, 1 / 6)
    )
    accuracies = {}
    for name in NETS:
        begin = time.perf_counter()
        net, fitted = train(
            name, training, validation, epochs=args.epochs, seed=args.seed
        )
        apply = jax.jit(jb.stateful(net).apply)
        # the only use of the test part
        logits, _ = apply(fitted.params, fitted.state, *map(jnp.asarray, molecules))
        accuracies[name] = float(jb.accuracy(logits, jnp.asarray(labels)))
        seconds = time.perf_counter() - begin
        print(
            f"{name}: {jb.count_params(fitted.params):,} params, {seconds:.0f} s, "
            f"test accuracy {accuracies[name]:.4f}"
        )
    logits, _ = apply(fitted.params, fitted.state, *map(jnp.asarray, twins()))
    difference = float(jnp.abs(logits[0] - logits[1]).max())
    print(
        f"decalin has six-membered rings, bicyclopentyl has none: their logits differ "
        f"by {difference:.1e}"
    )
    return {**accuracies, "twins": difference}


if __name__ == "__main__":
    main()
