"""The HTTP front end: an OpenAI-compatible server, its page, its telemetry."""
