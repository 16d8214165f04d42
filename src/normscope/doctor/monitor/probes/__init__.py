"""What a loss was made of, as autograd has kept it for the backward."""
