"""The geometry of a network's parameters: which changes of them leave the function as it is."""
