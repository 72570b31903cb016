"""What everything else stands on: the contract of a method, the server and the one loop, settings, files, kernels."""
