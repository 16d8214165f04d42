"""Planted faults and healthy models, for scoring tools that diagnose PyTorch models.

Each fault stands in an otherwise sensible small network with plausible data and comes with the causes, layers and first
remedies that count as a right diagnosis, and with a mended twin that has all but the fault. `case.py` has the records
and the vocabularies, `held_out.py` the cases. `python -m benchmarks.fault_catalogue.check_cases` checks the catalogue
itself, `--harm` also trains each faulty model and its mended twin.
"""
