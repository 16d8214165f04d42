"""Watching inside of trainers: import the callback of yours.

`from normscope.monitor.callbacks.lightning import NormscopeCallback` for Lightning (`lightning` or
`pytorch_lightning`), `from normscope.monitor.callbacks.huggingface import NormscopeCallback` for the Trainer of
transformers. Each of the two files imports the package it is for; this one imports neither.
"""
