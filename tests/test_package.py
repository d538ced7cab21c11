"""The package as others get it: the wheel, its files, its command."""

import json
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import dyneval

ROOT = Path(__file__).parent.parent
TEXTS = ("*.md", "*.cff", "*.txt", "*.toml", "Makefile", ".ci/run", ".github/**/*", "docs/**/*")
CODE = ("dyneval/**/*.py", "examples/*.py", "benchmarks/*.py", "tests/*.py")
MACHINE = re.compile(rb"/(home|root|Users|work|tmp)/[\w.]")  # a folder of some machine


def run(*command, **options):
    """Return what a command prints; an error of it is one of the test."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    run(*command)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return the bin folder of a new environment that holds the wheel.

    What it depends on is found where it is installed for this test, behind the wheel's own files.
    """
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Stand in an empty folder, with nothing that leads back to this one."""
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "DYNEVAL_DATA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    files = {file.filename: file.file_size for file in zipfile.ZipFile(wheel).infolist()}
    folders = {name.split("/")[0] for name in files}
    assert folders == {"dyneval", f"dyneval-{dyneval.__version__}.dist-info"}
    kinds = {Path(name).suffix for name in files if name.startswith("dyneval/")}
    texts = {".md", ".json", ".xml", ".html", ".css", ".js"}
    assert kinds <= {".py", ".typed", ".safetensors"} | texts
    assert {"dyneval/page/page.html", "dyneval/page/page.css", "dyneval/page/page.js"} <= set(files)
    assert "dyneval/py.typed" in files
    assert f"dyneval-{dyneval.__version__}.dist-info/licenses/LICENSE" in files


def test_the_bundled_model_is_small(wheel):
    files = zipfile.ZipFile(wheel).infolist()
    bundled = [file for file in files if file.filename.startswith("dyneval/bundled/")]
    assert {"config.json", "vocab.json", "model.safetensors"} <= {
        Path(file.filename).name for file in bundled
    }
    weights = [file.file_size for file in bundled if file.filename.endswith(".safetensors")]
    assert sum(weights) <= 8_000_000
    assert all(file.file_size <= 200_000 for file in bundled if file.file_size not in weights)


def test_no_file_names_a_machine(wheel):
    packed = zipfile.ZipFile(wheel)
    found = {name for name in packed.namelist() if MACHINE.search(packed.read(name))}
    paths = [path for pattern in (*TEXTS, *CODE) for path in ROOT.glob(pattern) if path.is_file()]
    found |= {str(path) for path in paths if MACHINE.search(path.read_bytes())}
    assert not found


def test_it_evaluates_the_bundled_model_elsewhere(installed, elsewhere):
    where = run(installed / "python", "-c", "import dyneval; print(dyneval.__file__)").stdout
    assert Path(where).is_relative_to(installed.parent)
    command = (installed / "dyneval", "evaluate", "--limit", "2000", "--json")
    result = json.loads(run(*command, env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout)
    assert result["static"]["tokens"] == result["dynamic"]["tokens"] == 1999  # all but the first
    assert result["static"]["bytes"] == 1999
    assert 1 < result["dynamic"]["bits_per_byte"] < result["static"]["bits_per_byte"] < 4
    assert result["run"]["versions"]["dyneval"] == dyneval.__version__
    assert not list(elsewhere.iterdir())


def test_help_is_instant(installed, elsewhere):
    def seconds():  # of the processor, so that it does not count who else keeps it busy
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(installed / "dyneval", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.3


def test_help_does_not_wait_for_torch(installed, elsewhere):
    command = (installed / "python", "-X", "importtime", installed / "dyneval", "--help")
    lines = run(*command).stderr.splitlines()
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in lines}
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "numba", "matplotlib", "safetensors"}


def test_the_readme_has_a_line_for_each_module():
    tree = (ROOT / "README.md").read_text().partition("dyneval/\n")[2].partition("```")[0]
    named = sorted(re.findall(r"^[├└]── (\S+) {2,}\S", tree, re.M))
    package = [path for path in (ROOT / "dyneval").iterdir() if path.name[:2] not in ("__", "py")]
    assert named == sorted(path.name + "/" * path.is_dir() for path in package)


def test_the_layers_of_the_documentation_are_those_of_the_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (each["layers"] for each in contract["contracts"])
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("## Imports point one way\n")[2].partition("\nA module imports")[0]
    assert section.split("\n") == ["", *(f"    {layer}" for layer in layers), ""]


def test_the_version_is_one():
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    changes = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert citation
    assert changes
    assert citation[1] == changes[1] == dyneval.__version__
