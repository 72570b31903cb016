"""Many runs: comparisons, searches, sweeps and what is measured across them."""
