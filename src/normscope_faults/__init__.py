"""Planted faults and healthy set-ups for tools that diagnose PyTorch models and training runs, and their scores.

Each fault stands in an otherwise sensible small network with plausible data and comes with the causes, layers and first
remedies that count as a right diagnosis, and with a mended twin that has all but the fault. Random numbers come from
torch's global generator, which each case seeds.
"""

from .case import Case, Fault, Healthy
from .causes import CAUSES
from .remedies import REMEDIES
from .score import Answer, Finding, Score, score

__all__ = ["CAUSES", "REMEDIES", "Answer", "Case", "Fault", "Finding", "Healthy", "Score", "score"]
