"""Normscope beside its peers: areas that `benchmarks/page.py` measures."""
