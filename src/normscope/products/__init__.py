"""Products and norms that need no graph: a loss's Hessian times a vector, Lanczos, the norms of layers that train."""
