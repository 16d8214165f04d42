"""What is measured of a step: on the device small tensors, on the host the figures made of them."""
