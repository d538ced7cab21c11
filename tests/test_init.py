import os
import subprocess
import sys
from pathlib import Path

import pytest

import dyneval

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", dyneval.__all__)
def test_every_public_name_is_there(name):
    value = getattr(dyneval, name)
    assert value is not None
    if isinstance(value, type):
        assert value.__name__ == name
    assert name in dir(dyneval)


def test_public_names_have_one_home():
    homes = [name for names in dyneval._HOMES.values() for name in names]
    assert sorted(homes) == sorted(dyneval.__all__)


def test_no_other_name_is_there():
    with pytest.raises(AttributeError, match="module 'dyneval' has no attribute 'nonsense'"):
        _ = dyneval.nonsense
    with pytest.raises(ImportError, match="nonsense"):
        from dyneval import nonsense  # noqa: F401


def test_importing_the_package_waits_for_nothing():
    """Torch and numpy come with the first name that needs them."""
    code = (
        "import sys, dyneval\n"
        "print(dyneval.__version__, {'torch', 'numpy', 'rich', 'typer'} & set(sys.modules))\n"
        "from dyneval import Vocabulary, PAD, segments\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [f"{dyneval.__version__} set()", "False True"], done.stderr
