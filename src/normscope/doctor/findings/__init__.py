"""What an audit says besides: biases without effect, parts and bounds that say nothing."""
