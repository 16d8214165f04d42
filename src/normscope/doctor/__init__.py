"""The doctor: what is wrong with a model, before and while it trains (`check`, `watch`)."""
