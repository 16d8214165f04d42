"""What one forward of a model shows: which layers run where, what they are given, and small statistics of that."""
