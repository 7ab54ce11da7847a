"""The first thing a newcomer runs, at toy size; its real size is run by `make quickstart`."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")


pytestmark = pytest.mark.usefixtures("as_a_user_has_it")


def test_quickstart_learns_and_draws(tmp_path, capsys):
    import quickstart

    found = quickstart.main(["--steps", "120", "--seed", "1", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert found["accuracy"] > 0.8  # 120 steps; the real run has 3000
    assert printed.splitlines()[-1] == f"test accuracy: {found['accuracy']:.4f}"
    assert printed.count("test accuracy") == 1
    assert "edges Serial" in printed
    assert "classify" in printed
    np.testing.assert_allclose(found["looks"].sum((1, 2)), 1, rtol=1e-5)
    table = found["cost"]
    assert 2 < table["gradient"].flops / table["function"].flops < 4
    assert table["hvp"].flops > 2 * table["gradient"].flops
    pictures = sorted(path.name for path in tmp_path.iterdir())
    assert pictures == ["attention.png", "confusion.png", "learning.png", "misread.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


@pytest.mark.parametrize("misread", [0, 1, 4, 6, 7, 20])
def test_the_picture_of_misread_digits_has_no_blank_half(misread, tmp_path):
    """As many places as digits: one row up to six, else two."""
    import quickstart
    from matplotlib.image import imread

    images, labels = np.tile(np.arange(8.0)[:, None], (20, 8, 1, 1)), np.arange(20) % 10
    predicted = np.where(np.arange(20) < misread, (labels + 1) % 10, labels)
    quickstart.draw_misread(images, labels, predicted, tmp_path / "misread.png")
    drawn = imread(tmp_path / "misread.png")[..., :3].min((1, 2)) < 0.5  # rows of pixels with something on them
    assert drawn.any()
    assert misread == 0 or drawn[len(drawn) // 2 :].mean() > 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "argument --steps: at least 1 was expected, but 0 came"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["--color", "red"], "unrecognized arguments: --color red"),
        (["--out", "/dev/null/pictures"], "argument --out: /dev/null/pictures cannot be made a folder"),
    ],
)
def test_a_bad_argument_gets_one_clear_line(arguments, words, capsys):
    import quickstart

    with pytest.raises(SystemExit) as stopped:
        quickstart.main(arguments)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
