"""Tensors in files: safetensors, read and written one tensor at a time, and PyTorch's own format through PyTorch.

A safetensors file is 8 bytes (the length of the header), a header in JSON that gives the dtype, the shape and the place
of each tensor, and the values. Nothing in it is executed, and each statement of the header is checked before a value is
read: an error names the file and the tensor. Values are read from the file, not mapped into memory, so that memory
holds only the tensor at hand.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxblocks.checks.errors import describe, require

__all__ = ["Tensor", "read_json", "read_tensors", "reader_of", "tensors_of", "write_tensors"]

_DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
        "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
        "F16": np.float16, "BF16": jnp.bfloat16, "F32": np.float32, "F64": np.float64,
        "F8_E4M3": jnp.float8_e4m3fn, "F8_E5M2": jnp.float8_e5m2,
    }.items()
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000  # bytes, as in the library safetensors
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_WEIGHTS_OF_DIFFUSERS = tuple(
    f"diffusion_pytorch_model.{ending}" for ending in ("safetensors", "safetensors.index.json", "bin")
)


class Tensor(NamedTuple):
    """A tensor that has not been read yet; `read_tensors` returns them.

    Attributes:
        shape: its shape.
        dtype: its dtype in the file.
        read: a function that returns its values, a NumPy array; ``read(out)`` writes them into a contiguous array of
            its shape and dtype.
        read_rows: ``read_rows(begin, out)`` fills a contiguous array with the rows from ``begin`` on, and returns it;
            ``None`` for tensors in memory.
    """

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[..., np.ndarray]
    read_rows: Callable[[int, np.ndarray], np.ndarray] | None = None


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file, or of a folder as Hugging Face writes it, by name; values are read later, one at a time.

    Args:
        path: a ``.safetensors`` file, a ``.bin`` or ``.pt`` file of PyTorch (read by ``torch.load`` with
            ``weights_only=True``, which executes nothing; PyTorch must be installed), or a folder with
            ``model.safetensors``, with shards and ``model.safetensors.index.json``, or with the same of PyTorch.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: for a damaged file: the message names file and tensor.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/model.safetensors"
    >>> write_tensors(file, {"weight": np.eye(2, dtype=np.float32)})
    >>> tensors = read_tensors(file)
    >>> tensors["weight"].shape, tensors["weight"].read()[0]
    ((2, 2), array([1., 0.], dtype=float32))
    """
    path = found = Path(path)
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
    """Write arrays, tensors of PyTorch, or `Tensor` (which are read one at a time) as a safetensors file.

    The file has another name until it is complete.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/model.safetensors"
    >>> write_tensors(file, {"bias": jnp.zeros(3)}, metadata={"format": "pt"})
    >>> read_tensors(file)["bias"].shape
    (3,)
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    path = Path(path)
    require(not path.is_dir(), "the path of a file", f"the folder {path}", f"pass {path / _WEIGHTS[0]}")
    expected = "tensors or arrays by name"
    require(isinstance(tensors, Mapping), expected, tensors, "pass module.state_dict(), or a dict", error=TypeError)
    tensors = {str(name): x if isinstance(x, Tensor) else _tensor_of(name, x) for name, x in tensors.items()}
    require("__metadata__" not in tensors, "names of tensors", "'__metadata__'", "pass metadata= beside the tensors")
    # Larger items first, as the library safetensors writes them, so that every tensor is aligned.
    order = sorted(tensors, key=lambda name: (-np.dtype(tensors[name].dtype).itemsize, name))
    # The tensors follow the header in this order, without gaps.
    for name in order:
        dtype, shape = np.dtype(tensors[name].dtype), tuple(map(int, tensors[name].shape))
        require(dtype in _NAMES, f"a dtype that safetensors has for {name}", str(dtype), f"use {', '.join(_DTYPES)}")
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    # The header is padded to a multiple of 8 bytes, so that the values are aligned.
    text += b" " * (-len(text) % 8)
    # Written under another name first, since an interrupted write must not replace a complete file.
    unfinished = path.with_name(f".{path.name}.unfinished")
    with open(unfinished, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            values = np.ascontiguousarray(tensors[name].read())
            # As bytes: a memoryview of bfloat16 has no format that Python knows.
            file.write(memoryview(values.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
    os.replace(unfinished, path)


def tensors_of(source: Any) -> dict[str, Tensor]:
    """A state dict of PyTorch tensors or of arrays, or the path of a file or folder, as `Tensor` by name.

    >>> tensors_of({"weight": np.zeros((2, 3))})["weight"].shape
    (2, 3)
    """
    if isinstance(source, (str, Path)):
        return read_tensors(source)
    expected = "a state dict of tensors by name, or the path of a file or folder"
    require(isinstance(source, Mapping), expected, source, "pass module.state_dict()", error=TypeError)
    return {str(name): _tensor_of(str(name), value) for name, value in source.items()}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an error names the file."""
    with _readable(path):
        text = path.read_bytes() if path.is_file() else None
    require(text is not None, f"a file {path}", "no such file", _repair_folder(path.parent), error=FileNotFoundError)
    return _parse(path, text or b"")


# ---- safetensors -----------------------------------------------------------------------------


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with _readable(path), open(path, "rb") as file:
        size, first = os.fstat(file.fileno()).st_size, file.read(8)
        length = int.from_bytes(first, "little")
        _require(path, size >= 8, "the length of the header in its first 8 bytes", f"{size} bytes")
        got = "a pointer of Git LFS" if first == b"version " else f"{length} bytes of it"
        # A damaged length must not allocate memory.
        _require(path, length <= min(size - 8, _LARGEST_HEADER), "a header inside the file", got)
        header = _parse(path, file.read(length))
    start = 8 + length
    tensors, places = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            good = isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())
            _require(path, good, "__metadata__ to be strings by name", "other values")
            continue
        dtype, shape, begin, end = _entry(path, name, entry, size - start)
        places.append((begin, end, name))
        tensors[name] = Tensor(shape, dtype, *_readers(path, name, dtype, shape, start + begin))
    _check_places(path, places, size - start)
    return tensors


def _entry(path, name, entry, room):
    """The dtype, shape and place that a header states for a tensor, checked."""
    known = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}
    _require(path, known, f"dtype, shape and data_offsets of tensor {name!r}", _short(entry))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    _require(path, isinstance(dtype, str) and dtype in _DTYPES, f"a known dtype of tensor {name!r}", _short(dtype))
    _require(path, _are_sizes(shape), f"sizes >= 0 as the shape of tensor {name!r}", _short(shape))
    possible = len(shape) <= 64 and math.prod(max(n, 1) for n in shape) < 2**60  # what NumPy can hold
    _require(path, possible, f"the shape of an array for tensor {name!r}", _short(shape))
    _require(path, _are_sizes(offsets) and len(offsets) == 2, f"two data_offsets of tensor {name!r}", _short(offsets))
    begin, end = offsets
    _require(path, begin <= end <= room, f"data_offsets of tensor {name!r} within {room} bytes", _short(offsets))
    wanted = math.prod(shape) * _DTYPES[dtype].itemsize
    got = f"{end - begin}"
    _require(path, wanted == end - begin, f"{wanted} bytes of tensor {name!r}, {dtype} {tuple(shape)}", got)
    return _DTYPES[dtype], tuple(shape), begin, end


def _check_places(path, places, room):
    """Tensors neither overlap nor leave gaps, in which a file could hide other contents."""
    # Sorted by their first byte, each has to begin where the one before ends.
    last, before = 0, ""
    for begin, end, name in sorted(places):
        after = f" after tensor {before!r}" if before else ""
        _require(path, begin == last, f"tensor {name!r} to begin at byte {last}{after}", f"byte {begin}")
        last, before = end, name
    _require(path, last == room, f"{last} bytes of values", f"{room}")


def _readers(path, name, dtype, shape, start):
    def read(out=None):
        return fill(np.empty(shape, dtype) if out is None else out, start)

    def read_rows(begin, out):
        return fill(out, start + begin * math.prod(shape[1:]) * dtype.itemsize)

    def fill(values, begin):
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            view, done = memoryview(values.reshape(-1).view(np.uint8)), 0  # type: ignore[arg-type]
            while done < len(view):
                # A read may return fewer bytes than were asked for.
                more = file.readinto(view[done:])
                _require(path, more, f"{len(view)} bytes of tensor {name!r}", f"{done}; it changed while it was read")
                done += more
        return values

    return read, read_rows


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of the shards that an index names."""
    places: Any = read_json(index).get("weight_map")
    named = isinstance(places, dict) and all(isinstance(file, str) for file in places.values())
    _require(index, named, "weight_map, the file of each tensor", _short(places))
    files: dict[str, dict[str, Tensor]] = {}
    for name, file in places.items():
        # The names come from the file: a path could lead outside of the folder.
        inside = file == Path(file).name and file not in ("", ".", "..") and "\\" not in file and "\0" not in file
        inside = inside and len(file) < 256  # the longest name that file systems have
        _require(index, inside, f"a file in the same folder for tensor {name!r}", _short(file))
        if file not in files:
            shard = index.with_name(file)
            with _readable(index):
                is_file = shard.is_file()
            _require(index, is_file, f"the file {file} with tensor {name!r}", "no such file")
            files[file] = _read_safetensors(shard) if shard.suffix == ".safetensors" else _read_torch(shard)
        _require(index, name in files[file], f"tensor {name!r} in {file}", "no such tensor there")
    # Files with tensors that the index does not name belong to another version of it.
    for file, tensors in files.items():
        for name in tensors:
            _require(
                index, places.get(name) == file, f"an entry for tensor {name!r} of {file}", _short(places.get(name))
            )
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
    return Tensor(tuple(value.shape), np.dtype(value.dtype), reader_of(lambda: np.asarray(value)))


def _tensor_of_torch(name, value) -> Tensor:
    """A tensor of PyTorch; those of a dtype that its NumPy does not have are converted by their bits."""
    import torch  # pyright: ignore[reportMissingImports]

    own = str(value.dtype).removeprefix("torch.")
    by_bits = own in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    is_known = value.layout == torch.strided and not value.is_meta and not value.is_quantized
    expected = f"a dense tensor with values for {name!r}"
    require(is_known, expected, f"one of {value.layout}, {value.dtype} on {value.device}", error=TypeError)
    dtype = np.dtype(getattr(jnp, own)) if by_bits else torch.empty(0, dtype=value.dtype).numpy().dtype

    def values():
        # NumPy does not resolve the lazy conjugates and negations of PyTorch.
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
        return plain.view(bits).numpy().view(dtype) if by_bits else plain.numpy()

    return Tensor(tuple(value.shape), dtype, reader_of(values))


def reader_of(values: Callable[[], np.ndarray]) -> Callable[..., np.ndarray]:
    """The ``read`` of a `Tensor` whose values a function makes."""

    def read(out=None):
        if out is None:
            return values()
        out[...] = values()
        return out

    return read


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


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        _require(path, False, "an object in JSON", f"{type(error).__name__}: {error}"[:200])
        raise AssertionError from None
    _require(path, isinstance(found, dict), "an object in JSON", _short(found))
    return found


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} twice")
        found[name] = value
    return found


def _are_sizes(values) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < 2**63 for one in values)


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _repair_folder(path) -> str:
    if path and not path.exists():
        return f"pass the folder that huggingface_hub.snapshot_download({str(path)!r}) returns; load downloads nothing"
    return f"pass a folder with config.json and {_WEIGHTS[0]} (or {', '.join(_WEIGHTS[1:])})" if path else ""
