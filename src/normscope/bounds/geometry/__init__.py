"""The loss and the function as functions of the weights: symmetries, curvature, flatness, margins and measures."""
