"""Streaming DiLoCo for a small transformer in PyTorch: bash run.sh launch --workers 2 examples/torch_diloco_text.py.

Each worker makes AdamW steps of its own on text (Python's language reference, character by character). Every 10 steps
one of the two fragments of the model travels, in turn. A script needs `delay=0`. `bash run.sh pip install torch` first.
"""

import sys
from pydoc_data import topics

import distsgd
from distsgd import StreamingDiLoCo

import torch
from torch import nn
from torch.nn import functional as F

STEPS, BATCH, CONTEXT, WIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else 300, 16, 64, 64

text = torch.tensor(list("".join(topics.topics.values()).encode("ascii", "replace")))
train, test = text[:-20_000], text[-20_000:]


class Transformer(nn.Module):
    """Predicts the next of 128 characters."""

    def __init__(self):
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x):
        """Return logits, [examples, characters, 128], of the characters after each of x."""
        x = self.characters(x) + self.places.weight[: x.shape[1]]
        return self.out(self.layers(x, mask=self.mask, is_causal=True))


def loss_at(places, text):
    """Return the mean loss of the model on the texts at these places."""
    rows = torch.stack([text[place : place + CONTEXT + 1] for place in places])
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


torch.manual_seed(0)
model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
scheme = StreamingDiLoCo(communication_period=20, fragments=2, delay=0)

with distsgd.join(scheme, model) as worker:
    draws = torch.Generator().manual_seed(worker.index)  # each worker reads other places of the text
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_at(torch.randint(len(train) - CONTEXT, [BATCH], generator=draws), train)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        worker.stepped(loss)

if worker.index == 0:
    with torch.no_grad():
        found = loss_at(range(0, len(test) - CONTEXT, CONTEXT), test)
    print(f"test loss {found:.3f} for each character")
