"""Linear maps and certified bounds on their norms; knows no network."""
