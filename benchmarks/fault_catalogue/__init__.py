"""In transit to `normscope_faults`."""
