"""The optimised certificate of wide convolutional networks, frequency by frequency."""
