"""What everything else stands on: the contract of a method, the server, the loop."""
