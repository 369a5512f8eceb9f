"""States of sequences: what a pass appends and a round commits or rolls back; kept prefixes."""
