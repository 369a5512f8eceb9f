"""Model files on disk: read, checked, and handed up as stored tensors in one layout."""
