"""Everything that imports flwr. `acefl.flower` is its public face."""
