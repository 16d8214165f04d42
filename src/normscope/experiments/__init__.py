"""Data, small networks and training; experiments and claims of the papers; what predicts the generalization gap."""
