"""From batches to a trained model: `train`, `resume`, `evaluate`.

from srmlab.training import TrainConfig, train
train(TrainConfig(steps=600, batch_size=16, warmup=50), srmlab.preset("srm-nano"), "data/sotu", "runs/nano")
"""

from srmlab.training.adam_atan2 import AdamAtan2
from srmlab.training.config import TrainConfig
from srmlab.training.evaluation import Estimate, Evaluation, evaluate
from srmlab.training.loop import TrainResult
from srmlab.training.memory import keep_buffers
from srmlab.training.nonfinite import NonfiniteLoss
from srmlab.training.recipes import recipe
from srmlab.training.schedule import learning_rate
from srmlab.training.start import resume, train

__all__ = [
    "AdamAtan2",
    "Estimate",
    "Evaluation",
    "NonfiniteLoss",
    "TrainConfig",
    "TrainResult",
    "evaluate",
    "keep_buffers",
    "learning_rate",
    "recipe",
    "resume",
    "train",
]
