"""What is measured of a model, its data and its training: typed, frozen records, each beside the code that fills it."""
