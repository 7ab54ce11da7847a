"""Write the gallery and the pages of the notebooks, from ``examples/`` and ``notebooks/``.

Pictures are drawn where they are missing, and where the example that draws them has changed. ``docs/conf.py`` calls
``write()`` before Sphinx reads the sources.
"""

import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import make_students

ROOT = Path(__file__).parents[2]

# The examples whose pictures are in the gallery, with their arguments: those that take at most a minute or two.
EXAMPLES = {
    "quickstart": (),
    "nn251": (),
    "xor": (),
    "minimize": (),
    "ad_cost": (),
    "backprop_by_hand": (),
    "diffusion_2d": (),
}

DERIVATIVES = "Operations and times of jvp, vjp, gradient, Jacobians, Hessian and Hessian-vector product of three nets"
LAYERS = "The Jacobians of seven layers, white where an entry is zero, and the weights of an attention"


def write(folder: Path, draw: bool = True) -> None:
    """Write the pages; ``draw`` makes the pictures that are missing or old."""
    gallery, notebooks = folder / "gallery", folder / "notebooks"
    for path in (gallery, notebooks):
        path.mkdir(exist_ok=True)
    if draw:
        _draw_figures(gallery / "figures")
        for name in EXAMPLES:
            _draw_example(name, gallery / name)
    pages = {
        "figures.md": _figures(gallery),
        **{f"{name}.md": _example(name, gallery) for name in EXAMPLES},
    }
    pages["index.md"] = _gallery_index(gallery)
    for name, text in pages.items():
        _write(gallery / name, text)
    make_students.write(notebooks / "students")
    sources = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for path in set(notebooks.glob("*.ipynb")) - {notebooks / s.name for s in sources}:
        path.unlink()
    for source in sources:
        _write(
            notebooks / source.name,
            json.dumps(notebook(json.loads(source.read_text())), indent=1),
        )
    _write(notebooks / "index.md", _notebook_index(sources))


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


# ---- notebooks -------------------------------------------------------------------------------


def notebook(content: dict) -> dict:
    """A notebook as a page: solutions are collapsed, and pictures have a text."""
    section = ""
    for cell in content["cells"]:
        text = "".join(cell["source"])
        is_solution = "solution" in make_students.tags(cell)
        if cell["cell_type"] == "markdown":
            titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
            section = titles[-1] if titles else section
            cell["source"] = collapsed(text) if is_solution else text
        else:
            text = f"Picture of the section {re.sub(r'[$*`]', '', section)!r}, drawn by the code above"
            cell["metadata"] = cell["metadata"] | {"mystnb": {"image": {"alt": text}}}
            if is_solution:
                cell["metadata"]["tags"] = ["solution", "hide-cell"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return content | {
        "metadata": content["metadata"]
        | {"kernelspec": kernel, "language_info": {"name": "python"}}
    }


def collapsed(text: str) -> str:
    """The text of a solution, which a click shows."""
    return f"<details><summary>Solution</summary>\n\n{text}\n\n</details>"


def _title_of(source: Path) -> str:
    for cell in json.loads(source.read_text())["cells"]:
        found = re.search(r"^# (.*)$", "".join(cell["source"]), flags=re.MULTILINE)
        if cell["cell_type"] == "markdown" and found:
            return found.group(1)
    return source.stem


def _notebook_index(sources: list[Path]) -> str:
    lines = [
        "# Notebooks",
        "",
        "A course, to be read in order. Each page is the notebook with its results; solutions of exercises are",
        "collapsed. The version for students has no solutions.",
        "",
        "| | notebook | | |",
        "|---|---|---|---|",
    ]
    for source in sources:
        number, title = source.stem.split("_")[0], _title_of(source)
        whole = f"{{download}}`download <../../notebooks/{source.name}>`"
        students = f"{{download}}`for students <students/{source.name}>`"
        lines.append(f"| {number} | [{title}]({source.name}) | {whole} | {students} |")
    return "\n".join(
        [
            *lines,
            "",
            "```{toctree}",
            ":hidden:",
            "",
            *[source.stem for source in sources],
            "```",
            "",
        ]
    )


# ---- pictures --------------------------------------------------------------------------------


def _functions(path: Path) -> dict[str, tuple[ast.FunctionDef, str]]:
    """The functions at the top of a file, each with its source."""
    text = path.read_text()
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node, "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def _first_paragraph(node: ast.FunctionDef | ast.Module) -> str:
    """The beginning of a docstring, in one line."""
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())


def _numbered() -> list[tuple[str, str, str, str]]:
    """The number, the file, the title and the source of each figure of ``examples/figures.py``."""
    found = []
    for name, (node, source) in _functions(ROOT / "examples" / "figures.py").items():
        for decorator in node.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and getattr(decorator.func, "id", "") == "picture"
            ):
                number = ast.literal_eval(decorator.args[0])
                title = _first_paragraph(node).rstrip(".") or name
                found.append((number, f"{number}_{name}", title, source))
    return sorted(found)


def _draw_figures(folder: Path) -> None:
    files = {number: f"{file}.png" for number, file, _, _ in _numbered()}
    old = [one for one, file in files.items() if not _is_drawn(folder, "figures", file)]
    if old:
        _draw(folder, "figures", "--only", *old)


def _draw_example(name: str, folder: Path) -> None:
    if not _is_drawn(folder, name, "*.png"):
        _draw(folder, name, *EXAMPLES[name])


def _is_drawn(folder: Path, name: str, pattern: str) -> bool:
    """Whether the pictures are those of the example as it is now, from a run that ended."""
    marker = folder / "drawn_by"
    is_of_this_version = marker.exists() and marker.read_text() == _version(name)
    return is_of_this_version and any(folder.glob(pattern))


def _version(name: str) -> str:
    source = (ROOT / "examples" / f"{name}.py").read_bytes()
    return hashlib.sha256(source).hexdigest()


def _draw(folder: Path, name: str, *arguments: str) -> None:
    """Draw pictures in another folder, and copy them when all are complete.

    The version of the example is written last, so that after an interruption all
    pictures are drawn again.
    """
    folder.mkdir(exist_ok=True)
    (folder / "drawn_by").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as made:
        _run(f"{name}.py", *arguments, "--out", made)
        for picture in Path(made).glob("*.png"):
            shutil.copy(picture, folder)
    (folder / "drawn_by").write_text(_version(name))


def _run(file: str, *arguments: str) -> None:
    print(f"drawing the pictures of {file} ...", flush=True)
    done = subprocess.run(
        [sys.executable, f"examples/{file}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"examples/{file} failed: {done.stderr[-2000:]}")


def _picture(path: Path, folder: Path, text: str) -> list[str]:
    return [f"![{text}]({path.relative_to(folder)})", ""] if path.exists() else []


def _code(source: str) -> list[str]:
    return [
        "<details><summary>The lines that make it</summary>",
        "",
        "```py",
        source,
        "```",
        "",
        "</details>",
        "",
    ]


def _figures(gallery: Path) -> str:
    """The page of the figures of the lectures."""
    lines = [
        "# The figures of the lectures",
        "",
        "`python examples/figures.py` computes and draws all of them. Functions that several figures share are in",
        "the same file.",
        "",
    ]
    for number, file, title, source in _numbered():
        plain = title.replace("`", "")
        lines += [
            f"({number})=",
            "",
            f"## {number}: {title}",
            "",
            *_picture(gallery / "figures" / f"{file}.png", gallery, plain),
        ]
        lines += _code(source)
    return "\n".join(lines)


def _example(name: str, gallery: Path) -> str:
    """The page of an example: its pictures, and its functions that draw."""
    path = ROOT / "examples" / f"{name}.py"
    doc = ast.get_docstring(ast.parse(path.read_text())) or name
    lines = [f"# {name.replace('_', ' ')}", "", doc.split("\n\n")[0], ""]
    lines += [
        "```bash",
        " ".join([f"python examples/{name}.py", *EXAMPLES[name]]),
        "```",
        "",
    ]
    for picture in sorted((gallery / name).glob("*.png")):
        words = f"{picture.stem.replace('_', ' ')}: a picture of the example {name}"
        lines += [
            f"({name}-{picture.stem})=",
            "",
            f"## {picture.stem.replace('_', ' ')}",
            "",
            *_picture(picture, gallery, words),
        ]
    functions = _functions(path)
    drawing = [
        source
        for key, (_, source) in functions.items()
        if key.startswith(("draw", "plot"))
    ]
    return "\n".join([*lines, *_code("\n\n\n".join(drawing or [functions["main"][1]]))])


def _thumbnail(
    picture: Path, gallery: Path, page: str, label: str, text: str
) -> list[str]:
    """A small picture that leads to its place on a page, with what it shows."""
    if not picture.exists():
        return []
    anchor = re.sub(r"[^a-z0-9]+", "-", label.lower())  # as Sphinx writes it
    return [
        f":::{{figure}} {picture.relative_to(gallery)}",
        f":alt: {text}",
        f":target: {page}.html#{anchor}",
        "",
        text,
        ":::",
    ]


def _grid(title: str, thumbnails: list[list[str]]) -> list[str]:
    """A heading and small pictures; nothing where no picture is drawn."""
    inside = [line for lines in thumbnails for line in lines]
    if not inside:
        return []
    return [f"## {title}", "", "::::{container} gallery", *inside, "::::", ""]


def _gallery_index(gallery: Path) -> str:
    names = ["figures", *EXAMPLES]
    lines = ["# Gallery", "", "Pictures with the lines that make them.", ""]
    figures = []
    for number, file, title, _ in _numbered():
        text = f"{number}: {title}".replace("`", "")
        picture = gallery / "figures" / f"{file}.png"
        figures.append(_thumbnail(picture, gallery, "figures", number, text))
    lines += _grid("The figures of the lectures", figures)
    examples = []
    for name in EXAMPLES:
        for picture in sorted((gallery / name).glob("*.png")):
            text = f"{name.replace('_', ' ')}: {picture.stem.replace('_', ' ')}"
            label = f"{name}-{picture.stem}"
            examples.append(_thumbnail(picture, gallery, name, label, text))
    lines += _grid("Examples", examples)
    lines += ["```{toctree}", ":maxdepth: 1", "", *names, "```", ""]
    lines += ["## The pictures of the README and of the guides", ""]
    for name, text in (("layers", LAYERS), ("derivatives", DERIVATIVES)):
        lines += [f"![{text}](../pictures/{name}.png)", "", f"{text}.", ""]
    lines += [
        "<details><summary>The lines that make them</summary>",
        "",
        "```{literalinclude} ../pictures/draw.py",
    ]
    return "\n".join([*lines, ":language: python", "```", "", "</details>", ""])
