"""The configuration of the site: ``make docs`` builds it, with warnings as errors."""

import ast
import functools
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Annotated, get_origin

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "builders")]

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

import formulas
import jaxblocks
import make_ad_cost
import make_gallery
import make_reference
from jaxblocks import checks
from jaxblocks.checks.help_signatures import type_in_words

EXECUTE = (
    os.environ.get("DOCS_EXECUTE", "on") == "on"
)  # off: neither notebooks nor figures, for work on the text

project = "jaxblocks"
author = "The jaxblocks developers"
project_copyright = "The jaxblocks developers"
version = release = jaxblocks.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
exclude_patterns = [
    "_build",
    "ad_cost/**",
    "notebooks/students/**",
    "**.ipynb_checkpoints",
    "pictures/*.py",
    "*.py",
]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}
suppress_warnings = ["mystnb.unknown_mime_type", "config.cache"]

default_role = "here"
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

myst_enable_extensions = ["colon_fence", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
myst_update_mathjax = False
nb_execution_mode = "cache" if EXECUTE else "off"
nb_execution_cache_path = str(ROOT / ".cache" / "notebooks")
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_code_prompt_show = "Show the solution"  # no other cells are collapsed
nb_code_prompt_hide = "Hide the solution"
nb_ipywidgets_js = {}  # by default these are fetched from elsewhere

html_theme = "furo"
html_title = "jaxblocks"
html_static_path = ["_static"]
html_extra_path = ["ad_cost"]  # a page of its own, copied as it is
html_css_files = ["style.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_show_search_summary = (
    False  # browsers do not read other files for pages from file://
)
html_math_renderer = "mathml"
html_copy_source = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

log = logging.getLogger(__name__)

# Names of JAX in docstrings, with the folder of their page. No inventory is fetched.
JAX = "https://docs.jax.dev/en/latest/_autosummary/"
EXTERNAL = {
    name: f"{JAX}{name}.html#{name}"
    for name in "jax.grad jax.jvp jax.vjp jax.jit jax.vmap jax.linearize jax.jacfwd jax.jacrev jax.hessian".split()
}


# ---- names in single backticks ---------------------------------------------------------------


@functools.cache
def short_names() -> dict[str, list[str]]:
    """The public paths of each name and of each ending of a path."""
    found: dict[str, list[str]] = {}
    for path in make_reference.targets():
        words = path.split(".")
        for i in range(len(words)):
            found.setdefault(".".join(words[i:]), []).append(path)
    for path in (
        make_reference.targets()
    ):  # names of the files of a subpackage, such as jaxblocks.core.selection.select
        value = functools.reduce(getattr, path.split(".")[1:], jaxblocks)
        home = getattr(value, "__module__", None)
        if home and home.startswith("jaxblocks"):
            words = [*home.split("."), path.split(".")[-1]]
            for i in range(len(words) - 1):
                known = found.setdefault(".".join(words[i:]), [])
                if path not in known:
                    known.append(path)
    for module in make_reference.modules():  # a name on the page of another module
        for name in getattr(
            functools.reduce(getattr, module.split(".")[1:], jaxblocks), "__all__", ()
        ):
            if name in found:
                found.setdefault(f"{module}.{name}", [found[name][0]])
    return found


@functools.cache
def defined_names() -> frozenset[str]:
    """All names that the package defines, public or not, with the names of its files."""
    found = set()
    for path in (ROOT / "jaxblocks").rglob("*.py"):
        found |= set(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(found)


def resolve(text: str, module: str) -> tuple[str, str] | None:
    """The kind and the path of the public object that a text names; the nearest module where there are several."""
    name = re.sub(r"\(.*\)$", "", text, flags=re.DOTALL).removeprefix("~")
    name = re.sub(r"^jb\.", "jaxblocks.", name)
    if name in make_reference.modules():
        return "mod", name
    candidates = short_names().get(name, [])
    if not candidates and "." not in name:
        return None
    if not candidates:  # a method, such as Summary.n_hidden
        owner, _, method = name.rpartition(".")
        candidates = [f"{path}.{method}" for path in short_names().get(owner, ())]
        return (
            ("obj", candidates[0]) if candidates and _is_there(candidates[0]) else None
        )
    return "obj", max(
        candidates, key=lambda path: (_common(path, module), -path.count("."))
    )


def _common(path: str, module: str) -> int:
    """The number of names at the beginning that two paths share."""
    pairs = list(zip(path.split("."), module.split("."), strict=False))
    return next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))


def _is_there(path: str) -> bool:
    value = jaxblocks
    for word in path.split(".")[1:]:
        value = getattr(value, word, None)
    return value is not None


def reference(
    text: str, found: tuple[str, str], document: str
) -> addnodes.pending_xref:
    """A link to a public object, resolved by the domain of Python."""
    kind, target = found
    shown = nodes.literal(text, text.removeprefix("~"), classes=["xref", "py"])
    return addnodes.pending_xref(
        text,
        shown,
        refdomain="py",
        reftype=kind,
        reftarget=target,
        refdoc=document,
        refexplicit=True,
        refwarn=True,
    )


class Here(SphinxRole):
    """The role of single backticks in docstrings: a public name becomes a link, any other name stays as it is."""

    def run(self):
        """A link, a literal, or a warning for a name that does not exist."""
        if self.text in EXTERNAL:
            shown = nodes.literal(self.text, self.text)
            return [nodes.reference("", "", shown, refuri=EXTERNAL[self.text])], []
        found = resolve(self.text, self.env.ref_context.get("py:module") or "jaxblocks")
        if found is not None:
            return [reference(self.text, found, self.env.docname)], []
        last = self.text.split("/")[-1].split(".")[-1]
        is_known = (
            last in defined_names()
            or self.text.startswith(("jax.", "lax."))
            or (ROOT / self.text).exists()
        )
        if not is_known and last not in sys.stdlib_module_names:
            log.warning(
                "`%s` names nothing in the package",
                self.text,
                location=self.get_location(),
            )
        return [nodes.literal(self.text, self.text)], []


class LinkCode(SphinxTransform):
    """Code such as ``jb.Dense`` in the Markdown pages becomes a link; a name that does not exist is a warning."""

    default_priority = 400

    def apply(self, **_):
        """Replace each literal that is one name, a call of it included."""
        if not str(self.env.doc2path(self.env.docname)).endswith((".md", ".ipynb")):
            return
        for node in list(self.document.findall(nodes.literal)):
            text = node.astext()
            is_inside = isinstance(
                node.parent, nodes.reference | nodes.title | addnodes.pending_xref
            )
            if is_inside or not re.fullmatch(
                r"(jb|jaxblocks)\.[\w.]*\w(\(.*\))?", text, flags=re.DOTALL
            ):
                continue
            found = resolve(text, "jaxblocks")
            if found is None:
                log.warning("%s is not a public name", text, location=node)
            else:
                node.replace_self(reference(text, found, self.env.docname))


def in_words() -> dict[str, str]:
    """The names of annotated numbers, with what they say: ``PositiveInt`` is ``int >= 1``."""
    ranges = {name: getattr(checks, name) for name in checks.__all__}
    return {
        name: type_in_words(value)
        for name, value in ranges.items()
        if get_origin(value) is Annotated
    }


class TypesInWords(SphinxTransform):
    """Signatures show ``int >= 1`` in place of the name of the annotation, and names without their module."""

    default_priority = 400

    def apply(self, **_):
        """Replace the texts of signatures."""
        words = in_words()
        for signature in self.document.findall(addnodes.desc_signature):
            for node in list(signature.findall(nodes.Text)):
                if node.astext() in words:
                    node.parent.replace(node, nodes.Text(words[node.astext()]))


class FormulasInTables(SphinxTransform):
    """Formulas between dollars in the tables of docstrings, whose columns would move by a role."""

    default_priority = 400

    def apply(self, **_):
        """Replace texts by texts and formulas."""
        if not self.env.docname.startswith("reference/"):
            return
        for entry in self.document.findall(nodes.entry):
            for node in list(entry.findall(nodes.Text)):
                parts = re.split(r"\$([^$]+)\$", node.astext())
                if len(parts) > 1:
                    made = [
                        nodes.math if i % 2 else nodes.Text for i in range(len(parts))
                    ]
                    new = [
                        kind(part, part) if kind is nodes.math else kind(part)
                        for kind, part in zip(made, parts, strict=True)
                        if part
                    ]
                    node.parent.replace(node, new)


class BreakNames(SphinxPostTransform):
    """Names in tables may break after a dot or an underscore, and nowhere else: a space of width zero says where."""

    default_priority = 995

    def run(self, **_):
        """Insert the places in code in cells of tables."""
        for entry in self.document.findall(nodes.entry):
            for literal in entry.findall(nodes.literal):
                for node in list(literal.findall(nodes.Text)):
                    text = re.sub(r"(?<=\w)([._/(])(?=\w)", "\\1\u200b", node.astext())
                    node.parent.replace(node, nodes.Text(text))


# ---- docstrings ------------------------------------------------------------------------------


def write_signature(app, what, name, value, options, found, result):
    """The parameters as the source writes them, with the names of the types: ``features: PositiveInt``."""
    if what not in ("function", "method", "class"):
        return None
    written = make_reference.signature(value)
    if written is None:
        return (
            ("()", None)
            if what == "class" and found and "Alias" in str(found)
            else None
        )
    arguments, _, returned = written.rpartition(") -> ")
    return (f"{arguments})", returned) if arguments else (written, None)


def skip_member(app, what, name, value, skip, options):
    """Leave out the fields of named tuples, which the docstring of the class describes, and what ``tuple`` has."""
    doc = inspect.getdoc(value) or ""
    return (
        True
        if doc.startswith("Alias for field") or type(value).__name__ == "_tuplegetter"
        else None
    )


def mend_docstring(app, what, name, value, options, lines):
    """Names of JAX that the library re-exports are described in the dialect of JAX: keep the first paragraph."""
    home = (
        getattr(inspect.unwrap(value) if callable(value) else value, "__module__", None)
        or ""
    )
    if home.startswith("jax.") or home.startswith("jax_"):
        text = "\n".join(lines).strip().split("\n\n")[0].splitlines()
        lines[:] = [
            re.sub(r":\w+:`~?([^`<]*)(?: <[^`]*>)?`", r"``\1``", line) for line in text
        ]
        public = inspect.unwrap(value).__name__
        lines += ["", f"The function of JAX, ``{home}.{public}``.", ""]
    lines[:] = [*make_reference.mend("\n".join(lines)).splitlines(), ""]


# ---- mathematics: MathML, which browsers draw without scripts and fonts -------------------------------


def to_mathml(tex: str, display: bool) -> str:
    """The MathML of a formula in TeX, or in Unicode without a command of TeX."""
    if "\\" not in tex:
        tex = formulas.lines(tex) if display else formulas.tex(tex)
    tex = re.sub(
        r"\\[bB]igg?[lrm]?\s*(?=\\[lr](floor|ceil|Vert|vert)\b)", "", tex
    )  # latex2mathml has no such size
    tex = (
        tex.replace("{aligned}", "{align*}")
        .replace(r"\_", "_" if r"\text" in tex else r"\_")
        .strip()
    )
    if display and "&" in tex and r"\begin" not in tex:
        tex = rf"\begin{{align*}}{tex}\end{{align*}}"
    result = convert(tex, display="block" if display else "inline")
    if re.search(r">\s*(\\|&<)", result):
        log.warning("a formula has a command without MathML: %s", tex)
    return result


def inline_math(writer, node):
    """Write a formula in a line."""
    writer.body.append(to_mathml(node.astext(), False))
    raise nodes.SkipNode


def display_math(writer, node):
    """Write a formula of its own line, which scrolls where it is wider than the page."""
    writer.body.append(
        f'<div class="math" tabindex="0">{to_mathml(node.astext(), True)}</div>'
    )
    raise nodes.SkipNode


# ---- set-up ----------------------------------------------------------------------------------


def write_sources(app):
    """Write the pages that are made from the code."""
    make_reference.write(HERE / "reference")
    make_gallery.write(HERE, draw=EXECUTE)
    make_ad_cost.write(HERE / "ad_cost", measure=EXECUTE)


WRITTEN = {
    "notebooks/": "notebooks/index.md",
    "jaxblocks/__init__.py": "reference/index.rst",
    "examples/": "gallery/index.md",
}


def lead_to_written_pages(app, name, source):
    """Links lead to sources where no site is built, as on GitHub, and here to the pages that are written from them."""
    if not str(app.env.doc2path(name)).endswith(".md"):
        return
    up, text = "../" * name.count("/"), source[0]
    for target, page in WRITTEN.items():
        text = text.replace(f"](../{up}{target})", f"]({up}{page})")
    text = re.sub(rf"\]\(\.\./{up}(notebooks/\w+\.ipynb)\)", rf"]({up}\1)", text)
    source[0] = re.sub(  # a page of its own, which is no document of Sphinx
        rf"\[([^\]]*)\]\(\.\./{up}examples/ad_functions\.py\)",
        rf'<a href="{up}ad_cost.html">\1</a>',
        text,
    )


def setup(app):
    """Register the roles, transforms and handlers above."""
    write_sources(app)
    app.add_role("here", Here())
    app.add_transform(LinkCode)
    app.add_transform(TypesInWords)
    app.add_transform(FormulasInTables)
    app.add_post_transform(BreakNames)
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("source-read", lead_to_written_pages)
    app.connect("autodoc-process-signature", write_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect(
        "autodoc-process-docstring", mend_docstring, priority=400
    )  # before napoleon
