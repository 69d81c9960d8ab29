"""DiLoCo for a PyTorch model, with AdamW on each worker: bash run.sh launch --workers 2 examples/torch_classifier.py.

`bash run.sh pip install torch` installs PyTorch. `python examples/torch_classifier.py` is one worker, for debugging.
"""

import sys

import distsgd
from distsgd import DiLoCo

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

EPOCHS, BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 20, 32

torch.manual_seed(0)
pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
pixels = (pixels / 16).float()
train, test = slice(0, 1500), slice(1500, None)
data = torch.utils.data.TensorDataset(pixels[train], labels[train])

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

with distsgd.join(DiLoCo(communication_period=20), model) as worker:
    # The same order on all workers: each takes every W-th batch of it.
    order = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, generator=order)
    for _ in range(EPOCHS):
        for x, y in worker.shard(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            worker.stepped(loss)

# The model holds the center now, on every worker.
if worker.index == 0:
    accuracy = (model(pixels[test]).argmax(1) == labels[test]).float().mean()
    print(f"test accuracy {accuracy:.3f}")
