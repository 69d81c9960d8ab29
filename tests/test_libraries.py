"""TensorFlow's first lines, which its libraries print before they read a log level; PyTorch's libraries beside them."""

import os
import subprocess
import sys

import pytest

from distsgd.common.libraries import PYTORCH, TRITON, Finder, load_with_care

FAKE = """
import os
os.write(2, b"native")
level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
"""

SCRIPT = """
import os, sys
class Old:
    def find_module(self, name, path=None):
        pass
sys.meta_path.insert(0, Old())
import distsgd
import tensorflow
print(tensorflow.level, os.environ.get("TF_CPP_MIN_LOG_LEVEL"))
"""


@pytest.mark.parametrize(
    ("told", "levels", "seen"),
    [(None, "3 None", ""), ("0", "0 0", "native"), ("1", "1 1", "native"), ("2", "2 2", "")],
)
def test_a_script_that_imports_distsgd_first_has_no_lines_of_tensorflow(told, levels, seen, tmp_path):
    (tmp_path / "tensorflow.py").write_text(FAKE)
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"PYTHONPATH": str(tmp_path)} | ({} if told is None else {"TF_CPP_MIN_LOG_LEVEL": told})
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == (f"{levels}\n", seen)


@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="other systems have no such flag")
@pytest.mark.parametrize("name", [TRITON, PYTORCH])
def test_the_libraries_of_pytorch_are_loaded_with_their_own_functions_first(name, tmp_path, monkeypatch):
    """A segmentation fault ended scripts at `torch.optim.SGD(...)`, where TensorFlow had been imported before."""
    library = tmp_path / f"{name.replace('.', '/')}.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no library")
    for folder in {library.parent, tmp_path / name.partition(".")[0]}:
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    load_with_care()
    before, seen = sys.getdlopenflags(), []
    monkeypatch.setattr(sys, "setdlopenflags", seen.append)
    assert [finder.name for finder in sys.meta_path if isinstance(finder, Finder)].count(name) == 1
    package = name.partition(".")[0]
    for known in {package, *(known for known in sys.modules if known.startswith(f"{package}."))}:
        monkeypatch.setitem(sys.modules, known, None)
        del sys.modules[known]  # the test takes out what it imports, and puts back what was there
    with pytest.raises(ImportError, match=library.stem):
        __import__(name)
    assert seen == [before | os.RTLD_DEEPBIND, before]
