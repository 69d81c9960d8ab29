"""Triton's library beside TensorFlow's."""

import os
import sys

import pytest

from distsgd.common import triton


@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="other systems have no such flag")
def test_the_library_of_triton_is_loaded_with_its_own_functions_first(tmp_path, monkeypatch):
    """A segmentation fault ended scripts at `torch.optim.SGD(...)`, where TensorFlow had been imported before."""
    library = tmp_path / "triton" / "_C" / "libtriton.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no library")
    for folder in (library.parent, library.parent.parent):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    before, seen = sys.getdlopenflags(), []
    monkeypatch.setattr(sys, "setdlopenflags", seen.append)
    assert [type(finder) for finder in sys.meta_path].count(triton.TritonFinder) == 1
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="libtriton"):
        __import__(triton.LIBRARY)
    assert seen == [before | os.RTLD_DEEPBIND, before]
