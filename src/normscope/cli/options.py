"""Options that several verbs have, and how a verb has those of the functions that it calls."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from ..core.finding import Severity
from ..theory.losses import TRAINING_LOSSES
from .data_forms import BATCH_SIZE, NOISE_SAMPLES
from .messages import STDOUT
from .model_forms import FORMS

_DATA = "digits, mnist:FOLDER, cifar10:FOLDER, npz:FILE or package.module:loader."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}.", show_default=False)]
Data = Annotated[str, typer.Option("--data", metavar="DATA", help=_DATA, show_default=False)]
DataOrNoise = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help=f"{_DATA} Left out, a Hugging Face model gets random noise of its own sizes, and the report says so.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help=f"Samples a batch, {BATCH_SIZE} if left out ({NOISE_SAMPLES} of noise).")
]
Output = Annotated[str | None, typer.Option("--output", metavar="NAME")]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="NAME",
        help=f"The loss between outputs and labels, which the data must have: {', '.join(TRAINING_LOSSES)}. Gradients "
        "are then its own, and it is looked at whether outputs and labels fit it.",
    ),
]
FailOn = Annotated[
    Severity | None,
    typer.Option(help="Exit with code 1 if a finding is this serious or more; reports call an info a note."),
]
Count = Annotated[int, typer.Option(min=0)]
PositiveCount = Annotated[int, typer.Option(min=1)]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The seed of every random choice.")]


def _refuse_stdout(path: Path | None) -> Path | None:
    """Refuse `-` where a file is meant."""
    if path == STDOUT:
        raise typer.BadParameter("a page is written to a file: only --json takes - for standard output")
    return path


Html = Annotated[Path | None, typer.Option(help="Write the report to this file.", callback=_refuse_stdout)]
Json = Annotated[Path | None, typer.Option(help="Write the figures to this file; - prints them instead of the report.")]
Sarif = Annotated[Path | None, typer.Option(help="Write the findings to this file as SARIF, for code hosts.")]
Mode = Literal["train", "eval"] | None
MaxSeconds = Annotated[float | None, typer.Option(min=0.0)]
Device = Annotated[str | None, typer.Option(help="Where to run the model, e.g. cuda; left out, where it is built.")]
Trust = Annotated[bool, typer.Option("--trust", help="Load a .pt2 file although that can run code it holds.")]


Verb = TypeVar("Verb", bound=Callable[..., None])


def options_of(*functions: Callable[..., Any]) -> Callable[[Verb], Verb]:
    """Complete the keyword-only options of a verb from the functions, or dataclasses, that it calls.

    An option without a default has that of the parameter of its name, and one without a help text the first sentence of
    that parameter in `Args:` or `Attributes:`. A verb states itself only what is not the same on a command line.
    """
    parameters: dict[str, inspect.Parameter] = {}
    arguments: dict[str, str] = {}
    for function in functions:
        parameters |= inspect.signature(function).parameters
        arguments |= _read_arguments(function)

    def complete(verb: Verb) -> Verb:
        hints = get_type_hints(verb, include_extras=True)
        defaults: dict[str, Any] = {}
        for name, option in inspect.signature(verb).parameters.items():
            if option.kind is not option.KEYWORD_ONLY:
                continue
            kind, info = hints[name], typer.Option()
            if get_origin(kind) is Annotated:
                kind, info = kind.__origin__, copy.copy(kind.__metadata__[0])
            default = parameters[name].default if option.default is option.empty else option.default
            with_commas = kind is str and isinstance(default, tuple)
            defaults[name] = ",".join(map(str, default)) if with_commas else default
            if info.help is None:
                info.help = _command_line_words(arguments[name], hints)
                info.help = f"With commas: {info.help[0].lower()}{info.help[1:]}" if with_commas else info.help
                if list in {get_origin(one) for one in (kind, *get_args(kind))}:
                    info.help += " May be given several times."
            hints[name] = Annotated[kind, info]
        verb.__annotations__, verb.__kwdefaults__ = hints, defaults
        return verb

    return complete


def _read_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentence of each parameter in `Args:`."""
    section = re.split("\n(?:Args|Attributes):\n", inspect.getdoc(function) or "\n")[-1].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE)
    return {name: re.split(r"(?<=\.) (?=[A-Z`])", re.sub(r"\s+", " ", text))[0] for name, text in entries}


def _command_line_words(sentence: str, options: Any) -> str:
    """Return a sentence about a parameter in the words of a command line."""

    def spell(code: re.Match[str]) -> str:
        name, _, value = code[1].partition("=")
        word = f"--{name.replace('_', '-')}" if name in options else name
        return f"{word} {value}".strip().replace('"', "")

    sentence = re.sub(r" \((?:`\w+`(?:, | and )?)+\)", "", sentence)  # attributes of the result
    text = re.sub(r"(?:,? or|[,;]) None for", "; left out,", sentence.removeprefix("whether to "))
    text = re.sub("`([^`]*)`", spell, text)
    return text[0].upper() + text[1:]


def output_of(text: str | None) -> str | int | None:
    """Return the output that `--output` names: its number where the text is one, else its name."""
    return int(text) if text is not None and text.isdecimal() else text
