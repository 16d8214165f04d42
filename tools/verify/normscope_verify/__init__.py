"""Checks what Normscope claims, without Normscope; needs NumPy and python-flint alone.

A proof file (`bracket.save(path)`) holds a network, node by node, claims about its Lipschitz constant, and the steps
that prove them. Of the file nothing is trusted but the network; of the machine: correctly rounded float64, Arb and the
interpreter. Verified means that the claim is proven as it stands, with nothing allowed beyond it. What a claim says,
for a network f with input x (all inputs as one vector) and all norms l2:

  upper   norm(f(x) - f(y)) <= 10^log10 norm(x - y), for all x, y (global) or all x, y in the ball
  lower   some pair (x, y), which the file holds, attains at least 10^log10

To read it from top to bottom: `arithmetic` (numbers that know their rounding), `reading` (the file), `functions`
(activations), `nodes` (kinds of nodes, the network), `proving` (the steps of a proof), `claims` (verdicts).
"""
