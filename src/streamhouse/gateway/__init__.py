"""Front ends: bytes to broker calls and back. They translate and never decide, and touch no log, store or metadata."""
