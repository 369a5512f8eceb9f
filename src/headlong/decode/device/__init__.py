"""The device runner: whole rounds on one device."""
