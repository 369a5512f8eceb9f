"""Front door over HTTP: an OpenAI-compatible server, its page, its telemetry."""
