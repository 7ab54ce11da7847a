"""The architecture: import levels, the cost of an import, and the rules for names and signatures of CONTRIBUTING."""

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin, get_overloads

import pytest
from cases import for_each
from jaxtyping import AbstractArray
from public import PUBLIC_MODULES
from repository import ROOT

import jaxblocks
from jaxblocks.core.lifting import declared_by

SOURCES = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "jaxblocks").rglob("*.py"))}
PUBLIC = [name for name in jaxblocks.__all__ if callable(getattr(jaxblocks, name))]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_imports_go_downward():
    """import-linter: each module imports from lower levels only."""
    done = run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_module_needs_a_place_in_the_import_levels():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert all(one["exhaustive"] for one in contracts if one["type"] == "layers")


FOLDERS = {str(path.parent.relative_to(ROOT)): path.parent for path in SOURCES.values()}


@for_each(FOLDERS)
def test_a_folder_shows_its_subject(folder):
    """Few entries, and ``__init__`` states the subject and names all files; some folders are lists of families."""
    entries = [path for path in folder.iterdir() if path.suffix in (".py", ".typed", "") and path.name != "__pycache__"]
    if folder.name not in ("layers", "models"):
        assert len(entries) <= (25 if folder.name == "jaxblocks" else 15), sorted(path.name for path in entries)
    words = ast.get_docstring(parsed(folder / "__init__.py"))
    assert words, "no docstring in __init__"
    files = {path.stem for path in entries} - {"__init__", "__main__", "py"}
    said = re.search(r"[Rr]ead `+(\w+)`+ first", words)
    assert folder.name == "jaxblocks" or (said and said[1] in files), "__init__ says which file to read first"
    if folder.name not in ("jaxblocks", "layers", "models", "families"):
        assert not files - set(re.findall(r"\w+", words)), "__init__ says what each file has"


def test_import_loads_few_modules_and_prints_nothing():
    """`import jaxblocks` loads only jax, numpy and jaxtyping, prints nothing, and changes no configuration."""
    code = """
import sys, os, warnings
warnings.simplefilter("error")
import jax
before = set(sys.modules), dict(jax.config.values), dict(os.environ)
import jaxblocks
assert {name: jax.config.values[name] for name in before[1]} == before[1]
assert dict(os.environ) == before[2]
new = {name.partition(".")[0] for name in set(sys.modules) - before[0]}
allowed = {"jax", "jaxlib", "numpy", "ml_dtypes", "jaxblocks", "jaxtyping", "wadler_lindig"}
print(sorted(new - set(sys.stdlib_module_names) - allowed))
import jax._src.xla_bridge as bridge
assert not bridge._backends, "a backend was started"
later = {f"jaxblocks.checks.{name}" for name in ("signatures", "annotations", "array_annotations")}
later |= {"jaxblocks.core.expressions"}
assert not later & set(sys.modules), "a checked function was called, or a call printed"
"""
    done = run(sys.executable, "-c", code)
    assert (done.stdout, done.stderr) == ("[]\n", ""), done.stdout + done.stderr


def test_reading_a_layer_takes_few_files():
    """The modules that are imported at the top of the file of `Dense`, and of those files in turn."""
    found, todo = {}, [ROOT / "jaxblocks/layers/dense.py"]
    while todo:
        path = todo.pop()
        found[path] = path.read_text()
        for node in ast.parse(found[path]).body:
            if isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
                files = {ROOT / f"{name.replace('.', '/')}.py" for name in names}
                todo += [file for file in files if file.exists() and file not in found]
    assert len(found) <= 7
    assert sum(text.count("\n") for text in found.values()) <= 900


@for_each(SOURCES)
def test_each_error_has_a_repair(path):
    """Each call of `require` or `check_values` states what to do, and no text that becomes a repair is empty."""
    for node in ast.walk(parsed(path)):
        texts = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
            assert not any(isinstance(one, ast.Starred) for one in node.args), ast.unparse(node)
            texts = node.args[3:4] + [one.value for one in node.keywords if one.arg == "repair"]
            assert len(node.args) + len(texts) == 4 + len(node.args[3:4]), f"no repair: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "check_values":
            is_text = isinstance(node.args[1], ast.Constant | ast.JoinedStr)
            assert not is_text or "; " in ast.unparse(node.args[1]), f"no repair: {ast.unparse(node)}"
        elif isinstance(node, ast.Assign) and "repair" in (getattr(target, "id", "") for target in node.targets):
            texts = [node.value]
        for text in texts:
            ends = [text.body, text.orelse] if isinstance(text, ast.IfExp) else [text]
            assert not any(isinstance(end, ast.Constant) and not end.value for end in ends), ast.unparse(node)


def test_optax_is_imported_at_the_first_use_of_training():
    code = "import sys, jaxblocks; assert 'optax' not in sys.modules; jaxblocks.fit; assert 'optax' in sys.modules"
    assert run(sys.executable, "-c", code).returncode == 0


@for_each(SOURCES)
def test_nothing_private_of_jax_is_imported(path):
    """No jax._src, no jax.interpreters, and from jax.core only names that are public in every supported version."""
    allowed = {"Tracer", "ShapedArray"}
    for node in ast.walk(parsed(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:
            assert not name.startswith(("jax._src", "jax.interpreters", "jaxlib.xla", "jax.lib")), name
            assert name != "jax.core" or isinstance(node, ast.Attribute), "import the names from jax.core instead"
            if name.startswith("jax.core."):
                assert name.split(".")[2] in allowed, name


@for_each(SOURCES)
def test_every_module_has_a_docstring_and_all(path):
    tree = parsed(path)
    assert ast.get_docstring(tree), "no docstring"
    if path.name != "__init__.py":
        assert any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in tree.body)


def _offered():
    for module in PUBLIC_MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and get_origin(value) is None:  # a type alias, such as a union, has an origin
                yield f"{module.__name__}.{name}", value


@for_each(dict(_offered()))
def test_every_public_name_is_documented_with_an_example(value):
    """The first line states what is computed, and there is an example (the doctests run it).

    Instead of an example, a record may name the function that returns it, as in "What `descend` returns".
    """
    words = inspect.getdoc(value)
    assert words, "no docstring"
    assert words.splitlines()[0].rstrip().endswith((".", ":")), "the first line must be a sentence"
    home = vars(inspect.getmodule(value))
    returned_by = [home[name] for name in re.findall(r"`(\w+)`", words) if inspect.isfunction(home.get(name))]
    documented = [value, *returned_by] if inspect.isclass(value) else [value]
    assert any(">>> " in inspect.getdoc(item) for item in documented), "no example"


def _functions_on_arrays():
    for name in PUBLIC:
        value = getattr(jaxblocks, name)
        module = inspect.getmodule(inspect.unwrap(value)).__name__
        if name[0].islower() and module.startswith(
            (
                "jaxblocks.activations",
                "jaxblocks.losses",
                "jaxblocks.probabilities",
                "jaxblocks.tensors",
                "jaxblocks.metrics",
                "jaxblocks.layers",
            )
        ):
            yield name, value


@for_each(dict(_functions_on_arrays()))
def test_functions_on_arrays_state_their_shapes(function):
    """The result and all arguments without default are annotated, and annotations of arrays state the shape."""
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    annotations = []
    for p in signature.parameters.values():
        if p.default is p.empty and p.name != "key":
            assert p.annotation is not p.empty, p.name
        annotations.append(p.annotation)
    written = " ".join(map(str, [*annotations, signature.return_annotation]))
    arrays = [a for a in annotations if isinstance(a, type) and issubclass(a, AbstractArray)]
    assert arrays or any(word in written for word in ("jaxtyping", "Array", "PyTree", "Callable", "Graph")), written


# ---- rules for names and signatures ------------------------------------------------------------


def _functions():
    """Each public function once, with its public name."""
    found = {}
    for module in PUBLIC_MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not inspect.isclass(value) and (value.__module__ or "").startswith("jaxblocks"):
                found.setdefault(value, f"{module.__name__}.{name}")
    return {name: value for value, name in found.items()}


FUNCTIONS = _functions()


def _parameters(function):
    return inspect.signature(function).parameters.values()


@for_each(FUNCTIONS)
def test_every_parameter_is_annotated(function):
    missing = [p.name for p in _parameters(function) if p.annotation is p.empty]
    assert not missing, missing


@pytest.mark.parametrize("name", "checks core plotting statistics checks.values".split())
def test_the_functions_for_writers_of_layers_and_those_of_plotting_are_annotated(name):
    """These modules are read by people who write layers; their results are annotated too."""
    module = importlib.import_module(f"jaxblocks.{name}")
    for function in filter(inspect.isfunction, (getattr(module, one) for one in module.__all__)):
        missing = [p.name for p in _parameters(function) if p.annotation is p.empty]
        returned = inspect.signature(function).return_annotation
        assert not missing and returned is not inspect.Signature.empty, (function.__name__, missing)


# Options that are positional by convention: axis as in jax.nn.softmax, and a slope or scale after its array. Options of
# activations are positional as in jax.nn, since keyword-only parameters of a function are side inputs of the layer.
# Attention calls its score_bias, such as alibi, with the offset as the last argument.
BY_POSITION = {"axis", "axes", "bias", "scale", "kernel_init", "offset"}
BY_POSITION |= {"alpha", "approximate", "at_zero", "beta", "negative_slope", "pieces"}


@for_each(FUNCTIONS)
def test_options_are_keyword_only(function):
    """Parameters that are numbers, flags, names or tuples of them by default, or may be, come after the star."""
    if inspect.unwrap(function).__module__.startswith("jax."):  # an initializer with JAX's signature
        return
    wrong = [
        p.name
        for p in _parameters(function)
        if p.kind is p.POSITIONAL_OR_KEYWORD and _is_option(p) and p.name not in BY_POSITION
    ]
    assert not wrong, wrong


def _is_option(p):
    """Whether the default is a number, a flag, a name or a tuple, or None where the annotation offers one of them."""
    if p.default is None:
        return bool(_types(p.annotation) & {bool, int, float, str, tuple})
    return type(p.default) in (bool, int, float, str, tuple) and p.default != ()  # () are the params of no params


def _types(annotation):
    """The classes in a union, those of the values of a Literal, and that of an Annotated."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return set(map(type, inside))
    if origin is Annotated:
        return _types(inside[0])
    if origin in (Union, types.UnionType):
        return set().union(*map(_types, inside))
    return {origin or annotation}


@for_each({name: one for name, one in FUNCTIONS.items() if get_overloads(inspect.unwrap(one))})
def test_each_overload_has_the_parameters_of_the_function(function):
    for overload in get_overloads(inspect.unwrap(function)):
        assert _names_with_options(overload) == _names_with_options(function)


def _names_with_options(function):
    """The names of the parameters, with those of the TypedDict of ``**options: Unpack[...]``."""
    names = set()
    for p in inspect.signature(inspect.unwrap(function)).parameters.values():
        inside = get_args(p.annotation) if p.kind is p.VAR_KEYWORD else ()
        names |= set(inside[0].__annotations__) if inside else {p.name}
    return names


@for_each(FUNCTIONS)
def test_a_key_is_first_or_keyword_only(function):
    for position, p in enumerate(_parameters(function)):
        if p.name == "key" and p.kind is not p.KEYWORD_ONLY:
            assert position == 0 and p.default is p.empty, inspect.signature(function)


FORMER_NAMES = (
    "drop empty_rows globals label labels_and_weights mean_pool out_init predicted prediction predicts "
    "recurrent_init scores streaming vocabulary window whole"
).split()


@for_each(FUNCTIONS)
def test_each_concept_has_one_name(function):
    assert not {p.name for p in _parameters(function)} & set(FORMER_NAMES), inspect.signature(function)


NUMBERS_OF_SAMPLES = {"directions", "n_samples", "num_samples", "probes", "products", "vectors"}


def test_a_number_of_random_vectors_is_samples():
    for function in FUNCTIONS.values():
        numbers = {p.name for p in _parameters(function) if int in (kinds := _types(p.annotation)) and len(kinds) <= 2}
        assert not numbers & NUMBERS_OF_SAMPLES, inspect.signature(function)


@pytest.mark.parametrize("module", [jaxblocks.losses, jaxblocks.metrics], ids=["losses", "metrics"])
def test_losses_and_metrics_take_predictions_and_targets(module):
    for name in module.__all__:
        first, *rest = _parameters(getattr(module, name))
        if first.name in ("predictions", "logits", "log_probs") and rest and rest[0].kind is first.kind:
            assert rest[0].name == "targets", name
        assert first.name not in ("labels", "targets", "y", "mean"), name


def test_a_function_and_its_layer_have_the_same_options():
    """`layer_norm` and `LayerNorm`, `glu` and `GLU`, ...: shared options have one default, and all are keyword-only."""
    by_name = {name.rpartition(".")[2]: function for name, function in FUNCTIONS.items()}
    compared, by_position = 0, set()
    for name, builder in by_name.items():
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        if name[0].isupper() and snake in by_name:
            layer, function = (inspect.signature(one).parameters for one in (builder, by_name[snake]))
            for shared in set(layer) & set(function):
                one, other = layer[shared], function[shared]
                if one.default is not one.empty and other.default is not other.empty:
                    assert one.default == other.default, (name, shared, one, other)
                    compared += 1
                assert one.kind is one.KEYWORD_ONLY or one.kind is other.kind, (name, shared, one.kind)
                if other.kind is not one.kind:
                    by_position.add((snake, shared))
    assert compared > 20
    assert by_position == {("glu", "activation"), ("maxout", "pieces")}  # activations, see BY_POSITION


def test_the_top_level_is_visible_to_type_checkers_and_to_dir():
    """Lazily loaded names are also imported for type checkers, and `dir` lists them and all submodules."""
    tree = ast.parse((ROOT / "jaxblocks" / "__init__.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(jaxblocks.__all__) <= imported
    assert {"ad", "layers", "models", "training", "theory", "__version__"} <= set(dir(jaxblocks))
    assert set(jaxblocks.__all__) <= set(dir(jaxblocks))
    assert (ROOT / "jaxblocks" / "py.typed").exists()


@pytest.mark.parametrize("name", ["attention", "conv", "dropout", "linear_attention"])
def test_a_function_comes_before_the_file_of_its_name(name):
    """As an attribute of `jaxblocks.layers` the name is the function, however often the file is imported."""
    file = importlib.import_module(f"jaxblocks.layers.{name}")
    assert getattr(jaxblocks.layers, name) is getattr(file, name) is getattr(jaxblocks, name)


def test_side_inputs_are_never_positional():
    """`key` and `train` are keyword-only in the apply functions of combinators."""
    net = jaxblocks.Serial(lambda x, *, key, train: x)
    assert set(declared_by(net.apply)) == {"key", "train"}


def test_no_environment_variable_or_machine_path_is_committed():
    listed = run("git", "ls-files")
    files = listed.stdout.split() if listed.returncode == 0 else [*SOURCES]
    for name in files:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ""} and path.is_file() and path.name != "LICENSE":
            text = path.read_text(errors="ignore")
            for word in ("/root" + "/", "/home" + "/", "/work" + "/", "index" + "-url"):
                assert word not in text, f"{name} contains {word}"


def test_the_changelog_has_the_version():
    version = jaxblocks.__version__
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0] in ("## Unreleased", f"## {version}")


def test_one_module_writes_to_the_terminal():
    """A write to a closed pipe raises; `jaxblocks.checks.terminal` gives it up. A command prints its result itself."""
    for path in (ROOT / "jaxblocks").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        prints = {"print"} if path.name != "__main__.py" else set()
        found = called & (prints | {"warnings.warn", "sys.stderr.write", "sys.stdout.write", "sys.stderr.isatty"})
        assert not found or path.parts[-2:] == ("checks", "terminal.py"), (path, found)
