"""The text room: words to token ids and back, chat templates, stop strings."""
