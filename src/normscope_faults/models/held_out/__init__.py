"""Models for scoring alone: written by someone who had seen neither the rules nor what they missed."""
