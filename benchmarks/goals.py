"""The ratios of throughputs that are to be reached."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """The ratio of two systems that is to be reached."""

    system: str
    over: str
    least: Mapping[str, float]  # by model

    @property
    def name(self) -> str:
        """Return the name in the tables."""
        return f"{self.system} / {self.over}"


GOALS = [
    Goal("sync_sgd", "ddp", {"small": 1.3, "medium": 1.0, "large": 1.0}),
    Goal("sync_sgd bf16", "ddp", {"large": 1.2}),
    Goal("downpour", "ddp", {"medium": 1.4}),
    Goal("hogwild", "pss", {"small": 3.5, "medium": 1.8, "large": 2.5}),
    Goal("async_sgd", "pss", {"small": 3.5, "medium": 1.8, "large": 2.5}),
    Goal("downpour", "two cores", {"small": 0.6, "medium": 0.9, "large": 0.85}),
    Goal("threads:hogwild", "torch:hogwild", {"small": 1.2, "medium": 0.9, "large": 1.0}),
    Goal("serial", "single", {"large": 0.9, "cnn": 0.9}),
    Goal("serial", "fit XLA", {"resnet": 0.9}),
    Goal("serial", "torch", {"small": 1.0, "medium": 1.0, "large": 1.0, "cnn": 1.0}),
    Goal("all_reduce x4", "sync_sgd x4", {"large": 1.2}),
    Goal("all_reduce x4 sockets", "sync_sgd x4 sockets", {"large": 1.2}),
    Goal("downpour x32", "downpour", {"small": 0.8}),
    Goal("sync_sgd joined", "sync_sgd", {"medium": 0.77}),
    Goal("downpour joined", "downpour", {"medium": 0.77}),
]
