"""What is wrong with a model, and what goes wrong while it trains: one file per code or close family."""
