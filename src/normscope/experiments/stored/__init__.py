"""Results of experiments that take long, as `normscope reproduce --full` wrote them: curves, not checkpoints."""
