"""Files that are whole or not there: everything is written to a temporary name and renamed.

Tensors are stored with safetensors alone, never with pickle. Reading a file that is cut off or
of another kind raises a ValueError that names the file.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

CSV_ENDINGS = (".csv",)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its name when the block ends well."""
    _make(path.parent)
    # the suffix stays, since writers such as matplotlib and numpy read the format from it
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp's files are the owner's alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path, endings: tuple[str, ...] = ()) -> None:
    """Raise an error if a file cannot be written, before anybody works for it."""
    if endings and path.suffix not in endings:
        raise ValueError(f"{path} has another ending than is written; give {' or '.join(endings)}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file")
    _make(path.parent)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".partial-"):
            pass
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written: {error.strerror}; give a file in another folder"
        ) from None


def _make(folder: Path) -> None:
    """Make a folder, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the folder {folder} cannot be made: {error.strerror}; give another"
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    with replacing(path) as temporary:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", "utf-8")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file."""
    return _read(path, lambda: json.loads(path.read_text("utf-8")), "JSON")


def begin(folder: Path, about: dict[str, Any], resume: bool) -> None:
    """Mark a folder as that of the run that `about` describes; with `resume` it may be already."""
    run = folder / "run.json"
    if run.exists() and not resume:
        raise ValueError(
            f"{folder} already holds a run; go on with it (--resume) or give another folder"
        )
    before = read_json(run) if run.exists() else about
    if before != about:
        old = before if isinstance(before, dict) else {}
        other = [name for name, value in about.items() if old.get(name) != value]
        raise ValueError(
            f"{folder} holds another run than this one (of another {', '.join(other)}); "
            "resume it as it was begun, or give another folder"
        )
    for partial in folder.glob(".partial-*"):  # of a run that was killed while it wrote
        partial.unlink()
    write_json(run, about)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows, which all have the same keys, as a CSV file with these in its first line."""
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Any = None) -> None:
    """Write tensors, with a JSON value that describes them, as one safetensors file."""
    from safetensors.torch import save_file

    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(whole, temporary, {"about": json.dumps(about)})


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as a packed .npz file."""
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
    with replacing(path) as temporary:
        temporary.write_bytes(packed.getvalue())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of a safetensors file and the JSON value that describes them."""
    from safetensors import SafetensorError, safe_open

    def read() -> tuple[dict[str, Tensor], Any]:
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {}).get("about", "null"))
                # copied: in the file's own memory they are not aligned, and products of such
                # tensors are rounded in another way
                names = file.keys()
                return {name: file.get_tensor(name).clone() for name in names}, about
        except SafetensorError as error:
            raise ValueError(error) from error

    tensors: tuple[dict[str, Tensor], Any] = _read(path, read, "safetensors")
    return tensors


def _read(path: Path, read: Callable[[], Any], kind: str) -> Any:
    try:
        return read()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is no whole {kind} file: {reason}") from error
