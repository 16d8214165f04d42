"""What rules say of a ball of inputs."""
