import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dyneval import storage


def refused(function, path, *args):
    """The message of the ValueError that a call ends with: one line that names the file."""
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        function(path, *args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_json_round_trip(tmp_path):
    path = tmp_path / "deep" / "below" / "a.json"
    value = {"letters": ["é", "\n", "語"], "number": 0.1, "nothing": None}
    storage.write_json(path, value)
    assert storage.read_json(path) == value
    assert "語" in path.read_text("utf-8")


def test_tensors_round_trip(tmp_path):
    tensors = {
        "a": torch.randn(3, 4, dtype=torch.float64),
        "b.0": torch.randn(4, 3).t(),  # not contiguous
        "half": torch.randn(3).half(),
        "state": torch.get_rng_state(),
        "number": torch.tensor(3),
        "none": torch.zeros(0, 5),
    }
    storage.write_tensors(tmp_path / "a.safetensors", tensors, {"made": ["here", 1.5]})
    read, about = storage.read_tensors(tmp_path / "a.safetensors")
    assert about == {"made": ["here", 1.5]}
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_tensors_need_no_description(tmp_path):
    storage.write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2, requires_grad=True)})
    assert storage.read_tensors(tmp_path / "a.safetensors")[1] is None


def test_what_was_read_outlives_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    storage.write_tensors(path, {"a": torch.arange(1000)})
    read, _ = storage.read_tensors(path)
    storage.write_tensors(path, {"a": torch.zeros(1000)})
    path.unlink()
    read["a"] += 1
    assert torch.equal(read["a"], torch.arange(1, 1001))


def test_files_have_the_rights_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        storage.write_json(tmp_path / "a.json", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def test_a_writer_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    storage.write_json(path, "old")

    def half_write():
        with storage.replacing(path) as temporary:
            assert temporary.parent == tmp_path  # so that it can be renamed
            assert temporary.suffix == ".json"
            temporary.write_text('"ne')
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        half_write()
    with pytest.raises(ValueError, match="Out of range float"):
        storage.write_json(path, float("nan"))
    with pytest.raises(TypeError):
        storage.write_tensors(path, {}, object())
    assert storage.read_json(path) == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_killed_while_writing(tmp_path):
    path = tmp_path / "a.json"
    storage.write_json(path, ["old"])
    code = """
import os, signal, sys
from pathlib import Path
from dyneval import storage
with storage.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text('["ne')
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert storage.read_json(path) == ["old"]
    storage.write_json(path, ["new"])
    assert storage.read_json(path) == ["new"]


@pytest.mark.parametrize("part", [0, 1, 0.1, 0.5, 0.9, -1])
def test_tensors_cut_off(tmp_path, part):
    path = tmp_path / "a.safetensors"
    storage.write_tensors(path, {"a": torch.randn(50), "b": torch.randn(7)}, {"made": "here"})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole)) if 0 < part < 1 else part])
    assert "is no whole safetensors file" in refused(storage.read_tensors, path)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a": 1', b"text", b'"\xff"', b"\x00" * 40])
def test_json_cut_off_or_of_another_kind(tmp_path, raw):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    assert "is no whole JSON file" in refused(storage.read_json, path)
    assert "is no whole safetensors file" in refused(storage.read_tensors, path)


def test_a_description_that_is_no_json(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(2)}, path, {"about": "{"})
    assert "is no whole safetensors file" in refused(storage.read_tensors, path)
    save_file({"a": torch.zeros(2)}, path)  # by another program, with none
    assert storage.read_tensors(path)[1] is None


@pytest.mark.parametrize("read", [storage.read_json, storage.read_tensors])
def test_files_that_are_not_there(tmp_path, read):
    assert "does not exist" in refused(read, tmp_path / "nothing")
    (tmp_path / "file").write_text(json.dumps(1))
    refused(read, tmp_path / "file" / "below")
    refused(read, tmp_path)


def test_places_that_cannot_be_written_are_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for write in (storage.check_writable, lambda path: storage.write_json(path, 1)):
        for path in (file / "a.json", file / "below" / "a.json"):
            with pytest.raises(ValueError, match=re.escape(f"folder {path.parent} cannot be made")):
                write(path)
    path = Path("/proc/self/a.json")  # closed to everyone
    if path.parent.exists():
        assert f"{path} cannot be written: " in refused(storage.check_writable, path)
