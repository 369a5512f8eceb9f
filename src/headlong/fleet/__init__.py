"""Fleet: engines in other processes, on this machine and others, behind the engine client."""
