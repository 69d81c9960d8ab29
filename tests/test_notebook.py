"""What a run shows in a notebook, in a kernel like that of its users."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from distsgd.common.record import display
from distsgd.common.record.display import NotebookLine, in_notebook

IMPORTS = """
import distsgd, keras
import numpy as np
from distsgd.algorithms import Downpour
from distsgd import Cluster, train
"""

MODEL = """
class Mine(keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 2))

    def call(self, x):
        return x @ self.w

x = np.random.default_rng(0).normal(size=(2048, 16)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = keras.Sequential([keras.Input((16,)), Mine()])
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
"""

TRAINING = """
cluster = Cluster.local(2, backend="threads")
result = train(model, (x, y), Downpour(), cluster=cluster, epochs=10, validation_split=0.2)
"""


class Reader(NotebookClient):
    """Counts what comes of each kind."""

    def process_message(self, msg, cell, cell_index):
        self.__dict__.setdefault("kinds", []).append((cell_index, msg["msg_type"]))
        return super().process_message(msg, cell, cell_index)


@pytest.mark.filterwarnings("ignore")  # of the client's
@pytest.mark.rotating
def test_a_run_shows_only_one_line_that_changes_and_a_small_table(tmp_path):
    sources = IMPORTS, MODEL, TRAINING, "result.plot(x='updates')", "result"
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    client = Reader(nbformat.v4.new_notebook(cells=cells), timeout=500, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    imports, model, training, plot, result = client.nb.cells
    assert imports.outputs == model.outputs == []
    assert [output.output_type for output in training.outputs] == ["display_data", "display_data"]
    line, table = (output.data for output in training.outputs)
    assert re.match(r"downpour on own data, sequential \(1 ps \+ 2 workers on \d? ?.PUs?\): step ", line["text/plain"])
    assert " elapsed" in line["text/plain"]
    assert "test accuracy" in line["text/plain"]
    assert len(line["text/plain"].splitlines()) == 1
    assert "downpour: completed" in table["text/plain"].splitlines()[0]
    assert "test accuracy" in table["text/html"]
    assert "image/png" in plot.outputs[0].data
    assert "<img" in result.outputs[0].data["text/html"]
    assert (2, "update_display_data") in client.kinds
    assert (tmp_path / "runs" / "downpour" / "latest" / "logs" / "notebook.log").exists()


def test_the_line_keeps_the_newest_notes_above_it_and_is_text_not_markup(monkeypatch):
    shown = []
    line = NotebookLine(lambda: "loss <1>")
    monkeypatch.setattr(line, "_publish", shown.append)
    with line:
        for number in range(display.NOTES + 2):
            line.note(f"note {number}")
    assert not line._thread.is_alive()
    *notes, last = shown[-1]["text/plain"].splitlines()
    assert notes == [f"note {number}" for number in range(2, display.NOTES + 2)]
    assert last == "loss <1>"
    assert "loss &lt;1&gt;</pre>" in shown[-1]["text/html"]


def test_a_test_is_not_run_in_a_notebook():
    assert not in_notebook()
