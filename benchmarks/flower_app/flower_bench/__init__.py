"""Where the time goes between two models of a node."""
