"""Where records of a watched run go besides its log; any callable `sink(record, findings)` will do.

A sink that has `begin(layers, metadata)` is told what is watched before its first record; one that has `close()` is
closed when the run ends. One that has `alarms(findings)` gets there the alarms that come between two records or at the
end; others get them with the last record once more. One that has `metrics(step, figures)` gets what the loop gives
`run.log_metrics`. The sinks here have all of these; they import what they write to when they need it.
"""

from .tensorboard import TensorBoardSink
from .wandb import WandbSink

__all__ = ["TensorBoardSink", "WandbSink"]
