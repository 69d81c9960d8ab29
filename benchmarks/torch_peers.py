"""PyTorch's ways, for `bash run.sh throughput --peers torch`: one process, DDP over gloo, Hogwild in shared memory.

    python torch_peers.py single|ddp|hogwild '{"model": "small", "units": [64, 128, 10], "workers": 2, ...}'

It imports nothing of this package, and prints one line of JSON, as `peers.py` does. Models and steps are what PyTorch's
users write; batches are rows of arrays in memory, each worker has one thread. DDP's gradients are views of its buckets,
which saves it a copy. With "device": "cuda" the arrays are on the GPU that all workers share, and products are rounded
to TF32, as TensorFlow's are.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

WARM_STEPS = 12  # DDP cuts its buckets anew after the first


def network(model: str, units: list[int]) -> Any:
    """Return fully connected layers with tanh between them, or the cnn of `peers.py`."""
    layers: list[Any] = []
    if model == "cnn":
        side = round(units[0] ** 0.5)
        for inputs, outputs in ((1, 16), (16, 32)):
            layers += [torch.nn.Conv2d(inputs, outputs, 3, padding="same"), torch.nn.Tanh(), torch.nn.MaxPool2d(2)]
        layers = [torch.nn.Unflatten(1, (1, side, side)), *layers[:-1], torch.nn.Flatten()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(32 * (side // 2) ** 2, units[-1]))
    for inputs, outputs in itertools.pairwise(units):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def train(model: Any, optimizer: Any, x: Any, y: Any, batch: int, steps: int) -> None:
    """Make steps of SGD on random batches."""
    loss_of = torch.nn.CrossEntropyLoss()
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,), device=x.device)
        optimizer.zero_grad()
        loss_of(model(x[rows]), y[rows]).backward()
        optimizer.step()
    if x.is_cuda:
        torch.cuda.synchronize()


def work(rank: int, kind: str, task: dict[str, Any], model: Any, meeting: str, begin: Any, results: Any) -> None:
    """Run one worker: put its steps per second and its CPU seconds into `results`."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    torch.set_float32_matmul_precision("high")  # TF32 where a GPU has it
    model = model.to(task["device"])
    if kind == "ddp":
        torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=task["workers"])
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=task["learning_rate"])
    x = torch.randn(task["examples"], task["units"][0], device=task["device"])
    y = torch.randint(task["units"][-1], (task["examples"],), device=task["device"])
    train(model, optimizer, x, y, task["batch"], WARM_STEPS)
    begin.wait()
    began, used = time.perf_counter(), time.process_time()
    train(model, optimizer, x, y, task["batch"], task["steps"])
    results.put((task["steps"] / (time.perf_counter() - began), time.process_time() - used))
    if kind == "ddp":
        torch.distributed.destroy_process_group()


def main() -> None:
    """Start the workers, and print what they have measured."""
    kind, task = sys.argv[1], json.loads(sys.argv[2])
    spawn = torch.multiprocessing.get_context("spawn")
    begin, results = spawn.Barrier(task["workers"]), spawn.SimpleQueue()
    model = network(task["model"], task["units"])
    if kind == "hogwild":
        model.share_memory()
    with tempfile.TemporaryDirectory() as folder:
        common = kind, task, model, f"{folder}/meeting", begin, results
        workers = [spawn.Process(target=work, args=(rank, *common), daemon=True) for rank in range(task["workers"])]
        for worker in workers:
            worker.start()
        rates, used = zip(*(results.get() for _ in workers), strict=True)
        for worker in workers:
            worker.join()
    milliseconds = 1e3 * sum(used) / (task["steps"] * task["workers"])
    print(json.dumps({"rate": sum(rates), "cpu": {"workers": milliseconds}}), flush=True)


if __name__ == "__main__":
    main()
