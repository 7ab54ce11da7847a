"""The quickstart example at small size; `make quickstart` runs the full size."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")


pytestmark = pytest.mark.usefixtures("as_a_user_has_it")


def test_quickstart_learns_and_draws(tmp_path, capsys, small_pictures):
    import quickstart

    found = quickstart.main(["--steps", "60", "--seed", "1", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert found["accuracy"] > 0.8  # the full run has 1200 steps
    assert printed.splitlines()[-1] == f"test accuracy: {found['accuracy']:.4f}"
    assert printed.count("test accuracy") == 1
    assert "conv1 Conv" in printed
    assert "classify" in printed
    np.testing.assert_allclose(found["received"].sum((1, 2)), 1, rtol=1e-5)
    table = found["cost"]
    assert 2 < table["gradient"].flops / table["function"].flops < 4
    assert table["hvp"].flops > 2 * table["gradient"].flops
    pictures = sorted(path.name for path in tmp_path.iterdir())
    assert pictures == ["attention.png", "confusion.png", "errors.png", "learning.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


@pytest.mark.parametrize("wrong", [0, 1, 20])
def test_figure_of_errors_has_a_title_and_the_wrong_digits(wrong, tmp_path):
    import quickstart
    from matplotlib.image import imread

    images, labels = np.tile(np.arange(8.0)[:, None], (20, 8, 1, 1)), np.arange(20) % 10
    predicted = np.where(np.arange(20) < wrong, (labels + 1) % 10, labels)
    quickstart.draw_errors(images, labels, predicted, tmp_path / "errors.png")
    dark = imread(tmp_path / "errors.png")[..., :3].max(-1) < 0.5
    assert dark[: len(dark) // 4].any()  # the title
    assert dark[len(dark) // 4 :].any() == (wrong > 0)  # the digits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "argument --steps: expected an integer >= 1, got 0"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["--color", "red"], "unrecognized arguments: --color red"),
        (["--out", "/dev/null/pictures"], "argument --out: /dev/null/pictures cannot be created"),
    ],
)
def test_wrong_arguments_give_an_error_of_one_line(arguments, words, capsys):
    import quickstart

    with pytest.raises(SystemExit) as stopped:
        quickstart.main(arguments)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
