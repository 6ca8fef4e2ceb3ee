"""From batches to a trained model: `train`, `resume`, `evaluate`.

from srm.training import TrainConfig, train
train(TrainConfig(steps=600, batch_size=16, warmup=50), srm.preset("srm-nano"), "data/sotu", "runs/nano")
"""

from srm.training.adam_atan2 import AdamAtan2
from srm.training.config import TrainConfig
from srm.training.evaluation import Estimate, Evaluation, evaluate
from srm.training.loop import NonfiniteLoss, TrainResult, resume, train
from srm.training.memory import keep_buffers
from srm.training.metrics import read_metrics
from srm.training.recipes import recipe
from srm.training.run import RunDirectory
from srm.training.schedule import learning_rate

__all__ = [
    "AdamAtan2",
    "Estimate",
    "Evaluation",
    "NonfiniteLoss",
    "RunDirectory",
    "TrainConfig",
    "TrainResult",
    "evaluate",
    "keep_buffers",
    "learning_rate",
    "read_metrics",
    "recipe",
    "resume",
    "train",
]
