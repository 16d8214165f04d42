"""What packages make commands of `normscope` of: options, models and data as they are named there, files to write.

A package adds a command by an entry point of the group `normscope.commands`: its name is the word behind `normscope`,
and it leads to a `typer.Typer`, which `normscope NAME ...` runs (`cli/__init__.py`).
"""

from .cli.data_forms import folder_split, open_data
from .cli.messages import check_targets, help_with_examples, read_from, show_result
from .cli.model_forms import FORMS as MODEL_FORMS
from .cli.model_forms import open_runnable, place_model, refuse_exit
from .cli.options import Device, Html, Json, MaxSeconds, Mode, Seed, Trust, options_of
from .cli.training import numbers as split_numbers

__all__ = [
    "MODEL_FORMS",
    "Device",
    "Html",
    "Json",
    "MaxSeconds",
    "Mode",
    "Seed",
    "Trust",
    "check_targets",
    "folder_split",
    "help_with_examples",
    "open_data",
    "open_runnable",
    "options_of",
    "place_model",
    "read_from",
    "refuse_exit",
    "show_result",
    "split_numbers",
]
