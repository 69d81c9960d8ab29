"""TensorFlow's first lines, which its libraries print before they read a log level."""

import os
import subprocess
import sys

import pytest

FAKE = """
import os
os.write(2, b"native")
level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
"""

SCRIPT = """
import os
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
