"""What `ns.check` says of healthy networks that other people designed, and how large its facts are there."""
