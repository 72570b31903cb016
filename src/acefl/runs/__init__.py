"""One run, from its settings to its record: training, evaluation, checkpoints, whoever watches."""
