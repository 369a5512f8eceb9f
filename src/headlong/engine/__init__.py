"""The engine: requests become sequences, sequences run in rounds."""
