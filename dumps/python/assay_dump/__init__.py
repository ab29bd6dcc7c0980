"""Write and read dumps of inference engines that Assay compares. Format: dumps/FORMAT.md. Needs numpy; hashes need xxhash.

An array of shape [rows, ..., columns] is one tensor; its row is the last axis. bfloat16, which numpy lacks, goes in as uint16
bits or as float32 (rounded to nearest even) with dtype="BF16" and comes out as float32, or as uint16 with raw=True.
"""

import json
import math
import os
import re
import shutil
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

try:
    import xxhash
except ImportError:  # the dump is written without hashes; `assay import` adds them
    xxhash = None

__all__ = ["DumpWriter", "Dump", "read_dump", "read_safetensors", "write_safetensors", "DumpError"]
__version__ = "0.1.0"

_NUMPY = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
_CANONICAL_NAN = {"F64": (np.uint64, 0x7FF0000000000000, 0x7FF8000000000000), "F32": (np.uint32, 0x7F800000, 0x7FC00000),
                  "F16": (np.uint16, 0x7C00, 0x7E00), "BF16": (np.uint16, 0x7F80, 0x7FC0)}  # fmt: skip
_FORMAT_KEYS = {"format", "capture", "files", "hashes", "not_materialised", "tensors"}
_NAME = re.compile(r"[!-~]{1,512}\Z")
_MAX_HEADER = 100_000_000
_PART_BYTES = 32 << 20  # tensors wait for company up to this size, then share a file


class DumpError(Exception):
    """A broken dump or a misused writer; the text says what, where, wanted and found."""


def _dtype_name(array):
    for name, dtype in _NUMPY.items():
        if name != "BF16" and array.dtype == dtype:
            return name
    raise DumpError(f"numpy dtype {array.dtype}: wanted one of {' '.join(_NUMPY)}")


def to_bf16_bits(array):
    """float32 -> uint16 bits, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded)


def from_bf16_bits(bits):
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def _prepare(array, dtype):
    """A contiguous little-endian copy with canonical NaNs, and the name of its type."""
    array = np.asarray(array)
    if dtype == "BF16" and array.dtype != np.uint16:
        array = to_bf16_bits(array.astype(np.float32))
    name = dtype or _dtype_name(array)
    if name not in _NUMPY:
        raise DumpError(f"dtype {name}: wanted one of {' '.join(_NUMPY)}")
    shape = array.shape  # ascontiguousarray makes a scalar [1]
    array = np.array(array, dtype=_NUMPY[name], order="C", copy=True).reshape(shape)
    if name in _CANONICAL_NAN:
        unsigned, infinity, nan = _CANONICAL_NAN[name]
        bits = array.reshape(-1).view(unsigned)
        sign = unsigned(1) << unsigned(8 * bits.itemsize - 1)
        bits[(bits & ~sign) > unsigned(infinity)] = unsigned(nan)
    return array, name


def _values(array, name):
    """For statistics: float64, row by row."""
    x = from_bf16_bits(array) if name == "BF16" else array
    return x.astype(np.float64)


def _statistics(array, name):
    x = _values(array, name).reshape(-1)
    finite = np.isfinite(x)
    out = {"min": 0.0, "max": 0.0, "mean": 0.0, "rms": 0.0, "non_finite": int(x.size - finite.sum())}
    x = x[finite]
    if x.size:
        most = sys.float_info.max
        with np.errstate(over="ignore", invalid="ignore"):
            mean, rms = float(x.mean()), float(np.sqrt(np.square(x).mean()))
        mean = 0.0 if math.isnan(mean) else min(max(mean, -most), most)
        out.update(min=float(x.min()), max=float(x.max()), mean=mean, rms=min(rms, most))
    return out


def write_safetensors(path, tensors):
    """tensors: list of (name, dtype name, contiguous array). Returns the size of the file."""
    tensors = sorted(tensors, key=lambda t: -t[2].itemsize)  # keeps every tensor aligned
    header, offset = {}, 0
    for name, dtype, array in tensors:
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for _, _, array in tensors:
            f.write(array.tobytes() if array.ndim == 0 or array.size == 0 else memoryview(array).cast("B"))
        f.flush()
        os.fsync(f.fileno())
    return 8 + len(text) + offset


def _unique(pairs):
    out = dict(pairs)
    if len(out) != len(pairs):
        raise DumpError("a key appears twice in one JSON object")
    return out


def _load_json(text, where):
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError, DumpError) as e:
        raise DumpError(f"{where}: is not JSON: {e}") from None


def read_safetensors(path, raw=False):
    """dict of name -> numpy array (memory-mapped where it can be). Refuses what contradicts itself."""
    path = Path(path)
    size = path.stat().st_size
    if size < 8:
        raise DumpError(f"{path}: too short for a safetensors file; wanted 8 bytes, found {size}")
    data = np.memmap(path, dtype=np.uint8, mode="r")
    length = struct.unpack("<Q", data[:8].tobytes())[0]
    if length > min(size - 8, _MAX_HEADER):
        raise DumpError(f"{path}: byte 0: the header is longer than the file; wanted at most {size - 8}, found {length}")
    header = _load_json(data[8 : 8 + length].tobytes(), f"{path}: header")
    if not isinstance(header, dict):
        raise DumpError(f"{path}: header: wanted an object")
    header.pop("__metadata__", None)
    out, next_offset, begin_of_data = {}, 0, 8 + length
    try:
        entries = sorted(header.items(), key=lambda kv: tuple(kv[1]["data_offsets"]))
        for name, entry in entries:
            dtype, shape, (begin, end) = _NUMPY[entry["dtype"]], entry["shape"], entry["data_offsets"]
            if not all(type(v) is int and v >= 0 for v in [*shape, begin, end]):
                raise DumpError(f"{path}: {name}: a shape or an offset is no count")
            if begin != next_offset:
                raise DumpError(f"{path}: {name}: overlap or gap; wanted begin {next_offset}, found {begin}")
            if math.prod(shape) * dtype.itemsize != end - begin or begin_of_data + end > size:
                raise DumpError(f"{path}: {name}: data_offsets disagree with dtype, shape or the size of the file")
            next_offset = end
            array = data[begin_of_data + begin : begin_of_data + end].view(np.ndarray)
            if (begin_of_data + begin) % dtype.itemsize:
                array = array.copy()  # values of another writer may be unaligned
            array = array.view(dtype).reshape(shape)
            out[name] = from_bf16_bits(array).reshape(shape) if entry["dtype"] == "BF16" and not raw else array
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise DumpError(f"{path}: header: malformed entry: {e!r}") from None
    if begin_of_data + next_offset != size:
        raise DumpError(f"{path}: bytes behind the last tensor; wanted {begin_of_data + next_offset}, found {size}")
    return out


class DumpWriter:
    """Writes a dump folder. Memory holds at most 32 MiB of small tensors. A folder whose writer did not finish (an exception,
    a crash) has no manifest.json and is no dump.

    blocks: manifest entries (engine={...}, options={...}, model={...}); more through writer.manifest.
    hashes: None writes them if xxhash is installed; True demands them.
    """

    def __init__(self, path, hashes=None, replace=False, partial=False, **blocks):
        self.path = Path(path)
        self.manifest = dict(blocks)
        self.partial = partial
        if hashes and xxhash is None:
            raise DumpError("hashes need the package xxhash: pip install xxhash")
        self._hashes = xxhash is not None if hashes is None else hashes
        self._names, self._entries, self._files, self._row_hashes = set(), [], [], []
        self._waiting, self._waiting_bytes, self._rows, self._finished = [], 0, 0, False
        self._not_materialised, self._prompts = [], {}
        self._take_folder(replace)

    def _take_folder(self, replace):
        self.path.mkdir(parents=True, exist_ok=True)
        names = {p.name for p in self.path.iterdir()}
        strange = [n for n in names if n not in ("manifest.json", "manifest.json.tmp", "hashes") and not n.startswith("part-")]
        if strange:
            raise DumpError(f"{self.path}: the folder holds something that is no part of a dump: {sorted(strange)[0]}")
        if "manifest.json" in names and not replace:
            raise DumpError(f"{self.path}: the folder holds a finished dump already; replace=True overwrites it")
        if names and not names & {"manifest.json", "manifest.json.tmp"}:
            raise DumpError(f"{self.path}: the folder holds files that no dump wrote")
        (self.path / "manifest.json").unlink(missing_ok=True)
        (self.path / "manifest.json.tmp").write_text('{"unfinished": true}\n')
        for name in names - {"manifest.json", "manifest.json.tmp"}:
            target = self.path / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()

    def prompt(self, index, ids, greedy_ids=None, fed_ids=None):
        """Declares a prompt: its ids go into the manifest and, as I64, into tensors. fed_ids: what the decode passes consumed,
        where that is not greedy_ids."""
        block = {"name": f"prompt{index}", "ids": [int(i) for i in ids]}
        if fed_ids is not None:
            block["fed_ids"] = [int(i) for i in fed_ids]
        self.write(f"prompt{index}/ids", np.asarray(ids, dtype=np.int64), role="ids")
        if greedy_ids is not None:
            block["greedy_ids"] = [int(i) for i in greedy_ids]
            self.write(f"prompt{index}/greedy_ids", np.asarray(greedy_ids, dtype=np.int64), role="ids")
        self._prompts[index] = block

    def write(self, name, array, dtype=None, order=None, role=None, axes=None, inputs=None):
        """One whole tensor. The order of the calls is the order of execution unless `order` says otherwise."""
        if self._finished:
            raise DumpError(f"{name}: written after finish")
        if not _NAME.match(name) or name == "__metadata__":
            raise DumpError(f"{name!r}: not a tensor name; wanted 1 to 512 printable ASCII characters without blanks")
        if name in self._names:
            raise DumpError(f"{name}: written twice")
        array, dtype = _prepare(array, dtype)
        self._names.add(name)
        entry = {"name": name, "dtype": dtype, "shape": list(array.shape), "order": len(self._entries) if order is None else order}
        for key, value in (("role", role), ("axes", axes), ("inputs", inputs)):
            if value is not None:
                entry[key] = value if isinstance(value, str) else list(value)
        if self._hashes:
            entry["xxh3_128"] = xxhash.xxh3_128_hexdigest(array.tobytes())
            entry["rows_at"] = self._rows
            if array.size:
                rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
                hashes = np.fromiter((xxhash.xxh3_64_intdigest(r.tobytes()) for r in rows), dtype="<u8", count=len(rows))
                self._row_hashes.append(hashes)
                self._rows += len(rows)
        entry.update(_statistics(array, dtype))
        self._entries.append(entry)
        self._waiting.append((entry, array))
        self._waiting_bytes += array.nbytes
        if self._waiting_bytes >= _PART_BYTES:
            self._flush()

    def not_materialised(self, *names):
        """Phases that a fused kernel did not write: neither missing nor compared."""
        self._not_materialised += names

    def _flush(self):
        if not self._waiting:
            return
        file = f"part-{len(self._files):04d}.safetensors"
        size = write_safetensors(self.path / file, [(e["name"], e["dtype"], a) for e, a in self._waiting])
        for entry, _ in self._waiting:
            entry["file"] = file
        self._files.append({"name": file, "bytes": size})
        self._waiting, self._waiting_bytes = [], 0

    def finish(self):
        """Writes the manifest and makes the folder a dump."""
        clash = _FORMAT_KEYS & set(self.manifest)
        if clash:
            raise DumpError(f"manifest key {sorted(clash)[0]}: belongs to the format itself")
        fused = self._names & set(self._not_materialised)
        if fused:
            raise DumpError(f"{sorted(fused)[0]}: written and listed as not materialised")
        self._flush()
        out = {"format": {"name": "assay-dump", "version": 1}, "capture": {"mode": "full"}}
        if self.partial:
            out["capture"]["partial"] = True
        out.update(self.manifest)
        if self._prompts and "prompts" not in self.manifest:
            if sorted(self._prompts) != list(range(len(self._prompts))):
                raise DumpError(f"prompts {sorted(self._prompts)}: wanted 0, 1, 2, ... without a gap")
            out["prompts"] = [self._prompts[i] for i in sorted(self._prompts)]
        out["files"] = self._files
        if self._hashes:
            (self.path / "hashes").mkdir(exist_ok=True)
            with open(self.path / "hashes" / "rows.u64", "wb") as f:
                for rows in self._row_hashes:
                    f.write(rows.tobytes())
                f.flush()
                os.fsync(f.fileno())
            out["hashes"] = {"file": "hashes/rows.u64", "rows": self._rows}
        out["not_materialised"] = list(dict.fromkeys(self._not_materialised))
        text = json.dumps(out, indent=1, allow_nan=False)[:-2]
        tensors = ",\n  ".join(json.dumps(e, allow_nan=False) for e in self._entries)
        text += ',\n "tensors": [\n  ' + tensors + "\n ]\n}\n"
        unfinished = self.path / "manifest.json.tmp"
        with open(unfinished, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(unfinished, self.path / "manifest.json")
        self._finished = True

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None and not self._finished:
            self.finish()


class Dump(Mapping):
    """A dump, an official case or a folder of safetensors, as a mapping from name to array."""

    def __init__(self, path, raw=False):
        path = Path(path)
        self.path, self.manifest, self._tensors = path, {}, {}
        if (path / "manifest.json").exists():
            self.manifest = _load_json((path / "manifest.json").read_bytes(), path / "manifest.json")
        elif (path / "manifest.json.tmp").exists():
            raise DumpError(f"{path}: an unfinished dump: its writer was interrupted")
        self.info = {}
        try:
            if "format" in self.manifest:
                if self.manifest["format"] != {"name": "assay-dump", "version": 1}:
                    raise DumpError(f"{path}: format {self.manifest['format']}; wanted assay-dump, version 1")
                self.info = {t["name"]: t for t in self.manifest["tensors"]}
                files = [path / f["name"] for f in self.manifest["files"]]
                if any(f.parent != path for f in files):
                    raise DumpError(f"{path}: the manifest names a file outside the folder")
            else:
                files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        except (KeyError, TypeError, AttributeError) as e:
            raise DumpError(f"{path / 'manifest.json'}: malformed: {e!r}") from None
        for file in files:
            for name, array in read_safetensors(file, raw).items():
                if name in self._tensors:
                    raise DumpError(f"{file}: the tensor {name} appears twice")
                self._tensors[name] = array
        if self.info and self.mode == "full" and set(self.info) != set(self._tensors):
            raise DumpError(f"{path}: manifest and files disagree about {sorted(set(self.info) ^ set(self._tensors))[0]}")
        for name, array in self._tensors.items():
            if self.info and list(array.shape) != self.info[name]["shape"]:
                raise DumpError(f"{path}: {name}: shape {self.info[name]['shape']} in the manifest, {list(array.shape)} in its file")

    @property
    def mode(self):
        return self.manifest.get("capture", {}).get("mode", "full")

    def __getitem__(self, name):
        return self._tensors[name]

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)


def read_dump(path, raw=False):
    """The Dump at `path`; raw=True keeps BF16 as uint16 bits."""
    return Dump(path, raw)
