"""The examples classify_digits, graph_molecules and activation_speed at toy size; their headers have full results."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import EXAMPLES


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.usefixtures("as_a_user_has_it")


def test_classify_digits_learns(capsys):
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    module = load("classify_digits")
    module.NETS["cnn"] = lambda: module.ResNet((1,), classes=10, width=8, bottleneck=False, stem="3x3")
    module.NETS["vit"] = lambda: module.ViT(classes=10, patch_size=4, features=16, layers=1, heads=2, hidden=16)
    found = module.main(["--epochs", "2"])
    printed = capsys.readouterr().out
    assert found["cnn"] > 0.2 and found["vit"] > 0.13  # two epochs at toy size; chance is 0.1
    assert all(f"test accuracy {accuracy:.4f}, of 359" in printed for accuracy in found.values())


def test_activation_speed_counts_epochs(capsys, tmp_path):
    """At toy size; epochs are counted from 1, and a run that never reaches the threshold has one more than all."""
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    module = load("activation_speed")
    curves = np.array([[3.0, 0.2, 0.4, 0.1], [0.1, 0.1, 0.1, 0.1], [3.0, 2.0, 1.0, 0.9]])
    assert module.epochs_to(0.3, curves).tolist() == [2, 1, 5]
    options = ["--seeds", "2", "--epochs", "2", "--examples", "128", "--threshold", "5", "--out", str(tmp_path)]
    found = module.main(options)
    assert set(found) == {"ReLU", "tanh", "GELU"} and all(1 <= epochs <= 3 for epochs in found.values())
    assert "tanh needs 1.00 times the epochs" in capsys.readouterr().out and (tmp_path / "losses.png").exists()


def test_distorted_digits_correlate_with_the_originals():
    """Small rotations and shifts: the images differ, and their mean intensity and mean image stay close."""
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    module = load("classify_digits")
    image = jnp.asarray(module.digits()[0][:1])
    many = module.distort(jax.random.key(0), jnp.repeat(image, 200, 0))
    assert many.shape == (200, 8, 8, 1) and many.dtype == jnp.float32
    assert float(jnp.abs(many - many[:1])[1:].mean((1, 2, 3)).min()) > 0.02
    mean = np.asarray(many.mean(0)).ravel()
    assert np.corrcoef(mean, np.asarray(image[0]).ravel())[0, 1] > 0.9
    assert abs(float(many.mean() / image.mean()) - 1) < 0.15


def test_graph_molecules_learns_and_has_the_stated_limit(capsys):
    module = load("graph_molecules")
    small = lambda kind, pool: module.GraphClassifier(2, kind=kind, features=8, layers=1, pool=pool)
    module.NETS["gcn"] = lambda: module.jb.Serial(module.side_by_side, small("gcn", "mean"))
    module.NETS["gin"] = lambda: module.jb.Serial(module.side_by_side, small("gin", "sum"))
    found = module.main(["--graphs", "192", "--epochs", "2"])
    assert set(found) == {"counts", "gcn", "gin", "twins"} and found["twins"] < 1e-3
    assert "decalin has six-membered rings" in capsys.readouterr().out


def test_molecules_are_as_documented():
    """Valences are valid, molecules are connected with equal numbers of bonds and atoms, the label is the ring size."""
    module, rng = load("graph_molecules"), np.random.default_rng(0)
    for ring in (5, 6, 7) * 20:
        atoms, bonds = module.draw_molecule(rng, ring)
        n = len(atoms)
        degrees = np.bincount(bonds.ravel(), minlength=n)
        assert len(bonds) == n and (degrees <= module.VALENCES[atoms]).all()
        neighbors = [set() for _ in range(n)]
        for a, b in bonds:
            neighbors[a].add(int(b)), neighbors[b].add(int(a))
        seen, front = {0}, {0}
        while front := set().union(*(neighbors[a] for a in front)) - seen:
            seen |= front
        assert len(seen) == n
        while leaves := [a for a in range(n) if len(neighbors[a]) == 1]:  # remove atoms outside the ring
            for leaf in leaves:
                for other in neighbors[leaf]:
                    neighbors[other].discard(leaf)
                neighbors[leaf] = set()
        assert sum(map(bool, neighbors)) == ring


def test_features_count_atoms_and_bonds():
    module = load("graph_molecules")
    (kinds, senders, receivers, atom_mask, bond_mask), labels = module.draw_data(np.random.default_rng(0), 6)
    counted = np.asarray(module.count_atoms(*map(jnp.asarray, (kinds, senders, receivers, atom_mask, bond_mask))))
    assert sorted(labels) == [0, 0, 0, 1, 1, 1]
    for row in range(6):
        wanted = np.zeros((3, 5))
        for atom in np.flatnonzero(atom_mask[row]):
            wanted[kinds[row, atom].argmax(), (receivers[row][bond_mask[row]] == atom).sum()] += 1
        np.testing.assert_allclose(counted[row], wanted.ravel())
