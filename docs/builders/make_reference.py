"""Write the pages of the reference: every public name of the library, on exactly one page.

A name that the top level exports stands under the heading of the map in ``jaxblocks/__init__.py``; any other name
stands on the page of the module that exports it. ``pages()`` needs jaxblocks alone; ``docs/conf.py`` calls ``write()``
before Sphinx reads the sources.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
import tokenize
import types
from pathlib import Path
from typing import Any, NamedTuple

import jaxblocks

sys.path.insert(0, str(Path(__file__).parent))
import formulas

SPLIT_FROM = 60  # a module with more names has one page for each of its files
FOR_OWN_LAYERS = {"checks", "core"}


class Entry(NamedTuple):
    """A public name: where it is imported from, its value, its kind and the first sentence of its docstring."""

    module: str
    name: str
    value: Any
    kind: str
    summary: str

    @property
    def path(self) -> str:
        """The name with its module."""
        return f"{self.module}.{self.name}"


class Page(NamedTuple):
    """A page of the reference: its file, its title, its part of the index, its module and its entries by section."""

    file: str
    title: str
    part: str
    module: str
    sections: dict[str, list[Entry]]


def modules() -> list[str]:
    """The modules whose names are public, the top level first."""
    names = {*jaxblocks._SUBMODULES, *filter(_is_module, jaxblocks.__all__)}
    return ["jaxblocks", *(f"jaxblocks.{name}" for name in sorted(names))]


def _is_module(name: str) -> bool:
    return isinstance(getattr(jaxblocks, name), types.ModuleType)


@functools.cache
def pages() -> tuple[Page, ...]:
    """All pages in the order of the index."""
    found, seen = [], set()
    for heading, names in top_level().items():
        entries = [_entry("jaxblocks", name) for name in names]
        seen |= {_identity(entry) for entry in entries}
        found.append(
            Page(
                _file_of(heading), heading, "The top level", "jaxblocks", {"": entries}
            )
        )
    for module in modules()[1:]:
        entries = [
            _entry(module, name) for name in importlib.import_module(module).__all__
        ]
        entries = [entry for entry in entries if _identity(entry) not in seen]
        seen |= {_identity(entry) for entry in entries}
        short = module.removeprefix("jaxblocks.")
        part = "For layers of your own" if short in FOR_OWN_LAYERS else "Modules"
        sections = _by_file(module, entries)
        if len(entries) > SPLIT_FROM:
            found.append(Page(short, module, part, module, {}))
            found += [
                Page(
                    f"{short}.{file}",
                    f"{module}: {_title(file)}",
                    part,
                    module,
                    {"": sections[file]},
                )
                for file in sections
            ]
        else:
            found.append(Page(short, module, part, module, sections))
    return tuple(found)


@functools.cache
def top_level() -> dict[str, list[str]]:
    """The names of the top level under the headings of its map."""
    path = Path(jaxblocks.__file__)
    with path.open("rb") as file:
        comments = {
            token.start[0]: token.string.removeprefix("#").strip()
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT
            and not token.line[: token.start[1]].strip()
        }
    headings: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "jaxblocks"
        ):
            line = max((line for line in comments if line < node.lineno), default=0)
            names = [
                alias.name for alias in node.names if alias.name in jaxblocks.__all__
            ]
            if names and line:
                headings.setdefault(comments[line].rstrip("."), []).extend(names)
    headings = {
        re.sub(r"; imports optax$", "", heading): sorted(names)
        for heading, names in headings.items()
    }
    return headings


def targets() -> dict[str, str]:
    """The page of each public name, by its path."""
    return {
        entry.path: page.file
        for page in pages()
        for entries in page.sections.values()
        for entry in entries
    }


def write(folder: Path) -> None:
    """Write the pages, and remove those of names that no longer exist; unchanged files keep their time."""
    folder.mkdir(exist_ok=True)
    texts = {f"{page.file}.rst": _text(page) for page in pages()} | {
        "index.rst": _index()
    }
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.glob("*.rst"):
        if path.name not in texts:
            path.unlink()


def mend(text: str) -> str:
    """Text of a docstring as reStructuredText: ``|x|`` and ``*batch`` in running text are what they show."""
    paragraphs, is_literal = [], False
    for paragraph in re.split(r"\n(?:[ ]*\n)+", text):
        is_indented = paragraph.startswith(" ")
        is_literal = is_indented and is_literal
        if not (is_literal or paragraph.lstrip().startswith((">>>", ".. "))):
            # Columns of tables keep their width; `docs/conf.py` finds the formulas in them.
            is_table = re.search(r"^ *=+ +=+", paragraph, flags=re.MULTILINE)
            paragraph = paragraph if is_table else formulas.in_roles(paragraph)
            parts = re.split(r"(``.+?``|`[^`]+`)", paragraph, flags=re.DOTALL)
            parts[::2] = [_mend_words(part) for part in parts[::2]]
            for i in range(1, len(parts), 2):
                if parts[i].startswith("``") and re.match(r"\w", parts[i + 1]):
                    parts[i] += "\\ "
            paragraph = _mend_side_inputs("".join(parts))
        is_literal = is_literal or paragraph.endswith("::")
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _mend_words(text: str) -> str:
    text = re.sub(r"(?<!\\)\|", r"\|", text)
    parts = re.split(r"((?<![\w*])\*\*?\w[^*]*[\w.]\*\*?(?![\w*]))", text)
    parts[::2] = [re.sub(r"(?<!\\)\*(?=\w)", r"\*", part) for part in parts[::2]]
    return "".join(parts)


def _mend_side_inputs(paragraph: str) -> str:
    """The side inputs of a layer as a list."""
    found = re.match(
        r"(\s*)(Side inputs of .*?:)\n(?=\1    \w+(?:, \w+)*: )",
        paragraph,
        flags=re.DOTALL,
    )
    if not found:
        return paragraph
    indent, rest = found.group(1), paragraph[found.end() :]
    rest = re.sub(
        rf"^{indent}    (\w+(?:, \w+)*): ",
        rf"{indent}* *\1*: ",
        rest,
        flags=re.MULTILINE,
    )
    rest = re.sub(rf"^{indent}        ", f"{indent}  ", rest, flags=re.MULTILINE)
    return f"{found.group()}\n{rest}"


def signature(function) -> str | None:
    """The parameters and the result of a function as its source writes them, or ``None`` where there is no source."""
    function = inspect.unwrap(function)
    try:
        node = _definition(function)
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if isinstance(node, ast.ClassDef):
        return _fields(node)
    if not isinstance(node, ast.FunctionDef):
        return None
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"({ast.unparse(arguments)}){result}"


def _fields(node: ast.ClassDef) -> str | None:
    """The arguments of a class: those of ``__init__``, else its annotated fields."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__new__"):
            item.args.args.pop(0)
            return f"({ast.unparse(item.args)})"
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    return f"({', '.join(ast.unparse(field) for field in fields)})" if fields else None


def _definition(function) -> ast.AST:
    lines, _ = inspect.getsourcelines(function)
    return ast.parse(inspect.cleandoc("\n" + "".join(lines))).body[0]


def _entry(module: str, name: str) -> Entry:
    value = getattr(importlib.import_module(module), name)
    kind = (
        "module"
        if isinstance(value, types.ModuleType)
        else "class"
        if inspect.isclass(value)
        else "function"
        if inspect.isroutine(value) or hasattr(value, "__wrapped__")
        else "data"
    )
    doc = _doc_of_data(module, name) if kind == "data" else inspect.getdoc(value) or ""
    first = doc.split("\n\n")[0]
    found = re.match(r"(?:``.*?``|`[^`]*`|[^`])*?\.(?=\s|$)", first, flags=re.DOTALL)
    return Entry(
        module,
        name,
        value,
        kind,
        mend(" ".join((found.group() if found else first).rstrip(":").split())),
    )


def _identity(entry: Entry):
    return entry.name, id(entry.value)


def _by_file(module: str, entries: list[Entry]) -> dict[str, list[Entry]]:
    """Entries by the file of a subpackage that defines them; one section for a module that is a file."""
    package = importlib.import_module(module)
    sections: dict[str, list[Entry]] = {}
    for entry in entries:
        home = getattr(entry.value, "__module__", None) or module
        if entry.kind == "data":
            home = _home_of_data(module, entry.name)
        file = (
            home.removeprefix(f"{module}.").split(".")[0]
            if home.startswith(f"{module}.")
            else ""
        )
        sections.setdefault(file if hasattr(package, "__path__") else "", []).append(
            entry
        )
    return sections


@functools.cache
def _all_data() -> dict[str, list[tuple[str, str]]]:
    """The names that modules assign at the top: each module, with the string below the assignment."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(Path(jaxblocks.__file__).parent.rglob("*.py")):
        module = ".".join(
            path.relative_to(Path(jaxblocks.__file__).parents[1]).with_suffix("").parts
        )
        body = ast.parse(path.read_text()).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                text = (
                    getattr(getattr(after, "value", None), "value", "")
                    if isinstance(after, ast.Expr)
                    else ""
                )
                for target in (
                    node.targets if isinstance(node, ast.Assign) else [node.target]
                ):
                    place = (
                        module.removesuffix(".__init__"),
                        text if isinstance(text, str) else "",
                    )
                    found.setdefault(getattr(target, "id", ""), []).append(place)
    return found


def _home_of_data(module: str, name: str) -> str:
    homes = [home for home, _ in _all_data().get(name, ())]
    inside = [home for home in homes if home == module or home.startswith(f"{module}.")]
    return next(iter(inside or homes), module)


def _doc_of_data(module: str, name: str) -> str:
    home = _home_of_data(module, name)
    texts = [text for place, text in _all_data().get(name, ()) if place == home]
    return inspect.cleandoc(texts[0]) if texts and texts[0] else ""


def _file_of(heading: str) -> str:
    return "top_" + re.sub(r"\W+", "_", heading.split(":")[0].lower()).strip("_")


def _title(file: str) -> str:
    return file.replace("_", " ")


def _heading(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]


def _text(page: Page) -> str:
    """The source of a page, in reStructuredText."""
    lines = _heading(page.title, "=")
    is_split = page.title != page.module and page.part != "The top level"
    if page.part == "The top level" or is_split:
        lines += [f".. py:currentmodule:: {page.module}", ""]
    else:
        lines += [f".. automodule:: {page.module}", "   :no-members:", ""]
        exported = set(importlib.import_module(page.module).__all__)
        top = [name for names in top_level().values() for name in names]
        same = [name for name in top if name in exported and _same(page.module, name)]
        if same:
            lines += ["Also exported here, and described at the top level: "]
            lines += [
                ", ".join(f":py:obj:`~jaxblocks.{name}`" for name in same) + ".",
                "",
            ]
        if not page.sections:
            lines += [".. toctree::", "   :maxdepth: 1", ""]
            lines += [
                f"   {other.title.split(': ')[1]} <{other.file}>"
                for other in pages()
                if _is_part(other, page)
            ]
            lines += [""]
    for file, entries in page.sections.items():
        if file and len(page.sections) > 1:
            lines += _heading(_title(file)[0].upper() + _title(file)[1:], "-")
        for entry in entries:
            lines += _directive(entry)
    return "\n".join(lines)


def _is_part(other: Page, page: Page) -> bool:
    return (
        other.module == page.module
        and other.title != page.title
        and other.part == page.part
    )


def _same(module: str, name: str) -> bool:
    return getattr(importlib.import_module(module), name) is getattr(jaxblocks, name)


def _directive(entry: Entry) -> list[str]:
    if entry.kind == "module":
        return [f"The module :py:mod:`{entry.value.__name__}`. {entry.summary}", ""]
    if entry.kind == "data":
        text = mend(_doc_of_data(entry.module, entry.name)).splitlines() or [
            f"A value of type ``{type(entry.value).__name__}``."
        ]
        return [
            f".. py:data:: {entry.name}",
            f"   :module: {entry.module}",
            "",
            *[f"   {line}" for line in text],
            "",
        ]
    options = ["   :members:"] if entry.kind == "class" else []
    return [f".. auto{entry.kind}:: {entry.module}::{entry.name}", *options, ""]


def _index() -> str:
    """The index: every name with its summary, under the same headings."""
    lines = _heading("Reference", "=")
    lines += [
        ".. automodule:: jaxblocks",
        "   :no-members:",
        "",
        "Every public name stands on one page. Where several modules export the same name, it is described once.",
        "",
    ]
    for part in ("The top level", "Modules", "For layers of your own"):
        lines += _heading(part, "-")
        own = [page for page in pages() if page.part == part]
        lines += [
            ".. toctree::",
            "   :hidden:",
            "   :maxdepth: 1",
            f"   :caption: {part}",
            "",
        ]
        lines += [
            f"   {page.file}"
            for page in own
            if page.title == page.module or part == "The top level"
        ] + [""]
        for page in own:
            lines += _heading(page.title, "~")
            rows = [entry for entries in page.sections.values() for entry in entries]
            if not rows:
                lines += [
                    f"Its names are on the pages below :doc:`{page.file}`, or at the top level.",
                    "",
                ]
                continue
            lines += [
                f"On the page :doc:`{page.file}`.",
                "",
                ".. list-table::",
                "   :widths: 30 70",
                "   :class: names",
                "",
            ]
            for entry in rows:
                role = "mod" if entry.kind == "module" else "obj"
                target = entry.value.__name__ if entry.kind == "module" else entry.path
                lines += [
                    f"   * - :py:{role}:`~{target}`",
                    f"     - {entry.summary or '..'}",
                ]
            lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    for page in pages():
        print(page.part, page.file, sum(map(len, page.sections.values())), sep="\t")
