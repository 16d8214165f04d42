"""What a certificate needs to be checked by someone else."""
