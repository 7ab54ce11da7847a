"""Tensors in files: safetensors, by the library of this name, and PyTorch's own format, by PyTorch.

Nothing in a file is executed, and an error names the file. Tensors are read one at a time, not mapped into memory, so
that memory holds only the tensor at hand, and a file that becomes shorter meanwhile is an error.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.system import as_path, library

__all__ = ["Tensor", "read_json", "read_tensors", "tensors_of", "write_tensors"]

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "I8": "int8", "I16": "int16",
    "I32": "int32", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_WEIGHTS_OF_DIFFUSERS = tuple(
    f"diffusion_pytorch_model.{ending}" for ending in ("safetensors", "safetensors.index.json", "bin")
)


class Tensor(NamedTuple):
    """A tensor that has not been read yet; `read_tensors` returns them.

    Attributes:
        shape: its shape.
        dtype: its dtype in the file.
        read: a function that returns its values, a NumPy array.
    """

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[], np.ndarray]


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file, or of a folder as Hugging Face writes it, by name; values are read later, one at a time.

    Args:
        path: a ``.safetensors`` file, a ``.bin`` or ``.pt`` file of PyTorch (read by ``torch.load`` with
            ``weights_only=True``, which executes nothing; PyTorch must be installed), or a folder with
            ``model.safetensors``, with shards and ``model.safetensors.index.json``, or with the same of PyTorch.

    Raises:
        FileNotFoundError: where there is no such file.
        ImportError: without the library safetensors, or PyTorch for its own files.
        ValueError: for a damaged file, and where values of 8-bit floating-point numbers are read, which NumPy does not
            have: read them by ``safetensors.torch.load_file(path)``, and convert them with their scales.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/model.safetensors"
    >>> write_tensors(file, {"weight": np.eye(2, dtype=np.float32)})
    >>> tensors = read_tensors(file)
    >>> tensors["weight"].shape, tensors["weight"].read()[0]
    ((2, 2), array([1., 0.], dtype=float32))
    """
    path = found = as_path(path)
    with _readable(path):
        if path.is_dir():
            names = [name for name in (*_WEIGHTS, *_WEIGHTS_OF_DIFFUSERS) if (path / name).exists()]
            found = path / (names or _WEIGHTS)[0]
        is_file = found.is_file()
    require(is_file, f"weights at {found}", "no such file", _repair_folder(path), error=FileNotFoundError)
    if found.name.endswith(".index.json"):
        return _read_shards(found)
    return _read_safetensors(found) if found.suffix == ".safetensors" else _read_torch(found)


def write_tensors(path: str | Path, tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays, tensors of PyTorch, or `Tensor` as a safetensors file.

    The file has another name until it is complete and on the disk, so that an interrupted write replaces nothing.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/model.safetensors"
    >>> write_tensors(file, {"bias": jnp.zeros(3)}, metadata={"format": "pt"})
    >>> read_tensors(file)["bias"].shape
    (3,)
    """
    path = as_path(path)
    require(not path.is_dir(), "the path of a file", f"the folder {path}", f"pass {path / _WEIGHTS[0]}")
    repair = "make it first, as with os.makedirs"
    require(path.parent.is_dir(), f"a folder {path.parent}", "no such folder", repair, error=FileNotFoundError)
    expected = "tensors or arrays by name"
    require(isinstance(tensors, Mapping), expected, tensors, "pass module.state_dict(), or a dict", error=TypeError)
    tensors = {str(name): x if isinstance(x, Tensor) else _tensor_of(name, x) for name, x in tensors.items()}
    require("__metadata__" not in tensors, "names of tensors", "'__metadata__'", "pass metadata= beside the tensors")
    good = isinstance(metadata, Mapping) and all(isinstance(each, str) for pair in metadata.items() for each in pair)
    repair = "pass a dict such as {'format': 'pt'}"
    require(metadata is None or good, "metadata of strings by name", repr(metadata), repair, error=TypeError)
    for name, tensor in tensors.items():
        dtype = np.dtype(tensor.dtype).name
        good, expected = dtype in _DTYPES.values(), f"a dtype that safetensors has for {name}"
        require(good, expected, dtype, f"use one of {', '.join(_DTYPES.values())}")
    safetensors = library("safetensors.numpy", f"writes {path}", "interop")
    # The library writes the memory of an array as it is, so that it has to be in row-major order.
    arrays = {name: np.asarray(tensor.read(), order="C") for name, tensor in tensors.items()}
    unfinished = path.with_name(f".{path.name}.unfinished")
    safetensors.save_file(arrays, unfinished, metadata=dict(metadata) if metadata else None)
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def tensors_of(source: Any) -> dict[str, Tensor]:
    """A state dict of PyTorch tensors or of arrays, or the path of a file or folder, as `Tensor` by name."""
    if isinstance(source, (str, Path)):
        return read_tensors(source)
    expected = "a state dict of tensors by name, or the path of a file or folder"
    require(isinstance(source, Mapping), expected, source, "pass module.state_dict()", error=TypeError)
    return {str(name): _tensor_of(str(name), value) for name, value in source.items()}


def read_json(path: Path, kind: type = dict) -> Any:
    """The object (or the list) in a JSON file; an error names the file."""
    with _readable(path):
        text = path.read_bytes() if path.is_file() else None
    require(text is not None, f"a file {path}", "no such file", _repair_folder(path.parent), error=FileNotFoundError)
    expected = "a list in JSON" if kind is list else "an object in JSON"
    try:
        found = json.loads((text or b"").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _require(path, False, expected, f"{type(error).__name__}: {error}"[:200])
        raise AssertionError from None
    _require(path, isinstance(found, kind), expected, _short(found))
    return found


# ---- safetensors -----------------------------------------------------------------------------


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    safetensors = library("safetensors", f"reads {path}", "interop")
    with _readable(path), open(path, "rb") as opened:
        first = opened.read(8)
    _require(path, first != b"version ", "tensors", "a pointer of Git LFS")
    try:
        file = safetensors.safe_open(path, framework="np", backend="pread")
    except safetensors.SafetensorError as error:
        _require(path, False, "tensors", f"{error}"[:200])
        raise AssertionError from None
    return {name: _entry(safetensors, path, file, name) for name in file.keys()}


def _entry(safetensors, path, file, name) -> Tensor:
    entry = file.get_slice(name)
    dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
    _require(path, dtype in _DTYPES, f"one of the dtypes {', '.join(_DTYPES)} for tensor {name!r}", dtype)

    def read():
        # NumPy has no such numbers, and the library has no way to read their bytes.
        repair = "read the file by safetensors.torch.load_file, and convert it with its scales"
        require(not dtype.startswith("F8"), f"a dtype of NumPy for tensor {name!r} of {path}", dtype, repair)
        try:
            return file.get_tensor(name)
        except (safetensors.SafetensorError, ValueError) as error:  # it became shorter, or NumPy has no such shape
            _require(path, False, f"the values of tensor {name!r}", f"{error}"[:200])
            raise AssertionError from None

    return Tensor(shape, np.dtype(getattr(jnp, _DTYPES[dtype])), read)


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of the shards that an index names."""
    places: Any = read_json(index).get("weight_map")
    named = isinstance(places, dict) and all(isinstance(file, str) for file in places.values())
    _require(index, named, "weight_map, the file of each tensor", _short(places))
    files: dict[str, dict[str, Tensor]] = {}
    for name, file in places.items():
        # The names come from the file: a path could lead outside of the folder.
        inside = file == as_path(file).name and file not in ("", ".", "..") and "\\" not in file and "\0" not in file
        inside = inside and len(file) < 256  # the longest name that file systems have
        _require(index, inside, f"a file in the same folder for tensor {name!r}", _short(file))
        if file not in files:
            shard = index.with_name(file)
            with _readable(index):
                is_file = shard.is_file()
            _require(index, is_file, f"the file {file} with tensor {name!r}", "no such file")
            files[file] = _read_safetensors(shard) if shard.suffix == ".safetensors" else _read_torch(shard)
        _require(index, name in files[file], f"tensor {name!r} in {file}", "no such tensor there")
    return {name: files[file][name] for name, file in places.items()}


# ---- other formats ---------------------------------------------------------------------------


def _read_torch(path: Path) -> dict[str, Tensor]:
    """A file of PyTorch, by its loader that executes nothing."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        repair = "install PyTorch, or convert the file to safetensors"
        require(False, f"PyTorch, which reads {path}", "no module torch", repair, error=ImportError)
        raise AssertionError from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, each for another kind of damage
        got = f"{type(error).__name__} of torch.load(weights_only=True)"
        repair = "write it by torch.save(module.state_dict(), path), or get it again"
        require(False, f"{path} to have tensors by name and nothing else", got, repair)
        raise AssertionError from None
    good = isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values())
    if not good:
        got = f"{_short([*state])} in a dict" if isinstance(state, dict) else describe(state)
        repair = "pass the state dict inside of it: torch.load(path)[name]"
        require(False, f"{path} to have a state dict, tensors by name", got, repair)
    return tensors_of(state)


def _tensor_of(name, value) -> Tensor:
    """A tensor of PyTorch, or an array."""
    if hasattr(value, "detach"):
        return _tensor_of_torch(name, value)
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    is_dict = hasattr(value, "items")  # such as the state dict inside of a checkpoint
    repair = f"pass the values of {name!r} alone" if is_dict else "leave it out, or pass np.asarray(x)"
    require(is_array, f"a tensor or an array for {name!r}", value, repair, error=TypeError)
    is_key, repair = jnp.issubdtype(value.dtype, jax.dtypes.prng_key), "pass jax.random.key_data(x)"
    require(not is_key, f"an array of numbers for {name!r}", value, repair, error=TypeError)
    return Tensor(tuple(value.shape), np.dtype(value.dtype), lambda: np.asarray(value))


def _tensor_of_torch(name, value) -> Tensor:
    """A tensor of PyTorch; those of a dtype that its NumPy does not have are converted by their bits."""
    import torch  # pyright: ignore[reportMissingImports]

    own = str(value.dtype).removeprefix("torch.")
    by_bits = own in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    is_known = value.layout == torch.strided and not value.is_meta and not value.is_quantized
    expected = f"a dense tensor with values for {name!r}"
    repair = "pass its to_dense()" if value.layout != torch.strided else "pass its dequantize()"
    if value.is_meta:
        repair = "make the module on a device with memory, such as cpu, and load its weights"
    require(is_known, expected, f"one of {value.layout}, {value.dtype} on {value.device}", repair, error=TypeError)
    dtype = np.dtype(getattr(jnp, own)) if by_bits else torch.empty(0, dtype=value.dtype).numpy().dtype

    def values():
        # NumPy does not resolve the lazy conjugates and negations of PyTorch.
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
        return plain.view(bits).numpy().view(dtype) if by_bits else plain.numpy()

    return Tensor(tuple(value.shape), dtype, values)


# ---- errors ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of the operating system, such as a file without permission, as sentences of the library."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a sentence of ours
            raise
        repair = "check its permissions, and those of its folder"
        require(False, f"{path} to be readable", f"{error.strerror}", repair, error=type(error))


def _require(path: Path, ok, expected: str, got: str) -> None:
    expected = expected if len(expected) <= 400 else f"{expected[:200]}...{expected[-150:]}"  # long names
    require(ok, f"{path} to have {expected}", got, "the file is damaged, or not of this format: get it again")


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _repair_folder(path) -> str:
    if not path.exists():
        return f"pass the folder that huggingface_hub.snapshot_download({str(path)!r}) returns; load downloads nothing"
    return f"pass a folder with config.json and {_WEIGHTS[0]} (or {', '.join(_WEIGHTS[1:])})"
