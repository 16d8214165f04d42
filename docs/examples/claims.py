"""
Claims: what of the theory holds
================================

``lab.claims`` is the ledger of the papers' claims. Every verdict is computed from figures: short experiments are run
now, long ones are read from stored results with their day, commit and machine. Names choose some of them.
"""

import normscope_lab as lab

ledger = lab.claims(["than.lemma1", "akbar.4.3"])
print(ledger)
for row in ledger.rows:
    print(row.id, "-", row.verdict, "-", row.evidence)
