"""The loss as a function of the weights: curvature, smoothness, gradient flow, flatness and margins."""
