"""What everything else stands on: the contract of a method, settings, files. It imports nothing from other packages."""
