"""The examples of diffusion at toy size; their headers report the results at full size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from legible import saved_pictures

pytestmark = pytest.mark.usefixtures("as_a_user_has_it")


def test_the_score_of_a_mixture_is_learned(tmp_path, capsys, monkeypatch):
    import diffusion_2d

    with saved_pictures(monkeypatch) as faults:
        found = diffusion_2d.main(["--steps", "200", "--samples", "200", "--seed", "1", "--out", str(tmp_path)])
    assert faults == {"scores.png": []}
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"relative error of the score at t = 0.2: {found['errors'][0.2]:.4f}"
    assert found["errors"][0.5] < 0.1 and found["errors"][0.2] < 0.35  # 200 steps; the full run has 4000
    np.testing.assert_allclose(found["shares"]["exact"], found["weights"], atol=0.15)
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # compiles a U-Net for training and for sampling
def test_digits_are_generated_and_classified(tmp_path, capsys, monkeypatch):
    """With a U-Net of one level; the shapes of the denoiser of the example are those of the images."""
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    import diffusion_digits

    denoiser, image, label = diffusion_digits.denoiser(8), jnp.zeros((2, 8, 8, 1)), jnp.arange(2)
    made = jax.eval_shape(lambda x: denoiser.init(jax.random.key(0), x, time=jnp.float32(0.5), label=label), image)
    out = jax.eval_shape(lambda params, x: denoiser.apply(params, x, time=jnp.float32(0.5), label=label), made, image)
    assert out == jax.eval_shape(lambda: image)
    small = dict(multipliers=(1,), blocks=1, attention_levels=(), classes=10, dropout=0)
    monkeypatch.setattr(diffusion_digits, "denoiser", lambda width: diffusion_digits.UNet(1, width=width, **small))
    toy = ["--steps", "3", "--width", "8", "--samples", "12", "--sampling", "3", "--out", str(tmp_path)]
    found = diffusion_digits.main(toy)
    assert capsys.readouterr().out.splitlines()[-1] == f"samples recognized: {found['recognized']:.4f}"
    assert found["drawn"].shape == (12, 8, 8, 1) and np.isfinite(found["drawn"]).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["denoising.gif", "real.png", "samples.png"]
    assert (tmp_path / "denoising.gif").read_bytes().startswith(b"GIF89a")


def test_tiles_are_arranged_row_by_row():
    import diffusion_digits

    images = np.arange(12.0)[:, None, None, None] * np.ones((1, 2, 2, 1))
    picture = diffusion_digits.tiled(images)
    assert picture.shape == (8, 40)
    np.testing.assert_array_equal(picture[1, 1::4], np.arange(10))
    np.testing.assert_array_equal(picture[5, 1::4], [10, 11, *[-1] * 8])


@pytest.mark.parametrize(
    ("example", "arguments", "words"),
    [
        ("diffusion_2d", ["--steps", "0"], "argument --steps: expected an integer >= 1, got 0"),
        ("diffusion_digits", ["--width", "0"], "argument --width: expected an integer >= 1, got 0"),
        (
            "diffusion_digits",
            ["--out", "/dev/null/pictures"],
            "argument --out: expected a folder that can be created, got /dev/null/pictures",
        ),
    ],
)
def test_an_invalid_argument_gives_a_one_line_error(example, arguments, words, capsys):
    import importlib

    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(example).main(arguments)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
