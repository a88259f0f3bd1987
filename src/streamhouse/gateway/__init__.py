"""Front ends turn bytes into broker calls and back. They never decide, and touch no log, store or metadata."""
