"""Many runs: compare methods, tune one, sweep a grid, diagnose. All of them run their jobs by `acefl.studies.jobs`."""
