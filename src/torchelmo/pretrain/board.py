"""A run's curves for TensorBoard, in RUN/tensorboard."""

from __future__ import annotations

from pathlib import Path

from torchelmo.errors import MissingExtra
from torchelmo.pretrain.log import Status


class Board:
    """Draws what `Trainer` reports: loss, learning rate, tokens a second, perplexities."""

    def __init__(self, run: Path, step: int = 0) -> None:
        """Go on after `step`: what a killed run drew beyond it is hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("watch.tensorboard", package="tensorboard", extra="train") from None
        self._writer = SummaryWriter(
            str(run / "tensorboard"), purge_step=step + 1 if step else None
        )

    def __call__(self, now: Status) -> None:
        """Add the points of one status."""
        if now.validation is None:
            points = {
                "train/loss": now.loss,
                "train/learning_rate": now.learning_rate,
                "train/tokens_per_second": now.tokens_per_second,
            }
        else:
            points = {
                f"valid/{name}": now.validation[name]
                for name in ("perplexity", "forward", "backward")
                if name in now.validation
            }
        for name, value in points.items():
            self._writer.add_scalar(name, value, now.step)
        if now.validation is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what is waiting."""
        self._writer.close()
