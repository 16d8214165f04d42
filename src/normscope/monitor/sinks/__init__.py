"""Where records of a watched run go besides its log; any callable `sink(record, findings)` will do.

A sink that has `begin(layers, metadata)` is told what is watched before its first record; one that has `close()` is
closed when the run ends. The sinks here have both; they import what they write to when they need it.
"""

from .tensorboard import TensorBoardSink
from .wandb import WandbSink

__all__ = ["TensorBoardSink", "WandbSink"]
