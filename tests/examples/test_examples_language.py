"""The examples char_lm and copy_task at toy size: their scores, and that a killed run can be resumed."""

import contextlib
import importlib.util
import io
import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from legible import saved_pictures
from repository import EXAMPLES

pytest.importorskip("matplotlib", reason="the figures require matplotlib")


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


char_lm, copy_task = example("char_lm"), example("copy_task")


@pytest.fixture(autouse=True)
def _as_users_run_them():
    """Use standard dtype promotion, which optax requires."""
    with jax.numpy_dtype_promotion("standard"), jax.debug_key_reuse(False):
        yield


# ---- char_lm ---------------------------------------------------------------------------------


def by_the_book(train, history, x, vocabulary):
    """The interpolated Witten-Bell probability of one token, by its recursion, with counts from lists."""
    if history is None:
        return 1 / vocabulary
    n = len(history)
    followers = Counter(train[i + n] for i in range(len(train) - n) if tuple(train[i : i + n]) == history)
    lower = by_the_book(train, history[1:] if n else None, x, vocabulary)
    total, kinds = sum(followers.values()), len(followers)
    return lower if not total else (followers[x] + kinds * lower) / (total + kinds)


@pytest.mark.parametrize("order", [0, 1, 3])
def test_ngrams_equal_the_recursion_and_sum_to_one(order):
    rng = np.random.default_rng(0)
    train, held_out = rng.integers(0, 3, 60), rng.integers(0, 4, 25)  # token 3 is in the latter only
    got = char_lm.ngram_probabilities(train, held_out, order, 4)
    expected = [
        by_the_book(train.tolist(), tuple(held_out[i - order : i].tolist()), held_out[i], 4) for i in range(order, 25)
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    history = held_out[:order].tolist()
    each = [char_lm.ngram_probabilities(train, np.array([*history, x]), order, 4)[-1] for x in range(4)]
    assert abs(sum(each) - 1) < 1e-12


def test_repeated_paragraphs_are_removed():
    assert char_lm.unique_paragraphs("a\n\nb\n\n \n\na\n\nc\nd") == "a\n\nb\n\nc\nd"
    text = char_lm.unique_paragraphs(char_lm.standard_library_text())
    cut = len(text) * 9 // 10
    assert not {p for p in text[:cut].split("\n\n") if len(p) > 200} & set(text[cut:].split("\n\n"))


TOY = ["--steps", "12", "--batch", "4", "--context", "16", "--layers", "1", "--features", "16", "--characters", "4000"]


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    """The scores of a whole run, what it prints, and its folder."""
    folder = tmp_path_factory.mktemp("char_lm")
    with jax.numpy_dtype_promotion("standard"), jax.debug_key_reuse(False):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            scores = char_lm.main([*TOY, "--recurrent-steps", "2", "--sample", "9", "--out", str(folder)])
    return scores, printed.getvalue(), folder


def test_char_lm_learns_and_samples(toy_run):
    """Twelve steps reach a score below a uniform guess, log2 of the number of tokens; the sample has its prompt."""
    scores, printed, folder = toy_run
    kinds = int(printed.split(" held out, ")[1].split(" distinct")[0])
    assert scores["transformer"] < np.log2(kinds) - 0.2 and abs(scores["recurrent"] - np.log2(kinds)) < 0.3
    assert list(scores) == [*(f"{n}-gram" for n in range(1, 6)), "recurrent", "transformer"]
    assert (
        printed.split("transformer:\n\n")[1].startswith("The ")
        and len(printed.split("transformer:\n\n")[1]) == 4 + 9 + 1
    )
    with np.load(folder / "transformer.npz") as saved:
        assert saved["['tokens']['embedding']"].shape == (kinds, 16)


def test_scores_are_bits_of_tokens_with_at_least_half_a_context():
    """With a table of probabilities as model: the mean of -log2 over all tokens from half a context on, each once."""
    table = np.random.default_rng(0).dirichlet(np.ones(5), 5).astype(np.float32)
    model = char_lm.jb.Layer(lambda key, x: (), lambda params, x: params[x])
    tokens = np.random.default_rng(1).integers(0, 5, 4 * 20 + 1).astype(np.int32)
    expected = np.mean([-np.log2(table[a, b]) for a, b in itertools.pairwise(tokens[4:])])
    assert abs(char_lm.score(model, jnp.log(table), tokens, 8) - expected) < 1e-5


def test_a_resumed_run_is_bitwise_equal(toy_run, tmp_path, monkeypatch, capsys):
    """A run that is killed after seven of twelve steps and started again ends with bitwise equal params."""
    pytest.importorskip("orbax.checkpoint", reason="checkpoints require orbax")
    options = [*TOY, "--recurrent-steps", "0", "--sample", "1", "--checkpoint-every", "3"]
    fit, stop = char_lm.jb.fit, KeyboardInterrupt("here")

    def fit_and_die(net, loss, optimizer, data, **settings):
        fit(net, loss, optimizer, data, **settings | {"steps": 7})
        raise stop

    monkeypatch.setattr(char_lm.jb, "fit", fit_and_die)
    again = [*options, "--out", str(tmp_path / "again"), "--checkpoint-dir", str(tmp_path / "checkpoints")]
    with pytest.raises(KeyboardInterrupt):
        char_lm.main(again)
    monkeypatch.undo()
    monkeypatch.setattr(char_lm, "generate", lambda net, params, prompt, **options: prompt)
    char_lm.main(again)
    with np.load(toy_run[2] / "transformer.npz") as one, np.load(tmp_path / "again/transformer.npz") as other:
        assert one.files == other.files
        for name in one.files:
            np.testing.assert_array_equal(one[name], other[name])
    prints = [line.split()[-1] for line in (toy_run[1] + capsys.readouterr().out).splitlines() if "SHA-256" in line]
    assert len(prints) == 3 and prints[1] == prints[2]  # the first is that of the recurrent net


# ---- copy_task -------------------------------------------------------------------------------


def test_examples_of_the_copy_task():
    x, y = copy_task.copies(jax.random.key(0), 3, 2, 4)
    assert x.shape == (3, 8) and y.shape == (3, 2)
    np.testing.assert_array_equal(x[:, :2], y)
    assert (x[:, 2:6] == copy_task.BLANK).all() and (x[:, 6:] == copy_task.MARK).all()


def test_attention_learns_to_copy_over_a_delay(tmp_path, capsys, monkeypatch):
    """Two symbols over ten blanks: after sixty steps attention is far above chance; results are printed and drawn."""
    options = [*"--delays 10 --length 2 --steps 60 --features 32 --layers 1".split(), "--out", str(tmp_path)]
    with saved_pictures(monkeypatch) as faults:
        found = copy_task.main(options)
    assert faults == {"copy_task.png": []}
    assert found["attention", 10] > 0.5 and found.keys() == {("attention", 10), ("LSTM", 10)}
    assert (tmp_path / "copy_task.png").stat().st_size > 10_000
    assert "attention, delay   10" in capsys.readouterr().out


@pytest.mark.parametrize("module", [char_lm, copy_task])
def test_an_invalid_argument_gives_a_one_line_error(module, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        module.main(["--out", str(tmp_path / "never"), "--steps", "0"])
    assert stop.value.code == 2 and ">= 1" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "never").exists()
