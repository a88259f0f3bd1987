"""The outcome of a run: one document, shown as JSON, as text, and as an HTML page with a time line."""
