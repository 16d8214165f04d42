"""All experiments by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from normscope.toolkit import InputError

from .base import Claim, Experiment


@functools.cache
def registered() -> Mapping[str, Experiment]:
    """Return all experiments by name, in the order of the papers; their files load when this is first called."""
    from . import akbar, beyond, digest, than, theory

    papers = (theory, than, digest, akbar, beyond)
    every = tuple(one for paper in papers for one in paper.EXPERIMENTS)
    summary = {one.name: one for one in every}
    ids = [claim.id for one in every for claim in one.claims]
    if len(summary) != len(every) or len(set(ids)) != len(ids):
        raise ValueError("two experiments have the same name, or two claims the same id")
    for one in every:
        if one.shares and (one.shares not in summary or summary[one.shares].shares):
            raise ValueError(f"{one.name} shares the jobs of {one.shares}, which has none of its own")
    return summary


def chosen(names: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return experiments by name: `all`, or no name, stands for every one, `than` for all that begin with `than.`."""
    every = registered()
    if not names or "all" in names:
        return tuple(every.values())
    summary: dict[str, Experiment] = {}
    for name in names:
        meant = [every[name]] if name in every else [one for key, one in every.items() if key.startswith(f"{name}.")]
        if not meant:
            raise InputError(f"there is no experiment {name!r}: it is all, or one of {', '.join(every)}")
        summary |= {one.name: one for one in meant}
    return tuple(summary.values())


def chosen_claims(names: Sequence[str] = ()) -> tuple[tuple[Experiment, tuple[Claim, ...]], ...]:
    """Return claims by name, with the experiment that judges them, in the order of the papers.

    A name is the id of a claim, or an experiment for all of its claims, or the beginning of several of either, such as
    `slides`.
    """
    every = registered()
    if not names or "all" in names:
        return tuple((one, one.claims) for one in every.values())
    keys = {claim.id: {claim.id, one.name} for one in every.values() for claim in one.claims}
    meant: set[str] = set()
    for name in names:
        same = {id for id, claim_keys in keys.items() if name in claim_keys}
        begun = {id for id, claim_keys in keys.items() if any(key.startswith(f"{name}.") for key in claim_keys)}
        if not same and not begun:
            raise InputError(
                f"there is no claim and no experiment {name!r}: normscope lab claims lists the claims, "
                "normscope lab reproduce the experiments"
            )
        meant |= same or begun
    chosen = ((one, tuple(claim for claim in one.claims if claim.id in meant)) for one in every.values())
    return tuple((one, claims) for one, claims in chosen if claims)


def source_of(experiment: Experiment) -> Experiment:
    """Return the experiment whose jobs are measured for this one, which usually is itself."""
    return registered()[experiment.shares] if experiment.shares else experiment
