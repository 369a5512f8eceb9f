"""Front door on the command line: one file per verb."""
